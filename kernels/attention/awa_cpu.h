#pragma once
// Private to AWA: what the dispatcher hands to the ISA build.

#include <cstdint>

#include "kernels/attention/attention_cpu.h"

namespace k25::kernels {

/// A [B, n] array of int32 with dense rows; null when it is absent.
struct RowsOfInt {
  const std::int32_t* data = nullptr;
  std::int64_t stride = 0;

  const std::int32_t* row(std::int64_t b) const { return data + b * stride; }
};

/// One call, both directions. T is the storage, A the arithmetic type.
template <class T, class A>
struct AwaArgs {
  std::int64_t tokens = 0, heads = 0, kv_heads = 0;
  std::int64_t head_dim = 0, value_dim = 0, padded_dim = 0, padded_value_dim = 0;
  std::int64_t near_window = 0, far_window = 0, stride = 0, summaries = 0, query_tile = 0;
  A scale = 1;

  HeadsView<const T> q, k, v, summary_k, summary_v;
  RowsOfInt doc_end, appendix, summary_end;

  HeadsView<T> out;                    ///< forward
  HeadsView<A> lse, score_mean;        ///< [B, H, T]: strides of batch, head, token; as heads of 1
  HeadsView<const T> saved_out, dout;  ///< backward
  HeadsView<T> dq, dk, dv, d_summary_k, d_summary_v;
};

inline constexpr std::int64_t kAwaKeyTile = 64;

/// Rows of a tile's table of keys: what is near, what lies on a step, summaries; each part in whole
/// tiles.
constexpr std::int64_t awa_table_rows(std::int64_t tokens, std::int64_t near_window,
                                      std::int64_t far_window, std::int64_t stride,
                                      std::int64_t summaries, std::int64_t query_tile) {
  const auto whole = [](std::int64_t n) {
    return (n + kAwaKeyTile - 1) / kAwaKeyTile * kAwaKeyTile;
  };
  const auto seen = [tokens](std::int64_t n) { return n < tokens ? n : tokens; };
  const std::int64_t near_rows = seen(near_window - 1 + query_tile);
  const std::int64_t middle = far_window > near_window ? far_window - near_window + query_tile : 0;
  const std::int64_t steps = middle > 0 ? (seen(middle) + stride - 1) / stride : 0;
  return whole(near_rows) + whole(steps) + whole(summaries);
}

struct AwaSizes {
  std::int64_t tokens, table_rows, padded_dim, padded_value_dim, summaries, query_tile;
};
/// Elements of the arithmetic type for one tile, in the larger direction, which is backward.
constexpr std::int64_t awa_tile_elements(const AwaSizes& s) {
  return s.table_rows * (3 * s.padded_dim + 2 * s.padded_value_dim) +
         s.query_tile * (2 * s.padded_dim + 2 * s.padded_value_dim + 2 * kAwaKeyTile) +
         s.query_tile * (kAttentionPad + 4);
}
/// And of the gradients that are summed over a sequence's tiles.
constexpr std::int64_t awa_sum_elements(const AwaSizes& s) {
  return (s.tokens + s.summaries) * (s.padded_dim + s.padded_value_dim);
}

/// Work units [begin, end) of the batch x kv_heads (sequence, key/value head) pairs, in order.
/// `scratch` holds awa_tile_elements and awa_sum_elements.
#define K25_AWA_DECLARE(T, A)                                                            \
  void awa_forward_cpu(const AwaArgs<T, A>& args, std::int64_t begin, std::int64_t end,  \
                       A* scratch);                                                      \
  void awa_backward_cpu(const AwaArgs<T, A>& args, std::int64_t begin, std::int64_t end, \
                        A* scratch);
K25_ISA_DECLARE(K25_AWA_DECLARE(float, float) K25_AWA_DECLARE(BFloat16, float)
                    K25_AWA_DECLARE(double, double))
#undef K25_AWA_DECLARE

}  // namespace k25::kernels
