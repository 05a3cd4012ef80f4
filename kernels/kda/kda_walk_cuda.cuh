#pragma once
// Private to kda's CUDA sources: documents of a sequence, and states outside the scratch.

#include "kernels/kda/kda_chunk_cuda.cuh"

namespace k25::kernels::kda_cuda {

/// End of the document of `s` that begins at t, bounded so that the walk goes on whatever it says.
__device__ __forceinline__ std::int64_t document_end(const SequenceView& v, const SequenceSpan& s,
                                                     std::int64_t t) {
  if (v.doc_end == nullptr) return s.end;
  return cuda_sequences::bounded(v.doc_end[s.b * v.doc_end_stride + t], t + 1, s.end);
}
/// Beginning of the document of `s` that ends at t.
__device__ __forceinline__ std::int64_t document_begin(const SequenceView& v, const SequenceSpan& s,
                                                       std::int64_t t) {
  if (v.doc_begin == nullptr) return s.first;
  return cuda_sequences::bounded(v.doc_begin[s.b * v.doc_begin_stride + t - 1], s.first, t - 1);
}

/// Where the state of value head m at token t of row b, an interior chunk boundary, is kept. Two
/// boundaries of a row are never closer than a chunk, and the first is not below kRows.
__device__ __forceinline__ std::int64_t kept_offset(const KdaSizes& s, std::int64_t b,
                                                    std::int64_t t, std::int64_t m) {
  const std::int64_t boundary = t / kRows - 1;
  return ((b * s.boundaries + boundary) * s.value_heads + m) * s.key_dim * s.value_dim;
}

/// The columns [col, col + V) of a state, or zeros where it is absent, to [K, V]. Begins and ends
/// with a barrier.
template <int K, int V>
__device__ __forceinline__ void load_state(const KdaStates<const float>& x, std::int64_t s,
                                           std::int64_t m, int col, float* state) {
  __syncthreads();
  const float* const from = x.data == nullptr ? nullptr : state_at(x, s, 0, m) + col;
  for_elements<V>(K, [&](int d, int e) {
    state[d * V + e] = from == nullptr ? 0.f : from[d * x.row_stride + e];
  });
  __syncthreads();
}

}  // namespace k25::kernels::kda_cuda
