#pragma once
// What every command that computes needs, built once and passed down. Members are destroyed in
// reverse order, so whatever uses the world goes before it.

#include <memory>
#include <string>
#include <vector>

#include "kernels/core/buffer.h"
#include "kernels/core/context.h"
#include "kernels/core/thread_pool.h"
#include "parallel/mesh.h"
#include "trainer/config/config.h"

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
  Allocator& allocator() { return allocator_; }
  bool is_root() const { return world_.rank() == 0; }

  /// CPU instruction set, threads, compiler and library versions: equal fingerprints give equal
  /// bits.
  std::string fingerprint() const;

 private:
  parallel::World& world_;
  parallel::Mesh mesh_;
  HostAllocator allocator_;
  std::unique_ptr<ThreadPool> threads_;
  Context context_;
};

}  // namespace k25::trainer
