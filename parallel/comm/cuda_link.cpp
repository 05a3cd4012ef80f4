#include "parallel/comm/cuda_link.h"

#include <cuda_runtime.h>
#include <fmt/format.h>
#include <nccl.h>

#include <algorithm>
#include <chrono>

#include "kernels/core/cuda_check.h"
#include "parallel/comm/cuda_backend.h"

namespace k25::parallel {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kLook{50};  // between two looks of the watchdog
constexpr seconds kMeet{5};        // the ranks' watchdogs end their patience at different moments
constexpr microseconds kNap{20};   // between two looks of a waiting host

}  // namespace

/// A recorded event, or the fault that came before it.
class CudaLink::EventState final : public Work::State {
 public:
  EventState(CudaLink& link, cudaEvent_t event) : link_(link), event_(event) {}
  ~EventState() override { link_.give_event(event_); }
  EventState(const EventState&) = delete;
  EventState& operator=(const EventState&) = delete;

  bool done() override {
    link_.check();
    return complete();
  }
  bool wait(Clock::time_point until) override {
    while (!done()) {
      if (Clock::now() >= until) return false;
      std::this_thread::sleep_for(kNap);
    }
    return true;
  }
  void wait_on(const Queue& queue) override {
    if (queue.is_host()) {
      wait(Clock::time_point::max());
      return;
    }
    link_.check();
    K25_CUDA_CHECK(cudaStreamWaitEvent(queue.stream(), event_, 0));
  }

  bool complete() const {
    const cudaError_t error = cudaEventQuery(event_);
    if (error == cudaErrorNotReady) return false;
    K25_CUDA_CHECK(error);
    return true;
  }

 private:
  CudaLink& link_;
  cudaEvent_t event_;
};

CudaLink::CudaLink(World& world)
    : world_(world), watchdogs_(world.split(0, world.rank(), "gpu watchdog")), log_(world.log()) {
  K25_CUDA_CHECK(cudaGetDevice(&device_));
  K25_CUDA_CHECK(cudaDeviceGetAttribute(&num_sms_, cudaDevAttrMultiProcessorCount, device_));
  int lowest = 0, highest = 0;
  K25_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  K25_CUDA_CHECK(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, highest));
  thread_ = std::thread([this] { watch(); });
}

CudaLink::~CudaLink() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
  pending_.clear();
  for (cudaEvent_t event : free_events_) cudaEventDestroy(event);
  cudaStreamDestroy(stream_);
}

void CudaLink::follow(const Queue& queue) {
  check();
  cudaEvent_t event = take_event();
  K25_CUDA_CHECK(cudaEventRecord(event, queue.stream()));
  K25_CUDA_CHECK(cudaStreamWaitEvent(stream_, event, 0));
  give_event(event);  // the wait is enqueued; recording the event anew does not change it
}

Work CudaLink::finish_call(const CallId& call) {
  const std::int64_t key = log_->add(call);
  log_->started(key);
  cudaEvent_t event = take_event();
  K25_CUDA_CHECK(cudaEventRecord(event, stream_));
  auto state = std::make_shared<EventState>(*this, event);
  {
    const std::lock_guard lock(mutex_);
    pending_.push_back({call, key, state});
  }
  wake_.notify_one();
  return Work(state);
}

Work CudaLink::mark(cudaStream_t stream) {
  cudaEvent_t event = take_event();
  K25_CUDA_CHECK(cudaEventRecord(event, stream));
  return Work(std::make_shared<EventState>(*this, event));
}

void CudaLink::add(ncclComm_t comm) {
  const std::lock_guard lock(mutex_);
  comms_.push_back(comm);
}

void CudaLink::remove(ncclComm_t comm) {
  const std::lock_guard lock(mutex_);
  std::erase(comms_, comm);
}

void CudaLink::check() const {
  const std::lock_guard lock(mutex_);
  if (fault_) fail(fault_->kind, fault_->message);
}

cudaEvent_t CudaLink::take_event() {
  {
    const std::lock_guard lock(mutex_);
    if (!free_events_.empty()) {
      cudaEvent_t event = free_events_.back();
      free_events_.pop_back();
      return event;
    }
  }
  cudaEvent_t event = nullptr;
  K25_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return event;
}

void CudaLink::give_event(cudaEvent_t event) {
  const std::lock_guard lock(mutex_);
  free_events_.push_back(event);
}

void CudaLink::watch() {
  cudaSetDevice(device_);
  Clock::time_point progress = Clock::now();
  Clock::time_point last_look = progress;
  while (true) {
    std::string oldest;
    {
      std::unique_lock lock(mutex_);
      wake_.wait_for(lock, kLook, [&] { return stop_; });
      if (stop_) return;
      if (!pending_.empty()) oldest = pending_.front().call.describe();
    }
    const Clock::time_point now = Clock::now();
    // A look that comes late means that this process was stopped; that time does not count.
    const bool was_stopped = now - last_look > 20 * kLook;
    last_look = now;
    if (retire() || oldest.empty() || was_stopped) progress = now;
    const Clock::duration timeout = watchdogs_->default_deadline() - Clock::now();
    if (now - progress > timeout) {
      fail_world(oldest);
      return;
    }
  }
}

bool CudaLink::retire() {
  std::vector<Pending> ended;  // destroyed outside the lock: a state gives its event back
  {
    const std::lock_guard lock(mutex_);
    while (!pending_.empty() && pending_.front().state->complete()) {
      log_->done(pending_.front().log_key);
      ended.push_back(std::move(pending_.front()));
      pending_.pop_front();
    }
  }
  return !ended.empty();
}

void CudaLink::fail_world(const std::string& call) {
  std::string missing = "all ranks are in it";
  try {
    watchdogs_->barrier("gpu watchdog", Clock::now() + kMeet);
  } catch (const Error& error) {
    missing = error.what();
  }
  const double timeout =
      std::chrono::duration<double>(watchdogs_->default_deadline() - Clock::now()).count();
  std::vector<ncclComm_t> comms;
  {
    const std::lock_guard lock(mutex_);
    fault_ =
        Fault{ErrorKind::kCommunication,
              fmt::format("no progress on the GPU in {} for {:.0f} s: {}", call, timeout, missing)};
    for (const Pending& pending : pending_) log_->failed(pending.log_key);
    comms.swap(comms_);
  }
  for (ncclComm_t comm : comms) ncclCommAbort(comm);
}

std::shared_ptr<CudaLink> make_cuda_link(World& world) { return std::make_shared<CudaLink>(world); }

Work mark_stream(CudaLink& link, cudaStream_t stream) { return link.mark(stream); }

void wait_for_stream(CudaLink& link, cudaStream_t stream) { link.mark(stream).wait(); }

}  // namespace k25::parallel
