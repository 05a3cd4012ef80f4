#include "trainer/train/runtime.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "kernels/gemm/eigen_cache.h"
#include "parallel/comm/agree.h"
#include "parallel/comm/cuda_backend.h"
#include "parallel/placement/gpu_choice.h"
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

/// Collective. The index of this rank's GPU; absent: this job runs on the CPU. Ranks that see
/// unlike or unsound GPUs throw one error on all of them, before anything is opened.
std::optional<int> choose_gpu(parallel::World& world, DeviceChoice choice) {
  if constexpr (!kWithCuda) {
    if (choice != DeviceChoice::kCuda) return std::nullopt;
    throw parallel::AgreedError(
        ErrorKind::kUsage,
        "train.device is cuda, but this k25 was built without CUDA; configure with the preset "
        "h200 or cuda-portable, or set train.device: cpu",
        0);
  } else {
    if (choice == DeviceChoice::kCpu) return std::nullopt;
    parallel::VisibleGpus mine{.host = world.peer(world.rank()).host};
    parallel::collectively(world.comm(), "device", [&] {
      if (const char* value = std::getenv("CUDA_VISIBLE_DEVICES")) mine.variable = value;
      mine.has_driver = has_cuda_driver();
      for (const CudaDeviceId& id : cuda_device_ids()) {
        mine.ids.push_back(id.bus + " (" + id.uuid + ")");
      }
    });
    const auto all = parallel::gather_visible_gpus(world.comm(), mine);
    const auto demand = choice == DeviceChoice::kCuda ? parallel::GpuDemand::kRequired
                                                      : parallel::GpuDemand::kIfThereAre;
    std::vector<int> chosen;
    try {
      chosen = parallel::choose_gpus(all, demand);
    } catch (const Error& error) {
      throw parallel::AgreedError(error.kind(), error.what(), 0);
    }
    if (chosen.empty()) return std::nullopt;
    return chosen[static_cast<std::size_t>(world.rank())];
  }
}

/// Collective. Null: this job runs on the CPU.
std::unique_ptr<CudaDevice> open_device(parallel::World& world, const Config& config) {
  std::unique_ptr<CudaDevice> device;
  const std::optional<int> index = choose_gpu(world, config.train.device);
  if constexpr (kWithCuda) {
    if (index) {
      parallel::collectively(world.comm(), "device",
                             [&] { device = std::make_unique<CudaDevice>(*index); });
    }
  }
  return device;
}

/// Collective. Nothing where no thread would be placed by it.
parallel::JobPlacement place_job(parallel::World& world, const Config& config,
                                 const std::string& gpu) {
  const bool update = config.offload.optimizer == parallel::Place::kHost;
  if (gpu.empty() && !update) return {};
  std::optional<int> threads;
  if (update) threads = static_cast<int>(config.offload.threads);
  return parallel::place_ranks(world, gpu, threads);
}

std::unique_ptr<Allocator> device_allocator(const CudaDevice* device) {
  if constexpr (kWithCuda) {
    if (device != nullptr) return std::make_unique<DeviceAllocator>(device->index());
  }
  return nullptr;
}

std::unique_ptr<Allocator> pinned_allocator(const CudaDevice* device, int numa_node) {
  if constexpr (kWithCuda) {
    if (device != nullptr) return std::make_unique<PinnedAllocator>(numa_node);
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
      placement_(place_job(world, config, device_bus())),
      device_allocator_(device_allocator(device_.get())),
      pinned_(pinned_allocator(device_.get(), placement_.mine.numa_node)),
      link_(link_for(world, device_.get())),
      mesh_(world, config.mesh, link_) {
  warn_about_openmp(warnings);
  std::ranges::copy(placement_.report.warnings, std::back_inserter(warnings));
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

void Runtime::place_update(const Config& config, parallel::OffloadOptions& offload) const {
  const std::vector<int>& cpus = placement_.mine.cpus;
  offload.threads = config.offload.threads > 0 ? config.offload.threads
                                               : std::max(1, static_cast<int>(cpus.size()));
  if (device_ != nullptr) offload.cpus = cpus;
}

std::vector<std::string> Runtime::placement_lines() const {
  return device_ == nullptr ? std::vector<std::string>{} : placement_.report.hosts;
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
