#pragma once
// The mesh of ranks: replicate x expert x context x shard, shard innermost. All axes exist from the
// start; an axis of size 1 costs nothing. (`tensor` is a reserved name.)
//
//   rank = ((replicate * experts + expert) * contexts + context) * shards + shard
//   data ranks = replicate x shard x expert: ranks that read different samples.

#include <memory>

#include "parallel/comm/communicator.h"
#include "parallel/comm/world.h"

namespace k25::parallel {

struct MeshShape {
  int replicate = 1, shard = 1, expert = 1, context = 1;
  int size() const { return replicate * shard * expert * context; }
};

class Mesh {
 public:
  /// Collective. Throws kUsage naming all five numbers when shape.size() != world.size().
  Mesh(World& world, const MeshShape& shape);

  const MeshShape& shape() const { return shape_; }
  const MeshShape& coordinate() const { return coordinate_; }  ///< this rank's place, 0-based
  World& world() const { return world_; }

  /// Ranks that hold the pieces of a sharded unit: shard x expert x context.
  Communicator& shard_comm() const { return *shard_comm_; }
  /// Ranks that read different samples: replicate x expert x shard.
  Communicator& data_comm() const { return *data_comm_; }
  int data_rank() const { return data_comm_->rank(); }
  int data_ranks() const { return data_comm_->size(); }

 private:
  World& world_;
  MeshShape shape_, coordinate_;
  std::unique_ptr<Communicator> shard_comm_, data_comm_;
};

}  // namespace k25::parallel
