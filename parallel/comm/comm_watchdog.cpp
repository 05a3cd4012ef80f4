// The communication thread: noticing failure, saying who is missing, and ending the job.

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "kernels/core/check.h"
#include "parallel/comm/comm_loop.h"

namespace k25::parallel {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kListenIdle{20};
constexpr milliseconds kListenWaiting{2};
constexpr milliseconds kStopped{1000};  // a longer loop means that this process slept
constexpr milliseconds kAnnounce{300};
constexpr milliseconds kStagger{250};
constexpr milliseconds kMostStagger{3000};
constexpr int kMostNamed = 8;

}  // namespace

void CommThread::Impl::watch() {
  if (fault_) return;  // written by this thread alone
  now_ = Clock::now();
  const Clock::duration loop = now_ - last_loop_;
  if (loop > kStopped) last_progress_ += loop;
  last_loop_ = now_;
  if (verdict_ && now_ >= verdict_->due) return enact(verdict_->fault);
  listen();
  if (fault_ || verdict_) return;
  const milliseconds timeout{pulse->timeout_ms.load()};
  if (!active_.empty() && now_ - last_progress_ > timeout) {
    decide({ErrorKind::kCommunication, timeout_message()});
  }
}

void CommThread::Impl::listen() {
  const milliseconds every = active_.empty() ? kListenIdle : kListenWaiting;
  if (now_ - last_listen_ < every) return;
  last_listen_ = now_;
  const std::optional<int> peer = transport_->failed_peer();
  if (!peer) return;
  peer_failed = true;
  enact({ErrorKind::kCommunication, peer_text(*peer) + " failed and has said why"});
}

void CommThread::Impl::decide(Fault fault) {
  if (fault_ || verdict_) return;
  const milliseconds stagger = std::min(kStagger * rank, kMostStagger);
  verdict_ = Verdict{std::move(fault), Clock::now() + stagger};
}

void CommThread::Impl::enact(const Fault& fault) {
  // Callers free their buffers once their calls have failed, and any call of MPI may still move
  // bytes of those under way: the announcement is the last before that.
  if (!peer_failed) announce();
  const std::string waiting = waiting_for();
  std::deque<std::unique_ptr<Operation>> queued;
  std::deque<Task> tasks;
  {
    const std::lock_guard lock(mutex_);
    fault_ = fault;
    queued.swap(queue_);
    tasks.swap(tasks_);
  }
  {
    const std::lock_guard lock(active_mutex_);
    last_waiting_ = waiting;
    abandoned_ = std::move(active_);
    active_.clear();
  }
  for (auto& operation : queued) abandoned_.push_back(std::move(operation));
  for (auto& operation : abandoned_) {
    log->failed(operation->log_key);
    operation->channel->in_flight.fetch_sub(1);
    operation->state->fail_with(fault);
  }
  for (Task& task : tasks) task.state->fail_with(fault);
  drained_.notify_all();
}

void CommThread::Impl::obey_abort(int exit_code) {
  // A peer that failed first ends the job with its own code; a second MPI_Abort could win the race.
  if (peer_failed) {
    const std::lock_guard lock(mutex_);
    abort_code_.reset();
    return;
  }
  if (!fault_) announce();
  transport_->abort(exit_code);
}

void CommThread::Impl::announce() {
  try {
    transport_->announce_failure(kAnnounce);
  } catch (const std::exception&) {
    // NOTE: the peers then print a second message; ending the job matters more.
  }
}

std::string CommThread::Impl::peer_text(int world_rank) const {
  const Peer& peer = peers[static_cast<std::size_t>(world_rank)];
  return fmt::format("rank {} (host {}, pid {})", world_rank, peer.host, peer.pid);
}

std::string CommThread::Impl::missing_text(const Operation& operation) const {
  std::string text;
  // Who has not sent is the cause; a send that hangs tells less.
  for (const auto* counts : {&operation.missing_from, &operation.unsent_to}) {
    int named = 0, more = 0;
    for (std::size_t r = 0; r < counts->size(); ++r) {
      if ((*counts)[r] == 0) continue;
      if (named == kMostNamed) {
        ++more;
        continue;
      }
      text += (named++ == 0 ? "" : ", ") + peer_text(operation.channel->world_ranks[r]);
    }
    if (more > 0) text += fmt::format(" and {} more", more);
    if (!text.empty()) break;
  }
  return text;
}

std::string CommThread::Impl::timeout_message() const {
  const auto waiting = std::ranges::find_if(
      active_, [](const auto& operation) { return operation->outstanding > 0; });
  const Operation& oldest = waiting == active_.end() ? *active_.front() : **waiting;
  const double seconds = static_cast<double>(pulse->timeout_ms.load()) / 1000;
  return fmt::format(
      "no progress in {} from {} for {} s; it is stopped, lost or still computing (raise "
      "comm.timeout_s above the longest time a rank computes between collectives)",
      oldest.id.describe(), missing_text(oldest), seconds);
}

std::string CommThread::Impl::waiting_for() const {
  if (aborting) return {};
  const std::lock_guard lock(active_mutex_);
  for (const auto& operation : active_) {
    if (operation->outstanding == 0) continue;
    return fmt::format("{}, missing {}", operation->id.describe(), missing_text(*operation));
  }
  return last_waiting_;
}

std::string CommThread::Impl::missing_in(const CallState* state) const {
  const std::lock_guard lock(active_mutex_);
  for (const auto& operation : active_) {
    if (operation->state.get() == state) return missing_text(*operation);
  }
  return {};
}

}  // namespace k25::parallel
