#include "parallel/zero/unit.h"

#include <fmt/format.h>

#include "kernels/core/buffer.h"
#include "kernels/core/check.h"
#include "kernels/core/tensor.h"
#include "kernels/reduce/reduce.h"

namespace k25::parallel {
namespace {

constexpr std::int64_t kVector = 4;  // elements: what kernels load at once

void check_parameter(const UnitSpec& unit, const ParameterSpec& p) {
  if (!p.tied_to.empty()) {
    fail(ErrorKind::kInternal,
         fmt::format("unit {}: parameter {} is tied to {} and has no storage; "
                     "list only {}",
                     unit.name, p.name, p.tied_to, p.tied_to));
  }
  for (const std::int64_t d : p.shape) {
    if (d < 0) {
      fail(ErrorKind::kInternal, fmt::format("unit {}: parameter {} has the shape {}; dimensions "
                                             "are not negative",
                                             unit.name, p.name, shape_string(p.shape)));
    }
  }
}

// One buffer has one dtype, so the keep list may not cut through a unit.
void check_one_dtype(const UnitSpec& unit) {
  std::string kept, others;
  for (const ParameterSpec& p : unit.parameters) {
    std::string& list = p.fp32 ? kept : others;
    list += (list.empty() ? "" : ", ") + p.name;
  }
  if (!kept.empty() && !others.empty()) {
    fail(
        ErrorKind::kInternal,
        fmt::format("unit {} mixes fp32 parameters ({}) with others ({}); put the fp32 ones into a "
                    "unit of their own",
                    unit.name, kept, others));
  }
}

DType compute_dtype(const UnitSpec& unit, DType wanted) {
  if (unit.placement == Placement::kReplicated) return DType::kFloat32;
  check_one_dtype(unit);
  return !unit.parameters.empty() && unit.parameters.front().fp32 ? DType::kFloat32 : wanted;
}

}  // namespace

std::int64_t UnitLayout::padded() const { return align_up(shards * shard_elems, kernels::kChunk); }

UnitLayout make_layout(const UnitSpec& unit, std::int64_t shards, DType compute) {
  if (shards < 1) {
    fail(ErrorKind::kInternal, fmt::format("unit {}: cut into {} shards", unit.name, shards));
  }
  if (compute != DType::kFloat32 && compute != DType::kBFloat16) {
    fail(ErrorKind::kInternal, fmt::format("unit {}: compute dtype {}; it is fp32 or bf16",
                                           unit.name, dtype_name(compute)));
  }
  UnitLayout layout;
  layout.name = unit.name;
  layout.placement = unit.placement;
  layout.compute = compute_dtype(unit, compute);
  layout.parameters = unit.parameters;
  layout.shards = shards;
  for (const ParameterSpec& p : unit.parameters) {
    check_parameter(unit, p);
    const std::int64_t offset = align_up(layout.numel, kParameterAlignment);
    layout.offsets.push_back(offset);
    // A parameter without elements moves nothing, or it could end a unit in a gap.
    if (p.numel() > 0) layout.numel = offset + p.numel();
  }
  const std::int64_t share = (layout.numel + shards - 1) / shards;
  layout.owned_elems = align_up(share, kernels::kChunk);
  layout.shard_elems =
      layout.placement == Placement::kReplicated ? align_up(share, kVector) : layout.owned_elems;
  return layout;
}

}  // namespace k25::parallel
