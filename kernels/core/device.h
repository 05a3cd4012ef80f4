#pragma once
// CUDA memory, copies and handles behind types that name no CUDA header. In a build without CUDA
// cuda_device_count() is 0 and everything else is absent from the library: call it only under
// `if constexpr (kWithCuda)`.
//
// Errors  kUsage when device or pinned memory is exhausted, naming bytes asked for and free;
//         kInternal for every other error of the CUDA runtime, naming the call.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/core/buffer.h"
#include "kernels/core/context.h"
#include "kernels/core/tensor.h"

namespace k25 {

/// CUDA devices this process sees; 0 without a driver or without a CUDA build.
int cuda_device_count();
/// The devices this process sees, in their order, without touching one.
struct CudaDeviceId {
  std::string bus;   ///< "0000:1B:00.0"
  std::string uuid;  ///< "GPU-" and hexadecimal digits; parts of a GPU (MIG) differ in it alone
};
std::vector<CudaDeviceId> cuda_device_ids();
/// Whether NVIDIA's driver is loaded.
bool has_cuda_driver();
/// "CUDA 13.0 (driver 13.0), cuBLASLt 130002, cuDNN 91900".
std::string cuda_versions();

/// What the results of a device depend on; versions as the libraries number them.
struct CudaFacts {
  std::string name;  ///< "NVIDIA H200"
  int num_sms = 0;
  std::int64_t runtime = 0, driver = 0, cublaslt = 0;
  std::int64_t cudnn = 0;  ///< 0 in a build without cuDNN
};

/// Memory of one CUDA device, from cudaMalloc.
class DeviceAllocator : public Allocator {
 public:
  explicit DeviceAllocator(int device) : device_(device) {}
  Device device() const override { return Device::kCuda; }

 protected:
  void* do_allocate(Bytes size) override;
  void do_deallocate(void* data, Bytes size) noexcept override;

 private:
  int device_;
};

/// Page-locked host memory, which a device copies from and to while it computes.
class PinnedAllocator : public Allocator {
 public:
  /// Large blocks come from the memory of this NUMA node while it has some; -1: from anywhere.
  explicit PinnedAllocator(int numa_node = -1) : numa_node_(numa_node) {}
  Device device() const override { return Device::kCpu; }

 protected:
  void* do_allocate(Bytes size) override;
  void do_deallocate(void* data, Bytes size) noexcept override;

 private:
  int numa_node_;
};

/// A device made current for the calling thread, with a non-blocking stream and library handles.
/// Move-only in effect: neither copied nor moved.
class CudaDevice {
 public:
  /// Throws kUsage unless 0 <= index < cuda_device_count().
  explicit CudaDevice(int index);
  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  int index() const { return index_; }
  const std::string& name() const { return name_; }  ///< "NVIDIA H200"
  std::string bus() const;                           ///< "0000:1B:00.0"
  Bytes total_memory() const { return total_memory_; }
  Bytes free_memory() const;
  CudaFacts facts() const;
  /// Name, multiprocessors and library versions.
  std::string fingerprint() const;
  /// Fills in the CUDA members of `context`, which stay valid as long as this object lives.
  void attach(Context& context) const;

 private:
  int index_;
  std::string name_;
  Bytes total_memory_;
  int num_sms_ = 0;
  cudaStream_t stream_ = nullptr;
  cublasLtHandle_t cublaslt_ = nullptr;
  cudnnHandle_t cudnn_ = nullptr;
};

/// Another stream of the device that is current where it is made: for copies beside the
/// computation.
class CudaStream {
 public:
  CudaStream();
  ~CudaStream();
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  cudaStream_t get() const { return stream_; }
  /// Makes the stream's device current for the calling thread, which may then enqueue here.
  void use_on_this_thread() const;

 private:
  int device_ = 0;
  cudaStream_t stream_ = nullptr;
};

/// Copies `size` bytes between host and device memory in any direction, in order on ctx.stream.
/// Returns at once when the host side is pinned.
void copy_bytes(const Context& ctx, const void* from, void* to, Bytes size);
/// As copy_bytes, for two contiguous views of one dtype and element count.
void copy_tensor(const Context& ctx, const ConstTensor& from, const Tensor& to);
/// Sets bytes of device memory, in order on ctx.stream.
void fill_bytes(const Context& ctx, void* to, std::uint8_t value, Bytes size);
/// Blocks the host until everything enqueued on ctx.stream is done.
void synchronize(const Context& ctx);

}  // namespace k25
