#pragma once
// Private to rmsnorm: how its backward on the GPU cuts the rows. Host code only, so that every
// build plans the same bytes.

#include <algorithm>
#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/rmsnorm/rmsnorm.h"

namespace k25::kernels {

inline constexpr int kNormVectorBytes = 16, kNormWarp = 32;
inline constexpr int kNormMaxThreads = 512;  ///< of a block that keeps rows in shared memory
inline constexpr int kNormLongThreads = 1024;

/// From the desc alone, so the bits do not depend on the GPU either.
struct RmsNormBackwardShape {
  int tiles = 0;  ///< vectors of a thread; 0: the long kernels
  int group = 0;  ///< threads of a row: a power of two up to 32, or the block
  int block = 0;
  std::int64_t partials = 0;  ///< rows of cols floats in the workspace
};

inline RmsNormBackwardShape rmsnorm_backward_shape(const RmsNormDesc& d) {
  // As many blocks as a H100 or H200 runs at a time, with 64 registers a thread.
  constexpr std::int64_t kMultiprocessors = 132;
  constexpr int kThreadsOfMultiprocessor = 1024;
  constexpr std::int64_t kLongPartials = 64;
  constexpr int kSmallBlock = 256;
  const auto pieces = [](std::int64_t n, std::int64_t of) { return (n + of - 1) / of; };
  const std::int64_t vectors = pieces(d.cols, kNormVectorBytes / dtype_bytes(d.dtype));
  if (vectors > 2 * kNormMaxThreads) {
    return {0, kNormLongThreads, kNormLongThreads, std::min(d.rows, kLongPartials)};
  }
  RmsNormBackwardShape s;
  s.tiles = vectors <= kNormMaxThreads ? 1 : 2;
  if (vectors <= kNormWarp) {
    s.group = 1;
    while (s.group < vectors) s.group *= 2;
    s.block = kSmallBlock;
  } else {
    s.group = static_cast<int>(pieces(pieces(vectors, s.tiles), kNormWarp)) * kNormWarp;
    s.block = s.group;
  }
  s.partials = std::min(pieces(d.rows, s.block / s.group),
                        kMultiprocessors * (kThreadsOfMultiprocessor / s.block));
  return s;
}

}  // namespace k25::kernels
