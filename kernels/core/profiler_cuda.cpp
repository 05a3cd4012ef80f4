#include <cuda_profiler_api.h>
#include <cuda_runtime.h>
#include <nvtx3/nvToolsExt.h>

#include <vector>

#include "kernels/core/cuda_check.h"
#include "kernels/core/profiler_device.h"

namespace k25 {
namespace {

class CudaProfilerDevice final : public ProfilerDevice {
 public:
  explicit CudaProfilerDevice(cudaStream_t stream) : stream_(stream) {}
  ~CudaProfilerDevice() override {
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
  }
  CudaProfilerDevice(const CudaProfilerDevice&) = delete;
  CudaProfilerDevice& operator=(const CudaProfilerDevice&) = delete;

  void start_capture() override { K25_CUDA_CHECK(cudaProfilerStart()); }
  void stop_capture() override { K25_CUDA_CHECK(cudaProfilerStop()); }
  void push(const char* name) override { nvtxRangePushA(name); }
  void pop() override { nvtxRangePop(); }

  std::size_t mark() override {
    if (used_ == events_.size()) {
      cudaEvent_t event = nullptr;
      K25_CUDA_CHECK(cudaEventCreate(&event));
      events_.push_back(event);
    }
    K25_CUDA_CHECK(cudaEventRecord(events_[used_], stream_));
    return used_++;
  }
  void wait() override {
    if (used_ > 0) K25_CUDA_CHECK(cudaEventSynchronize(events_[used_ - 1]));
  }
  double seconds_between(std::size_t begin, std::size_t end) override {
    float milliseconds = 0.0F;
    K25_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, events_[begin], events_[end]));
    return 1e-3 * static_cast<double>(milliseconds);
  }
  void forget() override { used_ = 0; }

 private:
  cudaStream_t stream_;
  std::vector<cudaEvent_t> events_;
  std::size_t used_ = 0;
};

}  // namespace

std::unique_ptr<ProfilerDevice> make_profiler_device(cudaStream_t stream) {
  return std::make_unique<CudaProfilerDevice>(stream);
}

}  // namespace k25
