#include "parallel/comm/comm_thread.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "kernels/core/check.h"
#include "parallel/comm/comm_loop.h"

namespace k25::parallel {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr milliseconds kIdle{20};
constexpr std::int64_t kSpinPolls = 50;
constexpr std::int64_t kYieldPolls = 100;
constexpr milliseconds kLastResort{5000};
constexpr milliseconds kStartSlice{100};
constexpr milliseconds kNaming{500};  // a transport that knows who is missing speaks first

/// Signals are for the program's own threads; those that a fault raises stay open.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) {
      sigdelset(&all, fault);
    }
    pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_;
};

// What only a library knows how to name is taken for a failure of communication.
Fault fault_of(const std::exception& e) {
  const Error error = as_error(e);
  const bool known = error.kind() != ErrorKind::kInternal;
  return {known ? error.kind() : ErrorKind::kCommunication, error.what()};
}

}  // namespace

void CommThread::Impl::main_loop(milliseconds start_limit) {
  try {
    peers = transport_->start(start_limit);
    rank = transport_->rank();
    started->complete();
  } catch (const std::exception& e) {
    started->fail_with(fault_of(e));
    leave();
    return;
  }
  last_loop_ = last_progress_ = last_listen_ = Clock::now();
  while (true) {
    pulse->beats.fetch_add(1, std::memory_order_relaxed);
    now_ = Clock::now();
    bool worked = false;
    try {
      worked = take_queued();
      if (left_) break;
      if (!verdict_) worked = progress() || worked;
      watch();
    } catch (const Error& e) {
      decide({e.kind(), e.what()});
    } catch (const std::exception& e) {
      const Error error = as_error(e);
      decide({error.kind(), error.what()});
    }
    {
      const std::lock_guard lock(mutex_);
      if (stop_) break;
    }
    pause(worked);
  }
  leave();
}

bool CommThread::Impl::take_queued() {
  std::deque<std::unique_ptr<Operation>> operations;
  std::deque<Task> tasks;
  std::optional<int> code;
  {
    const std::lock_guard lock(mutex_);
    operations.swap(queue_);
    tasks.swap(tasks_);
    code = abort_code_;
  }
  if (code) obey_abort(*code);
  for (auto& operation : operations) begin(std::move(operation));
  for (Task& task : tasks) run_task(task);
  return !operations.empty() || !tasks.empty();
}

void CommThread::Impl::run_task(Task& task) {
  if (verdict_) return task.state->fail_with(verdict_->fault);
  try {
    task.run(*transport_);
    left_ = task.after == After::kLeave;
    task.state->complete();
  } catch (const std::exception& e) {
    task.state->fail_with(fault_of(e));
  }
}

void CommThread::Impl::pause(bool worked) {
  if (worked) {
    idle_polls_ = 0;
    return;
  }
  const bool waiting = !active_.empty() && !verdict_;
  if (waiting && ++idle_polls_ <= kSpinPolls) return;
  if (waiting && idle_polls_ <= kYieldPolls) {
    sched_yield();
    return;
  }
  const auto since = std::chrono::duration_cast<microseconds>(Clock::now() - last_progress_);
  const microseconds nap = std::clamp(since / 8, microseconds{20}, microseconds{200});
  std::unique_lock lock(mutex_);
  wake_.wait_for(lock, waiting ? nap : microseconds(verdict_ ? milliseconds{5} : kIdle), [&] {
    return !queue_.empty() || !tasks_.empty() || stop_ || abort_code_.has_value();
  });
}

void CommThread::Impl::leave() {
  const std::lock_guard lock(mutex_);
  exited_ = true;
  gone_.notify_all();
}

void CommThread::Impl::enqueue(std::vector<std::unique_ptr<Operation>> operations) {
  std::optional<Fault> fault;
  {
    const std::lock_guard lock(mutex_);
    fault = fault_;
    if (!fault) pending_ += static_cast<std::int64_t>(operations.size());
    for (auto& operation : operations) {
      operation->state->submitted();
      if (fault) {
        log->failed(operation->log_key);
        operation->state->fail_with(*fault);
      } else {
        queue_.push_back(std::move(operation));
      }
    }
  }
  wake_.notify_one();
}

void CommThread::Impl::enqueue_task(std::shared_ptr<CallState> state,
                                    std::function<void(Transport&)> task, After after) {
  state->submitted();
  {
    const std::lock_guard lock(mutex_);
    if (fault_ || stop_) {
      state->fail_with(fault_.value_or(Fault{ErrorKind::kCommunication, "the world has ended"}));
      return;
    }
    tasks_.push_back({std::move(state), std::move(task), after});
  }
  wake_.notify_one();
}

void CommThread::Impl::drain() {
  std::unique_lock lock(mutex_);
  PulseWatch watch(*pulse, "the end of all calls");
  const auto over = [&] { return pending_ == 0 || fault_.has_value(); };
  while (!drained_.wait_for(lock, PulseWatch::kSlice, over)) watch.slept_a_slice();
  if (fault_) fail(fault_->kind, fault_->message);
}

void CommThread::Impl::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
}

bool CommThread::Impl::exited_within(milliseconds patience) {
  std::unique_lock lock(mutex_);
  return gone_.wait_for(lock, patience, [&] { return exited_; });
}

void CommThread::Impl::request_abort(int exit_code) {
  aborting = true;
  {
    const std::lock_guard lock(mutex_);
    abort_code_ = exit_code;
  }
  wake_.notify_one();
}

CommThread::CommThread(std::unique_ptr<Transport> transport)
    : impl_(std::make_shared<Impl>(std::move(transport))) {}

CommThread::~CommThread() {
  impl_->stop();
  if (thread_.joinable()) {
    // A thread that is stuck inside MPI keeps what it needs; the process is about to end.
    if (impl_->exited_within(milliseconds{2000})) {
      thread_.join();
    } else {
      thread_.detach();
    }
  }
}

void CommThread::start(milliseconds limit, milliseconds patience) {
  const BlockedSignals blocked;  // inherited by the thread and by MPI's own
  impl_->started->submitted();
  const milliseconds all = limit + patience;
  thread_ = std::thread([impl = impl_, all] { impl->main_loop(all); });
  // By slices: one that this process was stopped in counts as one, like all time of that kind.
  for (milliseconds waited{0}; waited < all + kNaming; waited += kStartSlice) {
    if (impl_->started->wait(Clock::now() + kStartSlice)) return;
  }
  thread_.detach();  // stuck inside MPI; it keeps what it needs
  fail(ErrorKind::kCommunication,
       "MPI did not start within " + std::to_string(limit.count() / 1000) +
           " s; another process of this job is stopped or has ended before it joined: look at what "
           "the launcher starts on every rank");
}

void CommThread::set_timeout(milliseconds timeout) { impl_->pulse->timeout_ms = timeout.count(); }

int CommThread::rank() const { return impl_->rank; }
const std::vector<Peer>& CommThread::peers() const { return impl_->peers; }
const std::shared_ptr<CollectiveLog>& CommThread::log() const { return impl_->log; }

std::shared_ptr<CallState> CommThread::new_state(const CallId& id) const {
  return std::make_shared<CallState>(impl_->pulse, id.describe());
}

void CommThread::submit(std::vector<std::unique_ptr<Operation>> operations) {
  impl_->enqueue(std::move(operations));
}

void CommThread::run(const std::string& description, std::function<void(Transport&)> task) {
  const auto state = std::make_shared<CallState>(impl_->pulse, description);
  impl_->enqueue_task(state, std::move(task), Impl::After::kGoOn);
  state->wait_on(Queue::host());
}

void CommThread::drain() { impl_->drain(); }
std::string CommThread::waiting_for() const { return impl_->waiting_for(); }
std::string CommThread::missing_in(const CallState* state) const {
  return impl_->missing_in(state);
}
bool CommThread::peer_failed() const { return impl_->peer_failed; }

void CommThread::finish() {
  const auto state = std::make_shared<CallState>(impl_->pulse, "MPI_Finalize");
  const auto finalize = [](Transport& transport) { transport.finalize(); };
  impl_->enqueue_task(state, finalize, Impl::After::kLeave);
  state->wait_on(Queue::host());
  impl_->stop();
  thread_.join();
}

void CommThread::abort(int exit_code) {
  std::fflush(nullptr);
  if (impl_->exited_within(milliseconds{0})) std::_Exit(exit_code);
  impl_->request_abort(exit_code);
  std::this_thread::sleep_for(kLastResort);
  std::_Exit(exit_code);
}

}  // namespace k25::parallel
