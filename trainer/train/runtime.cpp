#include "trainer/train/runtime.h"

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "kernels/gemm/eigen_cache.h"
#include "parallel/comm/agree.h"
#include "parallel/comm/cuda_backend.h"
#include "trainer/train/memory_plan.h"

namespace k25::trainer {
namespace {

void warn_about_openmp(std::vector<std::string>& warnings) {
  for (const char* name : {"OMP_NUM_THREADS", "OMP_PROC_BIND"}) {
    if (const char* value = std::getenv(name)) {
      warnings.push_back(std::string(name) + "=" + value +
                         " has no effect here: threads are set by run.cpu_threads");
    }
  }
}

int thread_count(const Config& config, std::vector<std::string>& warnings) {
  const auto wanted = static_cast<int>(config.run.cpu_threads);
  const int cores = available_cores();
  if (wanted <= cores) return wanted;
  warnings.push_back("the affinity mask has " + std::to_string(cores) +
                     (cores == 1 ? " core" : " cores") + ", cpu_threads reduced " +
                     std::to_string(wanted) + "->" + std::to_string(cores) +
                     "; use mpirun --bind-to none or --map-by slot:PE=" + std::to_string(wanted));
  return cores;
}

bool wants_gpu(const Config& config) {
  if (config.train.device == DeviceChoice::kCpu) return false;
  if (config.train.device == DeviceChoice::kCuda || cuda_device_count() > 0) return true;
  return false;
}

/// Collective. Null: this job runs on the CPU.
std::unique_ptr<CudaDevice> open_device(parallel::World& world, const Config& config) {
  std::unique_ptr<CudaDevice> device;
  std::int64_t gpus = wants_gpu(config) ? 1 : 0;
  parallel::collectively(world.comm(), "device", [&] {
    if (gpus == 0) return;
    if constexpr (!kWithCuda) {
      fail(ErrorKind::kUsage,
           "train.device is cuda, but this k25 was built without CUDA; configure with the preset "
           "h200 or cuda-portable, or set train.device: cpu");
    } else {
      const int count = cuda_device_count();
      if (world.local_size() > count) {
        fail(ErrorKind::kUsage,
             "host " + world.peer(world.rank()).host + " has " + std::to_string(count) +
                 (count == 1 ? " GPU" : " GPUs") + " for " + std::to_string(world.local_size()) +
                 " ranks; start at most one rank for each GPU, or set train.device: cpu");
      }
      device = std::make_unique<CudaDevice>(world.local_rank());
    }
  });
  // With `auto` every rank must have come to the same answer.
  world.comm()
      .all_reduce_small({.name = "device"},
                        {.integers = &gpus, .count = 1, .op = parallel::ReduceOp::kSum})
      .wait();
  if (gpus != 0 && gpus != world.size()) {
    throw parallel::AgreedError(ErrorKind::kUsage,
                                "train.device is auto, and only " + std::to_string(gpus) + " of " +
                                    std::to_string(world.size()) +
                                    " ranks have a GPU; set it to cpu or cuda",
                                0);
  }
  return device;
}

std::unique_ptr<Allocator> device_allocator(const CudaDevice* device) {
  if constexpr (kWithCuda) {
    if (device != nullptr) return std::make_unique<DeviceAllocator>(device->index());
  }
  return nullptr;
}

std::unique_ptr<Allocator> pinned_allocator(const CudaDevice* device) {
  if constexpr (kWithCuda) {
    if (device != nullptr) return std::make_unique<PinnedAllocator>();
  }
  return nullptr;
}

std::shared_ptr<parallel::CudaLink> link_for(parallel::World& world, const CudaDevice* device) {
  if constexpr (kWithCuda) {
    if (device != nullptr) return parallel::make_cuda_link(world);
  }
  return nullptr;
}

}  // namespace

Runtime::Runtime(parallel::World& world, const Config& config, std::vector<std::string>& warnings)
    : world_(world),
      device_(open_device(world, config)),
      device_allocator_(device_allocator(device_.get())),
      pinned_(pinned_allocator(device_.get())),
      link_(link_for(world, device_.get())),
      mesh_(world, config.mesh, link_) {
  warn_about_openmp(warnings);
  const int threads = thread_count(config, warnings);
  if (threads > 1) threads_ = std::make_unique<ThreadPool>(threads);
  parallel::collectively(world.comm(), "instruction set", [&] { context_.isa = detect_cpu_isa(); });
  context_.threads = threads_.get();
  if constexpr (kWithCuda) {
    if (device_ == nullptr) return;
    device_->attach(context_);
    context_.gemm_algorithms = &gemm_algorithms_;
    context_.attention_engines = &attention_engines_;
  }
}

std::string Runtime::device_name() const {
  if constexpr (kWithCuda) {
    if (device_ != nullptr) return device_->name();
  }
  return "cpu";
}

std::string Runtime::device_bus() const {
  if constexpr (kWithCuda) {
    if (device_ != nullptr) return device_->bus();
  }
  return "";
}

std::optional<Bytes> Runtime::device_memory() const {
  if constexpr (kWithCuda) {
    if (device_ != nullptr) return device_->total_memory();
  }
  return std::nullopt;
}

Bytes Runtime::memory_budget() const {
  if constexpr (kWithCuda) {
    if (device_ != nullptr) return device_->free_memory();
  }
  return host_memory_budget(world_.local_size());
}

Bytes Runtime::host_budget() const { return host_memory_budget(world_.local_size()); }

int Runtime::offload_threads(const Config& config) const {
  if (config.offload.threads > 0) return config.offload.threads;
  // An affinity mask of this rank's own names its share already.
  const auto all = static_cast<int>(std::thread::hardware_concurrency());
  const int cores = available_cores();
  const int share = cores < all ? cores : cores / world_.local_size();
  return std::max(1, share - 1);
}

Plans Runtime::plans() const {
  Plans plans;
  plans.host = {.cpu_isa = std::string(cpu_isa_name(context_.isa)),
                .threads = context_.threads == nullptr ? 1 : context_.threads->num_threads(),
                .eigen_l1_bytes = kernels::kEigenL1CacheBytes,
                .compiler = __VERSION__};
  if constexpr (kWithCuda) {
    if (device_ != nullptr) plans.gpu = device_->facts();
  }
  plans.gemm = gemm_algorithms_.to_strings();
  plans.attention = attention_engines_.to_strings();
  return plans;
}

void Runtime::use(const Plans& plans) {
  gemm_algorithms_.load(plans.gemm);
  attention_engines_.load(plans.attention);
}

std::string Runtime::fingerprint() const {
  const int threads = context_.threads == nullptr ? 1 : context_.threads->num_threads();
  std::string gpu;
  if constexpr (kWithCuda) {
    if (device_ != nullptr) gpu = "gpu=" + device_->fingerprint() + " ";
  }
  const std::string text = gpu + "cpu=" + std::string(cpu_isa_name(context_.isa)) +
                           " threads=" + std::to_string(threads) + " compiler=" + __VERSION__;
  const bool chosen = gpu.empty() || gemm_algorithms_.size() > 0;
  constexpr std::size_t kDigits = 16;
  return chosen ? text + " plans=" + plans_digest(plans()).substr(0, kDigits) : text;
}

}  // namespace k25::trainer
