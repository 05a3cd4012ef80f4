#pragma once
// Private to CUDA sources: where the tokens of rows belong. The contents of borders in device
// memory are not checked, so everything is bounded: borders that do not fit give numbers without
// meaning, but no access outside the operands.

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/sequences/sequence_view.h"

namespace k25::kernels::cuda_sequences {

/// The document [begin, end) of a token, within the sequence s: [first, last) of row b.
struct TokenPlace {
  std::int64_t s, b, first, last, begin, end;

  __device__ __forceinline__ bool in_first_document() const { return begin == first; }
  __device__ __forceinline__ bool in_last_document() const { return end == last; }
};

__device__ __forceinline__ std::int64_t bounded(std::int64_t x, std::int64_t low,
                                                std::int64_t high) {
  return x < low ? low : x > high ? high : x;
}

/// The tokens of sequence s.
__device__ __forceinline__ SequenceSpan sequence_of(const SequenceView& v, std::int64_t s) {
  if (v.border == nullptr) return {s, s, 0, v.tokens};
  const std::int64_t first = bounded(v.border[s], 0, v.tokens);
  return {s, 0, first, bounded(v.border[s + 1], first, v.tokens)};
}

/// The place of token t of row b; `count` is the number of sequences, t lies in [0, tokens).
__device__ __forceinline__ TokenPlace place_of(const SequenceView& v, std::int64_t count,
                                               std::int64_t b, std::int64_t t) {
  TokenPlace at{b, b, 0, v.tokens, 0, v.tokens};
  if (v.border != nullptr) {
    // The last sequence that begins at or before t: those before it with the same border are empty.
    std::int64_t low = 0, high = count;
    while (high - low > 1) {
      const std::int64_t middle = (low + high) / 2;
      if (v.border[middle] <= t) {
        low = middle;
      } else {
        high = middle;
      }
    }
    at.s = low;
    at.first = at.begin = bounded(v.border[low], 0, t);
    at.last = at.end = bounded(v.border[low + 1], t + 1, v.tokens);
  } else if (v.doc_begin != nullptr) {
    at.begin = bounded(v.doc_begin[b * v.doc_begin_stride + t], 0, t);
    at.end = bounded(v.doc_end[b * v.doc_end_stride + t], t + 1, v.tokens);
  }
  return at;
}

}  // namespace k25::kernels::cuda_sequences
