#pragma once
// The mesh of ranks: replicate x expert x context x shard, shard innermost. All axes exist from the
// start; an axis of size 1 costs nothing. (`tensor` is a reserved name.)
//
//   rank = ((replicate * experts + expert) * contexts + context) * shards + shard
//   data ranks = replicate x shard x expert: ranks that read different samples.

#include <memory>

#include "parallel/comm/communicator.h"
#include "parallel/comm/cuda_backend.h"
#include "parallel/comm/world.h"

namespace k25::parallel {

struct MeshShape {
  int replicate = 1, shard = 1, expert = 1, context = 1;
  int size() const { return replicate * shard * expert * context; }
};

class Mesh {
 public:
  /// Collective. Throws kUsage naming all five numbers when shape.size() != world.size(). With a
  /// link the communicators take CUDA streams too.
  Mesh(World& world, const MeshShape& shape, const std::shared_ptr<CudaLink>& link = nullptr);

  const MeshShape& shape() const { return shape_; }
  const MeshShape& coordinate() const { return coordinate_; }  ///< this rank's place, 0-based
  World& world() const { return world_; }

  /// Ranks that hold the pieces of a sharded unit: shard x expert x context.
  Communicator& shard_comm() const { return *shard_comm_; }
  /// Ranks that read different samples: replicate x expert x shard.
  Communicator& data_comm() const { return *data_comm_; }
  /// Blocks the host until what `context`'s stream holds is done; at once on the CPU. Throws
  /// kCommunication when a collective before it failed.
  void wait(const Context& context) const;

  /// Null on the CPU.
  CudaLink* link() const { return link_.get(); }

  int data_rank() const { return data_comm_->rank(); }
  int data_ranks() const { return data_comm_->size(); }

 private:
  World& world_;
  MeshShape shape_, coordinate_;
  std::shared_ptr<CudaLink> link_;  ///< null on the CPU
  std::unique_ptr<Communicator> shard_comm_, data_comm_;
};

}  // namespace k25::parallel
