#include "parallel/zero/zero_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "kernels/core/check.h"

namespace k25::parallel {
namespace {

void check_options(const MeshShape& mesh, const ZeroOptions& options, int data_ranks) {
  if (mesh.expert != 1 || mesh.context != 1) {
    fail(ErrorKind::kUsage,
         fmt::format("mesh.expert is {} and mesh.context {}; sharding over these "
                     "axes is not built yet, set both to 1",
                     mesh.expert, mesh.context));
  }
  if (options.slots < 1 || options.slots % data_ranks != 0) {
    fail(ErrorKind::kUsage,
         fmt::format("reduce.slots is {}; it must be a positive multiple of the {} data ranks "
                     "(mesh.replicate {} x mesh.shard {})",
                     options.slots, data_ranks, mesh.replicate, mesh.shard));
  }
  if (options.micro_batches_per_slot < 1) {
    fail(ErrorKind::kUsage, fmt::format("{} micro-batches per slot; at least 1 is needed",
                                        options.micro_batches_per_slot));
  }
  if (options.prefetch < 0) {
    fail(ErrorKind::kUsage,
         fmt::format("zero.prefetch is {}; it must be 0 or more", options.prefetch));
  }
  if (options.open_gradients < 0) {
    fail(ErrorKind::kInternal, fmt::format("open_gradients is {}", options.open_gradients));
  }
}

void check_names(const std::vector<UnitSpec>& units) {
  std::set<std::string> seen;
  for (const UnitSpec& unit : units) {
    if (!seen.insert(unit.name).second) {
      fail(ErrorKind::kInternal, fmt::format("two units are named {}", unit.name));
    }
  }
}

std::int64_t micro_batches_per_reduction(const ZeroOptions& options, std::int64_t micro_batches) {
  if (options.mode == ReduceMode::kOrdered) return options.micro_batches_per_slot;
  return options.reduce_after == ReduceAfter::kStep ? micro_batches : 1;
}

}  // namespace

ZeroShape::ZeroShape(const std::vector<UnitSpec>& units, const MeshShape& mesh,
                     const ZeroOptions& options)
    : shards(mesh.shard), data_ranks(mesh.replicate * mesh.shard) {
  check_options(mesh, options, data_ranks);
  check_names(units);
  for (const UnitSpec& unit : units) layouts.push_back(make_layout(unit, shards, options.compute));

  micro_batches = options.slots / data_ranks * options.micro_batches_per_slot;
  per_reduction = micro_batches_per_reduction(options, micro_batches);
  ordered = options.mode == ReduceMode::kOrdered;
  in_place = ordered && data_ranks == 1 && options.slots == 1;
  device = options.device;

  int num_gathered = 0, num_pooled = 0;
  for (const UnitLayout& unit : layouts) {
    num_gathered += resident(unit) ? 0 : 1;
    const bool shared = trainable(unit) && unit.placement != Placement::kReplicated;
    num_pooled += shared ? 1 : 0;
  }
  if (options.reshard_after == ReshardAfter::kForward) {
    gather_pool = std::min(1 + options.prefetch, num_gathered);
  }
  // Two, so that one is reduced while the next is computed.
  if (per_reduction == 1 && !in_place)
    gradient_pool = std::min(2 + options.open_gradients, num_pooled);
}

bool ZeroShape::resident(const UnitLayout& unit) const {
  return unit.placement == Placement::kReplicated || unit.padded() == 0 ||
         (shards == 1 && unit.compute == DType::kFloat32);
}

bool ZeroShape::trainable(const UnitLayout& unit) {
  return std::any_of(unit.parameters.begin(), unit.parameters.end(),
                     [](const ParameterSpec& p) { return !p.frozen && p.numel() > 0; });
}

bool ZeroShape::pooled(const UnitLayout& unit) const {
  return gradient_pool > 0 && trainable(unit) && unit.placement != Placement::kReplicated;
}

ZeroMemory::ZeroMemory(const ZeroShape& shape) { carve(shape); }

ZeroMemory::ZeroMemory(const ZeroShape& shape, Allocator& allocator) {
  const ZeroPlan plan = ZeroMemory(shape).plan();
  masters_ = Arena(plan.masters, allocator, "masters");
  moments_ = Arena(plan.moments, allocator, "moments");
  shard_gradients_ = Arena(plan.shard_gradients, allocator, "shard gradients");
  gathered_ = Arena(plan.gathered, allocator, "gathered parameters");
  unit_gradients_ = Arena(plan.unit_gradients, allocator, "unit gradients");
  scratch_ = Arena(plan.reduction_scratch, allocator, "reduction scratch");
  replicated_ = Arena(plan.replicated, allocator, "replicated state");
  carve(shape);
}

ZeroPlan ZeroMemory::plan() const {
  return {.masters = masters_.peak(),
          .moments = moments_.peak(),
          .shard_gradients = shard_gradients_.peak(),
          .gathered = gathered_.peak(),
          .unit_gradients = unit_gradients_.peak(),
          .reduction_scratch = scratch_.peak(),
          .replicated = replicated_.peak()};
}

void ZeroMemory::carve(const ZeroShape& shape) {
  carve_state(shape);
  carve_gathered(shape);
  carve_gradients(shape);
}

void ZeroMemory::carve_state(const ZeroShape& shape) {
  for (const UnitLayout& unit : shape.layouts) {
    const bool whole = unit.placement == Placement::kReplicated;
    const std::int64_t n = whole ? unit.padded() : unit.shard_elems;
    masters.push_back((whole ? replicated_ : masters_).take(DType::kFloat32, {n}));
    ms.push_back((whole ? replicated_ : moments_).take(DType::kFloat32, {n}));
    vs.push_back((whole ? replicated_ : moments_).take(DType::kFloat32, {n}));
    shard_gradients.push_back((whole ? replicated_ : shard_gradients_).take(DType::kFloat32, {n}));
  }
}

void ZeroMemory::carve_gathered(const ZeroShape& shape) {
  std::int64_t largest = 0;
  for (const UnitLayout& unit : shape.layouts) {
    if (shape.resident(unit)) continue;
    const std::int64_t bytes = unit.padded() * dtype_bytes(unit.compute);
    largest = std::max(largest, bytes);
    if (shape.gather_pool == 0) gathered.push_back(gathered_.take(DType::kUInt8, {bytes}));
  }
  for (int i = 0; i < shape.gather_pool; ++i) {
    gathered.push_back(gathered_.take(DType::kUInt8, {largest}));
  }
}

void ZeroMemory::carve_gradients(const ZeroShape& shape) {
  std::int64_t largest_pooled = 0, largest_slice = 0;
  std::int64_t trained = 0;
  for (std::size_t u = 0; u < shape.layouts.size(); ++u) {
    const UnitLayout& unit = shape.layouts[u];
    own_gradients.emplace_back();
    if (!ZeroShape::trainable(unit)) continue;
    ++trained;
    if (shape.in_place) {
      own_gradients.back() = shard_gradients[u];
      continue;
    }
    largest_slice = std::max(largest_slice, unit.shard_elems);
    if (shape.pooled(unit)) {
      largest_pooled = std::max(largest_pooled, unit.padded());
    } else {
      const bool whole = unit.placement == Placement::kReplicated;
      own_gradients.back() =
          (whole ? replicated_ : unit_gradients_).take(DType::kFloat32, {unit.padded()});
    }
  }
  for (int i = 0; i < shape.gradient_pool; ++i) {
    gradients.push_back(unit_gradients_.take(DType::kFloat32, {largest_pooled}));
  }
  if (shape.ordered) {
    scratch = scratch_.take(DType::kFloat32, {shape.data_ranks * largest_slice});
  } else if (shape.device == Device::kCuda) {
    scratch = scratch_.take(DType::kFloat32, {largest_slice});
  }
  finite_marks =
      scratch_.take(DType::kInt64, {trained * (shape.micro_batches / shape.per_reduction)});
}

}  // namespace k25::parallel
