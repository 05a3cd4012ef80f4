#pragma once
// A unit: the parameters of one block with one placement, in one flat buffer (ZeRO-3's grain).
//
// Layout of a unit's flat buffer, in elements: parameters in order, each starting at a multiple of
// kParameterAlignment; the end is padded so that `shards` equal contiguous ranges of whole
// 4096-element chunks result. A replicated unit, which every rank holds whole, is cut into ranges
// of whole vectors instead and padded to whole chunks: its size hardly grows with the ranks. Gaps
// and padding hold zeros for ever.

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/core/dtype.h"
#include "parallel/parameter.h"

namespace k25::parallel {

inline constexpr std::int64_t kParameterAlignment = 64;

struct UnitSpec {
  std::string name;  ///< "layers.3", "embedding", "replicated"
  Placement placement = Placement::kSharded;
  std::vector<ParameterSpec> parameters;  ///< none of them tied (a tied one has no storage)
};

struct UnitLayout {
  std::string name;
  Placement placement = Placement::kSharded;
  DType compute = DType::kFloat32;  ///< dtype of gathered parameters: fp32 or bf16
  std::vector<ParameterSpec> parameters;
  std::vector<std::int64_t> offsets;  ///< of each parameter
  std::int64_t numel = 0;             ///< end of the last parameter
  std::int64_t shards = 1;            ///< ranges the buffer is cut into for reduction and storage
  std::int64_t shard_elems = 0;       ///< 0 only for a unit without elements
  /// Of the ranges that statistics and checkpoints give to the ranks: whole chunks, and for a
  /// sharded unit its shards. The last ranks' may end early, or be empty.
  std::int64_t owned_elems = 0;
  std::int64_t padded() const;  ///< elements of the whole buffer, a multiple of 4096
};

/// A replicated unit is always fp32 (it is the keep list) and is cut for the reduction all the
/// same.
UnitLayout make_layout(const UnitSpec& unit, std::int64_t shards, DType compute);

}  // namespace k25::parallel
