#pragma once
// Private to attention: what the dispatcher hands to the ISA build.

#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/core/isa.h"

namespace k25::kernels {

/// A [B, T, heads, E] view with dense E.
template <class T>
struct HeadsView {
  T* data = nullptr;
  std::int64_t batch_stride = 0, token_stride = 0, head_stride = 0;

  [[gnu::always_inline]] T* row(std::int64_t b, std::int64_t t, std::int64_t h) const {
    return data + b * batch_stride + t * token_stride + h * head_stride;
  }
};

/// One call, both directions. T is the storage, A the arithmetic type.
template <class T, class A>
struct AttentionArgs {
  std::int64_t tokens = 0, heads = 0, kv_heads = 0;
  std::int64_t head_dim = 0, value_dim = 0, padded_dim = 0, padded_value_dim = 0;
  std::int64_t query_tile = 0, key_tile = 0;
  bool causal = true;
  A scale = 1;

  HeadsView<const T> q, k, v;
  const std::int32_t* doc_end = nullptr;  ///< [B, T] checked; null: one document a sequence
  std::int64_t doc_stride = 0;

  HeadsView<T> out;  ///< forward
  A* lse = nullptr;  ///< written by forward, read by backward
  std::int64_t lse_batch_stride = 0, lse_head_stride = 0;

  HeadsView<const T> saved_out, dout;  ///< backward
  HeadsView<T> dq, dk, dv;
};

inline constexpr std::int64_t kAttentionPad = 16;  ///< row lengths of the scratch, in elements

/// Scratch of one worker, in elements of the arithmetic type; the larger direction.
constexpr std::int64_t attention_scratch_elements(std::int64_t tokens, std::int64_t padded_dim,
                                                  std::int64_t padded_value_dim,
                                                  std::int64_t query_tile, std::int64_t key_tile) {
  const std::int64_t padded_tokens = (tokens + key_tile - 1) / key_tile * key_tile;
  return padded_tokens * (3 * padded_dim + 2 * padded_value_dim) +
         query_tile * (2 * padded_dim + padded_value_dim) + 2 * query_tile * key_tile +
         query_tile * (kAttentionPad + 3);
}

/// Work units [begin, end) of the batch x kv_heads (sequence, key/value head) pairs, in order.
/// `scratch` holds attention_scratch_elements.
#define K25_ATTENTION_DECLARE(T, A)                                                \
  void attention_forward_cpu(const AttentionArgs<T, A>& args, std::int64_t begin,  \
                             std::int64_t end, A* scratch);                        \
  void attention_backward_cpu(const AttentionArgs<T, A>& args, std::int64_t begin, \
                              std::int64_t end, A* scratch);
K25_ISA_DECLARE(K25_ATTENTION_DECLARE(float, float) K25_ATTENTION_DECLARE(BFloat16, float)
                    K25_ATTENTION_DECLARE(double, double))
#undef K25_ATTENTION_DECLARE

}  // namespace k25::kernels
