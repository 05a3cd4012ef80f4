#include "parallel/zero/zero_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "kernels/core/check.h"
#include "parallel/offload/file_tier.h"
#include "parallel/zero/zero_queue.h"

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
  if (!(options.offload.resident >= 0.0 && options.offload.resident <= 1.0)) {
    fail(ErrorKind::kUsage, fmt::format("offload.resident is {}; it must be between 0 and 1",
                                        options.offload.resident));
  }
  if (!(options.offload.early >= 0.0 && options.offload.early <= 1.0)) {
    fail(ErrorKind::kUsage,
         fmt::format("offload.early is {}; it must be between 0 and 1", options.offload.early));
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

// The lowest units stay on the device as long as their share allows: the next step needs their
// parameters first and their gradients come last.
std::vector<bool> choose_offloaded(const std::vector<UnitLayout>& layouts,
                                   const OffloadOptions& offload) {
  std::int64_t total = 0, kept = 0;
  for (const UnitLayout& unit : layouts) {
    if (unit.placement != Placement::kReplicated) total += unit.shard_elems;
  }
  const auto keep = static_cast<std::int64_t>(offload.resident * static_cast<double>(total));
  std::vector<bool> offloaded;
  for (const UnitLayout& unit : layouts) {
    const bool sharded = unit.placement != Placement::kReplicated && unit.shard_elems > 0;
    const bool stays = kept + unit.shard_elems <= keep;
    offloaded.push_back(offload.any() && sharded && !stays);
    if (sharded) kept += unit.shard_elems;
  }
  return offloaded;
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
  offload = options.offload;
  offloaded = choose_offloaded(layouts, offload);
  early = choose_early();

  int num_gathered = 0, num_pooled = 0;
  for (int u = 0; u < static_cast<int>(layouts.size()); ++u) {
    const UnitLayout& unit = at(layouts, u);
    num_gathered += resident(u) ? 0 : 1;
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

// The highest units, whose gradients come first. What is not trained would have to be copied.
std::vector<bool> ZeroShape::choose_early() const {
  const auto elems = [&](int u) { return updated_on_host(u) ? at(layouts, u).shard_elems : 0; };
  const int n = static_cast<int>(layouts.size());
  std::int64_t total = 0, chosen = 0;
  for (int u = 0; u < n; ++u) total += elems(u);
  const auto room = static_cast<std::int64_t>(offload.early * static_cast<double>(total));
  std::vector<bool> result(layouts.size(), false);
  for (int u = n - 1; u >= 0; --u) {
    const std::vector<ParameterSpec>& parameters = at(layouts, u).parameters;
    const bool whole = std::none_of(parameters.begin(), parameters.end(),
                                    [](const ParameterSpec& p) { return p.frozen; });
    if (elems(u) == 0 || !whole || moments_on_nvme(u) || chosen + elems(u) > room) continue;
    result[static_cast<std::size_t>(u)] = true;
    chosen += elems(u);
  }
  return result;
}

bool ZeroShape::masters_on_host(int unit) const {
  return offloaded[static_cast<std::size_t>(unit)];
}

bool ZeroShape::updated_on_host(int unit) const {
  return masters_on_host(unit) && offload.optimizer == Place::kHost;
}

bool ZeroShape::moments_on_nvme(int unit) const {
  return updated_on_host(unit) && !offload.nvme.empty() && trainable(at(layouts, unit));
}

// No larger than the largest shard: a small model moves little.
std::int64_t ZeroShape::nvme_chunk() const {
  std::int64_t largest = 0;
  for (int u = 0; u < static_cast<int>(layouts.size()); ++u) {
    if (moments_on_nvme(u)) largest = std::max(largest, at(layouts, u).shard_elems);
  }
  return std::min(kOffloadChunk,
                  align_up(largest, FileTier::kGranule.n / dtype_bytes(DType::kFloat32)));
}

std::vector<std::int64_t> ZeroShape::nvme_chunks() const {
  const std::int64_t chunk = nvme_chunk();
  std::vector<std::int64_t> first{0};
  for (int u = 0; u < static_cast<int>(layouts.size()); ++u) {
    const std::int64_t n = moments_on_nvme(u) ? at(layouts, u).shard_elems : 0;
    first.push_back(first.back() + (n > 0 ? (n + chunk - 1) / chunk : 0));
  }
  return first;
}

Bytes ZeroShape::nvme_bytes() const {
  return bytes_of(Elems{nvme_chunks().back() * 2 * nvme_chunk()}, DType::kFloat32);
}

bool ZeroShape::copy_on_device(int unit) const {
  return masters_on_host(unit) && offload.params == Place::kDevice;
}

bool ZeroShape::copy_on_host(int unit) const {
  return masters_on_host(unit) && offload.params == Place::kHost;
}

bool ZeroShape::resident(int unit) const {
  const UnitLayout& layout = at(layouts, unit);
  if (layout.placement == Placement::kReplicated || layout.padded() == 0) return true;
  if (shards > 1) return false;
  return masters_on_host(unit) ? copy_on_device(unit) : layout.compute == DType::kFloat32;
}

bool ZeroShape::trainable(const UnitLayout& unit) {
  return std::any_of(unit.parameters.begin(), unit.parameters.end(),
                     [](const ParameterSpec& p) { return !p.frozen && p.numel() > 0; });
}

bool ZeroShape::pooled(const UnitLayout& unit) const {
  return gradient_pool > 0 && trainable(unit) && unit.placement != Placement::kReplicated;
}

ZeroMemory::ZeroMemory(const ZeroShape& shape) { carve(shape); }

ZeroMemory::ZeroMemory(const ZeroShape& shape, Allocator& allocator, Allocator* host) {
  const ZeroPlan plan = ZeroMemory(shape).plan();
  masters_ = Arena(plan.masters, allocator, "masters");
  moments_ = Arena(plan.moments, allocator, "moments");
  shard_gradients_ = Arena(plan.shard_gradients, allocator, "shard gradients");
  gathered_ = Arena(plan.gathered, allocator, "gathered parameters");
  unit_gradients_ = Arena(plan.unit_gradients, allocator, "unit gradients");
  scratch_ = Arena(plan.reduction_scratch, allocator, "reduction scratch");
  replicated_ = Arena(plan.replicated, allocator, "replicated state");
  shard_copies_ = Arena(plan.shard_copies, allocator, "parameters' shards");
  offload_scratch_ = Arena(plan.offload_scratch, allocator, "offload buffers");
  if (plan.host.total().n > 0) {
    K25_CHECK(host != nullptr, "a GPU and offloaded state need an allocator of host memory");
    host_masters_ = Arena(plan.host.masters, *host, "masters");
    host_moments_ = Arena(plan.host.moments, *host, "moments");
    host_gradients_ = Arena(plan.host.gradients, *host, "shard gradients");
    host_copies_ = Arena(plan.host.shard_copies, *host, "parameters' shards");
    staging_ = Arena(plan.host.staging, *host, "offload buffers");
    host_scratch_ = Arena(plan.host.reduction_scratch, *host, "reduction scratch");
  }
  carve(shape);
}

ZeroPlan ZeroMemory::plan() const {
  return {.masters = masters_.peak(),
          .moments = moments_.peak(),
          .shard_gradients = shard_gradients_.peak(),
          .gathered = gathered_.peak(),
          .unit_gradients = unit_gradients_.peak(),
          .reduction_scratch = scratch_.peak(),
          .replicated = replicated_.peak(),
          .shard_copies = shard_copies_.peak(),
          .offload_scratch = offload_scratch_.peak(),
          .host = {.masters = host_masters_.peak(),
                   .moments = host_moments_.peak(),
                   .gradients = host_gradients_.peak(),
                   .shard_copies = host_copies_.peak(),
                   .staging = staging_.peak(),
                   .reduction_scratch = host_scratch_.peak()},
          .nvme = nvme_};
}

void ZeroMemory::carve(const ZeroShape& shape) {
  carve_state(shape);
  carve_gathered(shape);
  carve_gradients(shape);
  carve_offload(shape);
  carve_nvme(shape);
}

void ZeroMemory::carve_state(const ZeroShape& shape) {
  for (int u = 0; u < static_cast<int>(shape.layouts.size()); ++u) {
    const UnitLayout& unit = at(shape.layouts, u);
    const bool whole = unit.placement == Placement::kReplicated;
    const std::int64_t n = whole ? unit.padded() : unit.shard_elems;
    Arena& of_masters = shape.masters_on_host(u) ? host_masters_ : whole ? replicated_ : masters_;
    Arena& of_moments = shape.updated_on_host(u) ? host_moments_ : whole ? replicated_ : moments_;
    masters.push_back(of_masters.take(DType::kFloat32, {n}));
    const bool in_memory = !shape.moments_on_nvme(u);
    ms.push_back(in_memory ? of_moments.take(DType::kFloat32, {n}) : Tensor{});
    vs.push_back(in_memory ? of_moments.take(DType::kFloat32, {n}) : Tensor{});
    shard_gradients.push_back((whole ? replicated_ : shard_gradients_).take(DType::kFloat32, {n}));
  }
}

void ZeroMemory::carve_gathered(const ZeroShape& shape) {
  std::int64_t largest = 0;
  for (int u = 0; u < static_cast<int>(shape.layouts.size()); ++u) {
    const UnitLayout& unit = at(shape.layouts, u);
    if (shape.resident(u)) continue;
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
  const std::int64_t looks =
      shape.in_place ? 0 : trained * (shape.micro_batches / shape.per_reduction);
  finite_marks = scratch_.take(DType::kInt64, {looks});
  if (shape.device == Device::kCuda) host_marks = host_scratch_.take(DType::kInt64, {looks});
}

void ZeroMemory::carve_offload(const ZeroShape& shape) {
  bool staged = false, visiting = false;
  for (int u = 0; u < static_cast<int>(shape.layouts.size()); ++u) {
    const UnitLayout& unit = at(shape.layouts, u);
    shard_copies.emplace_back();
    host_gradients.emplace_back();
    for (std::vector<Tensor>* next : {&next_masters, &next_ms, &next_vs}) {
      next->emplace_back();
      if (shape.early[static_cast<std::size_t>(u)]) {
        next->back() = staging_.take(DType::kFloat32, {unit.shard_elems});
      }
    }
    if (!shape.masters_on_host(u)) continue;
    const bool narrow = unit.compute != DType::kFloat32;
    staged = staged || (narrow && shape.updated_on_host(u) && shape.copy_on_device(u));
    if (shape.copy_on_device(u)) {
      shard_copies.back() = shard_copies_.take(unit.compute, {unit.shard_elems});
    } else {
      shard_copies.back() =
          narrow ? host_copies_.take(unit.compute, {unit.shard_elems}) : at(masters, u);
    }
    if (!ZeroShape::trainable(unit)) continue;
    if (shape.updated_on_host(u)) {
      host_gradients.back() = host_gradients_.take(DType::kFloat32, {unit.shard_elems});
    } else {
      visiting = true;
    }
  }
  for (int i = 0; staged && i < kStagingChunks; ++i) {
    staging.push_back(staging_.take(DType::kBFloat16, {kOffloadChunk}));
  }
  if (visiting) {
    chunk = offload_scratch_.take(DType::kFloat32, {kOffloadChunk});
    chunk_copy = offload_scratch_.take(DType::kBFloat16, {kOffloadChunk});
  }
}

void ZeroMemory::carve_nvme(const ZeroShape& shape) {
  const std::int64_t elems = shape.nvme_chunk();
  if (elems == 0) return;
  nvme_ = shape.nvme_bytes();
  const std::int64_t room = FileTier::kGranule.n / dtype_bytes(DType::kFloat32);
  nvme_window = staging_.take(DType::kFloat32, {kNvmeSlots * 2 * elems + room});
}

}  // namespace k25::parallel
