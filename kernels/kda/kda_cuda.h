#pragma once
// Private to kda: the CUDA versions, for operands that kda.cpp has checked, and what they take of
// the workspace. All sizes follow from the desc alone.

#include <algorithm>

#include "kernels/core/context.h"
#include "kernels/kda/kda_cpu.h"

namespace k25::kernels {

/// A block of forward works on so many value columns, which do not depend on each other.
inline constexpr std::int64_t kKdaSliceCols = 64;
/// Blocks with scratch of their own: two for each multiprocessor of an H200.
inline constexpr std::int64_t kKdaMostBlocks = 264;

inline bool kda_cuda_takes(std::int64_t dim) { return dim == 64 || dim == 128; }

/// `sequences` counts them all.
inline std::int64_t kda_forward_blocks(const KdaSizes& s, std::int64_t sequences) {
  return std::min(kKdaMostBlocks, sequences * s.value_heads * (s.value_dim / kKdaSliceCols));
}
inline std::int64_t kda_backward_blocks(const KdaSizes& s, std::int64_t sequences) {
  return std::min(kKdaMostBlocks, sequences * s.heads);
}

/// Scratch of a block, in floats.
inline std::int64_t kda_forward_block_floats(const KdaSizes& s) {
  constexpr std::int64_t kRows = kKdaRows, kSubs = kKdaRows / kKdaSubChunk;
  const std::int64_t key = s.key_dim, value = kKdaSliceCols;
  return key * value + kRows * (6 * key + 2 * value) + 2 * kRows * kRows + (3 * kSubs + 1) * key +
         kRows;
}
inline std::int64_t kda_backward_block_floats(const KdaSizes& s) {
  constexpr std::int64_t kRows = kKdaRows, kSubs = kKdaRows / kKdaSubChunk;
  const std::int64_t key = s.key_dim, value = s.value_dim;
  return (1 + s.group) * key * value + kRows * (17 * key + 5 * value) + 6 * kRows * kRows +
         (3 * kSubs + 2) * key + kRows;
}

/// States of interior chunk boundaries, in floats: [row, boundary, value head, key, value].
inline std::int64_t kda_kept_floats(const KdaSizes& s, std::int64_t batch) {
  return batch * s.boundaries * s.value_heads * s.key_dim * s.value_dim;
}

/// A call on the GPU. `scratch` holds one piece of kda_*_block_floats for each block; backward's
/// states are in args.kept.
template <class T>
struct KdaCudaCall {
  KdaArgs<T, float> args;
  std::int64_t sequences = 0;
  float* scratch = nullptr;
};

/// Forward; without args.out.data it only brings states to args.kept.
void kda_forward_cuda(Context& ctx, const KdaCudaCall<float>& call);
void kda_forward_cuda(Context& ctx, const KdaCudaCall<BFloat16>& call);
void kda_backward_cuda(Context& ctx, const KdaCudaCall<float>& call);
void kda_backward_cuda(Context& ctx, const KdaCudaCall<BFloat16>& call);

}  // namespace k25::kernels
