#pragma once
// Private to embedding's backward: for every vocabulary row that occurs, the positions of its
// tokens.
//
// The lists are made by counting:
//   count     tokens of each row
//   allocate  a place for each row that has any: a Bucket and a range of `position`
//   fill      the positions of its tokens, in any order
//   order     sorts the ranges of rows with many tokens
// Integer atomics decide where a range lies and how it is filled, never the order of a sum: who
// reads a range of few sorts it first.

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/embedding/embedding.h"
#include "kernels/embedding/embedding_list_layout.h"

namespace k25::kernels {

struct alignas(16) Bucket {
  std::int32_t row, begin, count, unused;
};
static_assert(sizeof(Bucket) == kBucketBytes);

/// The parts of the workspace; all of them 16-byte aligned.
struct Lists {
  unsigned long long* totals;  ///< [0] few in the upper half, positions in the lower; [1] many
  std::int32_t* count;         ///< [V]
  std::int32_t* cursor;        ///< [V] where the next position of a row goes
  Bucket* few;                 ///< [min(N, V)] rows of at most kManyTokens tokens
  Bucket* many;                ///< [N / kManyTokens] the others
  std::int32_t* position;      ///< [N]
  std::int64_t zeroed_bytes;   ///< totals and count, at the start
};

__device__ __forceinline__ std::int64_t num_few(const Lists& lists) {
  return static_cast<std::int64_t>(lists.totals[0] >> 32);
}
__device__ __forceinline__ std::int64_t num_many(const Lists& lists) {
  return static_cast<std::int64_t>(lists.totals[1]);
}

__device__ __forceinline__ bool in_vocabulary(std::int32_t token, std::int64_t vocab) {
  return token >= 0 && token < vocab;
}

/// Fits the lists into the workspace.
Lists embedding_lists(const EmbeddingDesc& desc, void* workspace);
/// Enqueues the kernels that fill them.
void embedding_make_lists(Context& ctx, const EmbeddingDesc& desc, const std::int32_t* token,
                          const Lists& lists);

}  // namespace k25::kernels
