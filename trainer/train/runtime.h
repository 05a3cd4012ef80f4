#pragma once
// What every command that computes needs, built once and passed down. Members are destroyed in
// reverse order, so whatever uses the world goes before it.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/attention/attention_engines.h"
#include "kernels/core/buffer.h"
#include "kernels/core/context.h"
#include "kernels/core/device.h"
#include "kernels/core/thread_pool.h"
#include "kernels/gemm/gemm_algorithms.h"
#include "parallel/mesh.h"
#include "parallel/placement/place_ranks.h"
#include "parallel/zero/zero_store.h"
#include "trainer/config/config.h"
#include "trainer/model/block.h"
#include "trainer/train/plans.h"

namespace k25::trainer {

class Runtime {
 public:
  /// Collective. `warnings` receives one line for each thing the user should know (affinity,
  /// threads).
  Runtime(parallel::World& world, const Config& config, std::vector<std::string>& warnings);

  parallel::World& world() { return world_; }
  parallel::Mesh& mesh() { return mesh_; }
  parallel::Communicator& comm() { return world_.comm(); }
  Context& context() { return context_; }
  Device device() const { return device_ == nullptr ? Device::kCpu : Device::kCuda; }
  /// Of the memory that the model lives in: host memory, or this rank's GPU.
  Allocator& allocator() { return device_ == nullptr ? host_ : *device_allocator_; }
  /// Of host memory that the model's device copies from: pinned for a GPU.
  Allocator& host_allocator() { return device_ == nullptr ? host_ : *pinned_; }
  /// "NVIDIA H200", or "cpu".
  std::string device_name() const;
  /// Of this rank's GPU, "0000:1B:00.0"; "" on the CPU.
  std::string device_bus() const;
  /// Of this rank's GPU; absent on the CPU.
  std::optional<Bytes> device_memory() const;
  /// What the plan may use where the model lives.
  Bytes memory_budget() const;
  /// What it may use beside, in host memory.
  Bytes host_budget() const;
  /// Gives an update on the host its threads, and the CPUs to bind them to: none on a run without
  /// GPUs, which may not be alone.
  void place_update(const Config& config, parallel::OffloadOptions& offload) const;
  /// One line for each host of a job on GPUs: where its ranks run.
  std::vector<std::string> placement_lines() const;
  /// Of the blocks of this run.
  RunShape shape(const Config& config) const {
    return {config.train.micro_batch, config.data.sequence, config.train.precision, device()};
  }
  bool is_root() const { return world_.rank() == 0; }

  /// The machine and the kernels that the libraries chose on it so far.
  Plans plans() const;
  /// Before the first op: the kernels in `plans`, chosen on an equal GPU, are used.
  void use(const Plans& plans);
  /// CPU instruction set, threads, compiler and library versions, and the digest of plans() once
  /// kernels are chosen: equal fingerprints give equal bits.
  std::string fingerprint() const;

 private:
  parallel::World& world_;
  // Null on the CPU.
  std::unique_ptr<CudaDevice> device_;
  parallel::JobPlacement placement_;
  std::unique_ptr<Allocator> device_allocator_, pinned_;
  std::shared_ptr<parallel::CudaLink> link_;

  parallel::Mesh mesh_;
  HostAllocator host_;
  std::unique_ptr<ThreadPool> threads_;
  kernels::GemmAlgorithms gemm_algorithms_;
  kernels::AttentionEngines attention_engines_;
  Context context_;
};

}  // namespace k25::trainer
