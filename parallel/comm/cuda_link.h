#pragma once
// Private to parallel/comm: the communication stream of a process, the events that mark its calls,
// and the watchdog over them.
//
// The watchdog looks at the oldest call that is not done. When none has completed for the timeout,
// it meets its peers' watchdogs at a barrier of their own: ranks that wait for the same collective
// come, a rank that is stopped or stuck elsewhere does not, so the barrier's error names it. Then
// NCCL is aborted, which ends the kernels that hang, and every later wait throws.

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "kernels/core/cuda_fwd.h"
#include "parallel/comm/call_state.h"
#include "parallel/comm/collective_log.h"
#include "parallel/comm/communicator.h"
#include "parallel/comm/world.h"

struct ncclComm;
using ncclComm_t = ncclComm*;

namespace k25::parallel {

class CudaLink {
 public:
  explicit CudaLink(World& world);
  ~CudaLink();
  CudaLink(const CudaLink&) = delete;
  CudaLink& operator=(const CudaLink&) = delete;

  cudaStream_t stream() const { return stream_; }
  int num_sms() const { return num_sms_; }
  World& world() const { return world_; }

  /// Makes the communication stream wait for what `queue` holds now.
  void follow(const Queue& queue);
  /// Marks the end of a call on the communication stream.
  Work finish_call(const CallId& call);

  /// Done when what `stream` holds now is done. Not under the watchdog.
  Work mark(cudaStream_t stream);

  void add(ncclComm_t comm);
  void remove(ncclComm_t comm);
  /// Throws the fault, if there is one.
  void check() const;

 private:
  class EventState;
  struct Pending {
    CallId call;
    std::int64_t log_key = 0;
    std::shared_ptr<EventState> state;
  };

  cudaEvent_t take_event();
  void give_event(cudaEvent_t event);
  void watch();
  /// True when a call completed since the last look.
  bool retire();
  void fail_world(const std::string& call);

  World& world_;
  std::unique_ptr<Communicator> watchdogs_;
  std::shared_ptr<CollectiveLog> log_;
  int device_ = 0, num_sms_ = 0;
  cudaStream_t stream_ = nullptr;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<cudaEvent_t> free_events_;
  std::deque<Pending> pending_;
  std::vector<ncclComm_t> comms_;
  std::optional<Fault> fault_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace k25::parallel
