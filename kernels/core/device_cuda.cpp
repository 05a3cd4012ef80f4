#include <cuda_runtime.h>
#if K25_WITH_CUDNN
#include <cudnn.h>
#endif

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <functional>

#include "kernels/core/cuda_check.h"
#include "kernels/core/device.h"
#include "kernels/core/thread_pool.h"

namespace k25 {
namespace {

Bytes free_bytes() {
  std::size_t free = 0, total = 0;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess) return {};
  return Bytes{static_cast<std::int64_t>(free)};
}

/// Makes `device` current for its own life.
class ScopedDevice {
 public:
  explicit ScopedDevice(int device) {
    K25_CUDA_CHECK(cudaGetDevice(&before_));
    K25_CUDA_CHECK(cudaSetDevice(device));
  }
  ~ScopedDevice() { cudaSetDevice(before_); }
  ScopedDevice(const ScopedDevice&) = delete;
  ScopedDevice& operator=(const ScopedDevice&) = delete;

 private:
  int before_ = 0;
};

}  // namespace

int cuda_device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();  // no driver: the error must not meet the next launch
  return 0;
}

std::vector<CudaDeviceId> cuda_device_ids() {
  std::vector<CudaDeviceId> ids;
  for (int device = 0; device < cuda_device_count(); ++device) {
    char bus[32] = "";
    K25_CUDA_CHECK(cudaDeviceGetPCIBusId(&bus[0], static_cast<int>(sizeof bus), device));
    cudaDeviceProp properties{};
    K25_CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
    std::string uuid = "GPU-";
    for (const char byte : properties.uuid.bytes) {
      constexpr std::string_view kDigits = "0123456789abcdef";
      const auto value = static_cast<unsigned char>(byte);
      uuid += kDigits[value / 16];
      uuid += kDigits[value % 16];
    }
    ids.push_back({.bus = &bus[0], .uuid = uuid});
  }
  return ids;
}

bool has_cuda_driver() {
  int version = 0;
  return cudaDriverGetVersion(&version) == cudaSuccess && version > 0;
}

void* DeviceAllocator::do_allocate(Bytes size) {
  const ScopedDevice scope(device_);
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, static_cast<std::size_t>(size.n));
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    fail(ErrorKind::kUsage, "GPU " + std::to_string(device_) + ": no " + std::to_string(size.n) +
                                " bytes of device memory, " + std::to_string(free_bytes().n) +
                                " are free; use a smaller train.micro_batch, recompute or offload");
  }
  K25_CUDA_CHECK(error);
  K25_CUDA_CHECK(cudaMemset(data, 0, static_cast<std::size_t>(size.n)));
  K25_CUDA_CHECK(cudaDeviceSynchronize());  // the memset must not race with non-blocking streams
  return data;
}

void DeviceAllocator::do_deallocate(void* data, Bytes /*size*/) noexcept { cudaFree(data); }

namespace {

// From here on the system's own pages are taken: huge ones, which register several times faster.
constexpr std::int64_t kLargePinned = std::int64_t{32} << 20;

[[noreturn]] void fail_pinned(Bytes size) {
  cudaGetLastError();
  fail(ErrorKind::kUsage, "no " + std::to_string(size.n) +
                              " bytes of page-locked host memory; look at ulimit -l, the "
                              "container's memory limit and free memory");
}

// The first touch decides where a page lies and takes most of the time, so many threads do it.
void touch_all(char* data, std::int64_t bytes) {
  constexpr int kMostThreads = 16;
  ThreadPool threads(std::min(available_cores(), kMostThreads));
  const auto body = [data](std::int64_t begin, std::int64_t end) {
    std::fill(data + begin, data + end, char{0});
  };
  threads.parallel_for(bytes, std::int64_t{1} << 24, std::ref(body));
}

// Best effort: without it the first touch decides, as everywhere.
void prefer_node(void* data, std::size_t bytes, int numa_node) {
  constexpr std::size_t kWordBits = sizeof(unsigned long) * CHAR_BIT;
  std::array<unsigned long, 16> nodes{};
  const auto node = static_cast<std::size_t>(numa_node);
  if (numa_node < 0 || node >= nodes.size() * kWordBits) return;
  nodes[node / kWordBits] = 1UL << (node % kWordBits);
  // The kernel reads one bit less than it is told.
  syscall(SYS_mbind, data, bytes, MPOL_PREFERRED, nodes.data(), nodes.size() * kWordBits + 1, 0U);
}

void* allocate_large_pinned(Bytes size, int numa_node) {
  const auto bytes = static_cast<std::size_t>(size.n);
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) fail_pinned(size);
  madvise(data, bytes, MADV_HUGEPAGE);  // a wish
  prefer_node(data, bytes, numa_node);
  touch_all(static_cast<char*>(data), size.n);
  if (cudaHostRegister(data, bytes, cudaHostRegisterPortable) != cudaSuccess) {
    munmap(data, bytes);
    fail_pinned(size);
  }
  return data;
}

}  // namespace

void* PinnedAllocator::do_allocate(Bytes size) {
  if (size.n >= kLargePinned) return allocate_large_pinned(size, numa_node_);
  void* data = nullptr;
  const cudaError_t error =
      cudaHostAlloc(&data, static_cast<std::size_t>(size.n), cudaHostAllocPortable);
  if (error == cudaErrorMemoryAllocation) fail_pinned(size);
  K25_CUDA_CHECK(error);
  std::fill_n(static_cast<char*>(data), size.n, char{0});
  return data;
}

void PinnedAllocator::do_deallocate(void* data, Bytes size) noexcept {
  if (size.n < kLargePinned) {
    cudaFreeHost(data);
    return;
  }
  cudaHostUnregister(data);
  munmap(data, static_cast<std::size_t>(size.n));
}

CudaDevice::CudaDevice(int index) : index_(index) {
  const int count = cuda_device_count();
  if (index < 0 || index >= count) {
    fail(ErrorKind::kUsage, "GPU " + std::to_string(index) + " was asked for, this process sees " +
                                std::to_string(count) +
                                "; look at nvidia-smi and CUDA_VISIBLE_DEVICES");
  }
  K25_CUDA_CHECK(cudaSetDevice(index));
  cudaDeviceProp properties{};
  K25_CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
  name_ = properties.name;
  total_memory_ = Bytes{static_cast<std::int64_t>(properties.totalGlobalMem)};
  num_sms_ = properties.multiProcessorCount;
  K25_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  K25_CUBLAS_CHECK(cublasLtCreate(&cublaslt_));
#if K25_WITH_CUDNN
  const cudnnStatus_t status = cudnnCreate(&cudnn_);
  if (status != CUDNN_STATUS_SUCCESS) {
    cuda_failed("cudnnCreate", cudnnGetErrorString(status), std::source_location::current());
  }
  cudnnSetStream(cudnn_, stream_);
#endif
}

CudaDevice::~CudaDevice() {
#if K25_WITH_CUDNN
  cudnnDestroy(cudnn_);
#endif
  cublasLtDestroy(cublaslt_);
  cudaStreamDestroy(stream_);
}

std::string CudaDevice::bus() const {
  char bus[32] = "";
  K25_CUDA_CHECK(cudaDeviceGetPCIBusId(&bus[0], static_cast<int>(sizeof bus), index_));
  return bus;
}

Bytes CudaDevice::free_memory() const {
  const ScopedDevice scope(index_);
  return free_bytes();
}

CudaFacts CudaDevice::facts() const {
  int runtime = 0, driver = 0;
  K25_CUDA_CHECK(cudaRuntimeGetVersion(&runtime));
  K25_CUDA_CHECK(cudaDriverGetVersion(&driver));
  CudaFacts facts{.name = name_, .num_sms = num_sms_, .runtime = runtime, .driver = driver};
  facts.cublaslt = static_cast<std::int64_t>(cublasLtGetVersion());
#if K25_WITH_CUDNN
  facts.cudnn = static_cast<std::int64_t>(cudnnGetVersion());
#endif
  return facts;
}

std::string CudaDevice::fingerprint() const {
  const CudaFacts f = facts();
  const std::string text = name_ + "/" + std::to_string(num_sms_) +
                           " cuda=" + std::to_string(f.runtime) +
                           " cublaslt=" + std::to_string(f.cublaslt);
  return f.cudnn == 0 ? text : text + " cudnn=" + std::to_string(f.cudnn);
}

std::string cuda_versions() {
  const auto text = [](int version) {
    return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
  };
  int runtime = 0, driver = 0;
  K25_CUDA_CHECK(cudaRuntimeGetVersion(&runtime));
  K25_CUDA_CHECK(cudaDriverGetVersion(&driver));  // 0 without a driver
  std::string versions = "CUDA " + text(runtime) + " (driver " + text(driver) + "), cuBLASLt " +
                         std::to_string(cublasLtGetVersion());
#if K25_WITH_CUDNN
  versions += ", cuDNN " + std::to_string(cudnnGetVersion());
#endif
  return versions;
}

void CudaDevice::attach(Context& context) const {
  context.stream = stream_;
  context.cublaslt = cublaslt_;
  context.cudnn = cudnn_;
  context.num_sms = num_sms_;
}

CudaStream::CudaStream() {
  K25_CUDA_CHECK(cudaGetDevice(&device_));
  K25_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
}

CudaStream::~CudaStream() { cudaStreamDestroy(stream_); }

void CudaStream::use_on_this_thread() const { K25_CUDA_CHECK(cudaSetDevice(device_)); }

void copy_bytes(const Context& ctx, const void* from, void* to, Bytes size) {
  if (size.n == 0) return;
  K25_CUDA_CHECK(
      cudaMemcpyAsync(to, from, static_cast<std::size_t>(size.n), cudaMemcpyDefault, ctx.stream));
}

void copy_tensor(const Context& ctx, const ConstTensor& from, const Tensor& to) {
  K25_CHECK(from.dtype() == to.dtype() && from.numel() == to.numel() && from.is_contiguous() &&
                to.is_contiguous(),
            "copy of " + std::string(dtype_name(from.dtype())) + " " + shape_string(from.shape()) +
                " to " + std::string(dtype_name(to.dtype())) + " " + shape_string(to.shape()) +
                "; both must be contiguous and alike");
  copy_bytes(ctx, from.raw(), to.raw(), to.bytes());
}

void fill_bytes(const Context& ctx, void* to, std::uint8_t value, Bytes size) {
  if (size.n == 0) return;
  K25_CUDA_CHECK(cudaMemsetAsync(to, value, static_cast<std::size_t>(size.n), ctx.stream));
}

void synchronize(const Context& ctx) { K25_CUDA_CHECK(cudaStreamSynchronize(ctx.stream)); }

}  // namespace k25
