#include "parallel/mesh.h"

#include <fmt/format.h>

#include <utility>

#include "kernels/core/check.h"

namespace k25::parallel {
namespace {

void check_shape(const MeshShape& s, int ranks) {
  // Divided, not multiplied: four large axes would overflow.
  int rest = ranks;
  bool fits = true;
  for (const int axis : {s.replicate, s.shard, s.expert, s.context}) {
    fits = fits && axis >= 1 && rest % axis == 0;
    if (fits) rest /= axis;
  }
  if (fits && rest == 1) return;
  fail(ErrorKind::kUsage,
       fmt::format("mesh: replicate {} x shard {} x expert {} x context {} must be at least 1 each "
                   "and multiply to the number of ranks, {}",
                   s.replicate, s.shard, s.expert, s.context, ranks));
}

MeshShape coordinate_of(int rank, const MeshShape& s) {
  MeshShape c;
  c.shard = rank % s.shard;
  rank /= s.shard;
  c.context = rank % s.context;
  rank /= s.context;
  c.expert = rank % s.expert;
  c.replicate = rank / s.expert;
  return c;
}

}  // namespace

Mesh::Mesh(World& world, const MeshShape& shape, const std::shared_ptr<CudaLink>& link)
    : world_(world), shape_(shape), link_(link) {
  check_shape(shape, world.size());
  coordinate_ = coordinate_of(world.rank(), shape);
  const MeshShape& c = coordinate_;
  const int in_shard = (c.expert * shape.context + c.context) * shape.shard + c.shard;
  const int in_data = (c.replicate * shape.expert + c.expert) * shape.shard + c.shard;
  shard_comm_ = world.split(c.replicate, in_shard, "shard");
  data_comm_ = world.split(c.context, in_data, "data");
  if constexpr (kWithCuda) {
    if (link == nullptr) return;
    shard_comm_ = make_cuda_communicator(std::move(shard_comm_), link);
    data_comm_ = make_cuda_communicator(std::move(data_comm_), link);
  }
}

void Mesh::wait(const Context& context) const {
  if constexpr (kWithCuda) {
    if (link_ != nullptr) wait_for_stream(*link_, context.stream);
  }
}

}  // namespace k25::parallel
