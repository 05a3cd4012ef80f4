#pragma once
// Private to kernels/core/profiler: what only a CUDA build has.

#include <cstddef>
#include <memory>

#include "kernels/core/cuda_fwd.h"

namespace k25 {

class ProfilerDevice {
 public:
  virtual ~ProfilerDevice() = default;
  virtual void start_capture() = 0;
  virtual void stop_capture() = 0;
  virtual void push(const char* name) = 0;  ///< an NVTX range
  virtual void pop() = 0;
  /// Records an event on the stream; numbers count from 0 again after forget().
  virtual std::size_t mark() = 0;
  virtual void wait() = 0;  ///< for all marks
  virtual double seconds_between(std::size_t begin, std::size_t end) = 0;
  virtual void forget() = 0;
};

/// In a CUDA build only: call it under `if constexpr (kWithCuda)`.
std::unique_ptr<ProfilerDevice> make_profiler_device(cudaStream_t stream);

}  // namespace k25
