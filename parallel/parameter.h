#pragma once
// ParameterSpec: the one description of a parameter. Sharding, optimizer grouping, checkpoints,
// export names and audit digests all read it.

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/core/dtype.h"

namespace k25::parallel {

/// Where a parameter lives (docs/architecture.md).
enum class Placement : std::uint8_t {
  kReplicated,  ///< whole on every rank: norm gains and other small tensors
  kSharded,     ///< flat over shard x expert x context
  kExpert,      ///< whole experts over `expert`, flat over shard x context
};

enum class InitKind : std::uint8_t {
  kNormal,
  kOnes,
  kZeros,
  kLogDecay,  ///< log of a uniform number in (1, 16)
  kTimeStep,  ///< x with softplus(x) log-uniform in (0.001, 0.1)
};
struct Init {
  InitKind kind = InitKind::kNormal;
  double std = 0.02;
};

/// A logical tensor inside a fused one: rows [row_begin, row_end) of dimension 0. Random numbers,
/// export and digests work on slices; sharding on storage.
struct Slice {
  std::string name;  ///< "layers.3.attention.q"
  std::int64_t row_begin = 0, row_end = 0;
  Init init;
};

/// How the block that owns a parameter forms its gradient.
enum class GradientStart : std::uint8_t {
  kZeros,    ///< adds to zeros
  kWritten,  ///< writes every element first, whatever was there (ZeroStore::gradient_state)
};

struct ParameterSpec {
  std::string name;                 ///< "layers.3.attention.qkv"
  std::vector<std::int64_t> shape;  ///< row-major
  int layer = -1;                   ///< -1: embedding, final norm, head
  Placement placement = Placement::kSharded;
  bool fp32 = false;  ///< on the fp32 keep list: never stored in bf16
  bool decay = true;  ///< weight decay applies
  double lr_scale = 1.0;
  bool frozen = false;
  std::string tied_to;        ///< name of the parameter whose storage this one shares
  std::vector<Slice> slices;  ///< tile dimension 0; at least one
  GradientStart gradient_start = GradientStart::kZeros;

  std::int64_t numel() const {
    std::int64_t n = 1;
    for (const std::int64_t d : shape) n *= d;
    return n;
  }
};

}  // namespace k25::parallel
