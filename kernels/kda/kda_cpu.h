#pragma once
// Private to kda: what the dispatchers hand to the ISA build.

#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/core/isa.h"
#include "kernels/sequences/sequence_view.h"

namespace k25::kernels {

/// A [B, T, heads, E] view with dense E; [B, T, heads] with E left out.
template <class T>
struct KdaHeads {
  T* data = nullptr;
  std::int64_t batch_stride = 0, token_stride = 0, head_stride = 0;

  [[gnu::always_inline]] T* row(std::int64_t b, std::int64_t t, std::int64_t h) const {
    return data + b * batch_stride + t * token_stride + h * head_stride;
  }
};

/// A [S, (N,) M, K, V] view of states.
template <class A>
struct KdaStates {
  A* data = nullptr;  ///< null: absent
  std::int64_t sequence_stride = 0, entry_stride = 0, head_stride = 0, row_stride = 0;

  [[gnu::always_inline]] A* at(std::int64_t s, std::int64_t n, std::int64_t m) const {
    return data + s * sequence_stride + n * entry_stride + m * head_stride;
  }
};

/// Sizes of a call, and how scratch is padded.
struct KdaSizes {
  std::int64_t heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
  std::int64_t padded_key = 0, padded_value = 0;
  std::int64_t group = 1;       ///< value heads of a key head
  std::int64_t boundaries = 0;  ///< states kept for each row: its interior chunk boundaries at most
  bool recurrent = false;
  bool keeps_states = false;  ///< KdaKeep::kStates
};

// Not from kda.h: ISA sources may not include tensor.h. kda.cpp compares the two.
inline constexpr std::int64_t kKdaRows = 64;      ///< kKdaChunk
inline constexpr std::int64_t kKdaPad = 16;       ///< row lengths of the scratch, in elements
inline constexpr std::int64_t kKdaSubChunk = 16;  ///< rows that share a reference of their decays

/// One call, both directions. T is the storage, A the arithmetic type.
template <class T, class A>
struct KdaArgs {
  KdaSizes sizes;
  A scale = 1;

  KdaHeads<const T> q, k, v;
  KdaHeads<const A> g, beta;
  SequenceView sequences;
  KdaStates<const A> initial;
  /// [row, boundary, value head] of padded states: what forward keeps and backward reads; null in
  /// backward: recomputed into the scratch.
  A* kept = nullptr;

  KdaHeads<T> out;  ///< forward; null data in the pass that recomputes states
  KdaStates<A> final;
  KdaStates<A> checkpoint;
  const std::int32_t* checkpoint_offset = nullptr;
  std::int64_t checkpoints = 0, offset_stride = 0;

  KdaHeads<const T> dout;  ///< backward
  KdaStates<const A> dfinal;
  KdaHeads<T> dq, dk, dv;
  KdaHeads<A> dg, dbeta;
  KdaStates<A> dinitial;
};

/// Scratch of one worker, in elements of the arithmetic type.
constexpr std::int64_t kda_forward_scratch(const KdaSizes& s) {
  const std::int64_t key = s.padded_key, value = s.padded_value, c = kKdaRows;
  return key * value + c * (9 * key + 3 * value) + 3 * c * c + (key + value) * c +
         (c / kKdaSubChunk * 3 + 2) * key + c;
}
constexpr std::int64_t kda_backward_scratch(const KdaSizes& s) {
  const std::int64_t key = s.padded_key, value = s.padded_value, c = kKdaRows;
  const std::int64_t states =
      s.group + 3 + (s.recurrent ? c : 0) + (s.keeps_states ? 0 : s.group * s.boundaries);
  return kda_forward_scratch(s) + states * key * value + c * (12 * key + 4 * value) + 2 * c * c +
         4 * key;
}

/// Units [begin, end) of the sequence x key head pairs, in order. `scratch` holds what the
/// functions above say.
#define K25_KDA_DECLARE(T, A)                                                            \
  void kda_forward_cpu(const KdaArgs<T, A>& args, std::int64_t begin, std::int64_t end,  \
                       A* scratch);                                                      \
  void kda_backward_cpu(const KdaArgs<T, A>& args, std::int64_t begin, std::int64_t end, \
                        A* scratch);
K25_ISA_DECLARE(K25_KDA_DECLARE(float, float) K25_KDA_DECLARE(BFloat16, float)
                    K25_KDA_DECLARE(double, double))
#undef K25_KDA_DECLARE

}  // namespace k25::kernels
