// Attention on the CPU: FlashAttention's tiles, one document at a time.
//
// A document is an attention problem of its own and its tiles start at its first token, so nothing
// outside it is ever read for it, and its result does not depend on where it lies in the sequence.
// One work unit is a sequence and a key/value head; the query heads of the group follow each other,
// so dk and dv are summed in a fixed order.
#include "kernels/attention/attention_cpu.h"

#include "kernels/attention/attention_tiles.h"

namespace k25::kernels::K25_ISA {
namespace {

constexpr std::int64_t kPad = kAttentionPad;

/// The tokens [first, first + length) of sequence b, one document, for one key/value head.
struct Segment {
  std::int64_t b, kv_head, first, length;
};

// ---- one document ---------------------------------------------------------------------------

template <class T, class A>
void forward_segment(const AttentionArgs<T, A>& x, const Segment& s, A* scratch) {
  const std::int64_t dim = x.head_dim, padded = x.padded_dim, tile = x.key_tile;
  const std::int64_t value_dim = x.value_dim, padded_v = x.padded_value_dim;
  const std::int64_t group = x.heads / x.kv_heads;
  const std::int64_t tokens = (s.length + tile - 1) / tile * tile;
  Bump<A> bump{scratch};
  A* const kt = bump.take(tokens * padded);
  A* const k = bump.take(tokens * padded);
  A* const v = bump.take(tokens * padded_v);
  A* const q = bump.take(x.query_tile * padded);
  A* const acc = bump.take(x.query_tile * padded_v);
  A* const p = bump.take(x.query_tile * tile);
  A* const lanes = bump.take(x.query_tile * kPad);
  A* max = bump.take(x.query_tile);
  A* next_max = bump.take(x.query_tile);
  A* const rescale = bump.take(x.query_tile);
  pack_rows(x.k, s.b, s.first, s.kv_head, s.length, dim, padded, A(1), k);
  pack_rows(x.v, s.b, s.first, s.kv_head, s.length, value_dim, padded_v, A(1), v);
  transpose_tiles(k, s.length, padded, tile, kt);

  for (std::int64_t h = s.kv_head * group; h < (s.kv_head + 1) * group; ++h) {
    A* const lse = x.lse + s.b * x.lse_batch_stride + h * x.lse_head_stride + s.first;
    for (std::int64_t i0 = 0; i0 < s.length; i0 += x.query_tile) {
      const std::int64_t rows = smaller(x.query_tile, s.length - i0);
      pack_rows(x.q, s.b, s.first + i0, h, rows, dim, padded, x.scale, q);
      for (std::int64_t r = 0; r < rows; ++r) max[r] = static_cast<A>(-__builtin_inf());
      const std::int64_t last = x.causal ? i0 + rows : s.length;
      for (std::int64_t j0 = 0; j0 < last; j0 += tile) {
        const std::int64_t keys = smaller(tile, last - j0);
        const bool diagonal = x.causal && j0 == i0, first = j0 == 0;
        score_tile(q, padded, kt + j0 * padded, tile, p, rows, keys, dim, diagonal);
        tile_maxima(p, tile, rows, keys, diagonal, max, next_max);
        for (std::int64_t r = 0; r < rows; ++r) rescale[r] = exp_bounded(max[r] - next_max[r]);
        tile_exponentials(p, tile, rows, keys, diagonal, first, next_max, rescale, lanes, acc,
                          padded_v);
        const A* const values = v + j0 * padded_v;
        if (first) {
          weighted_rows<Store::kOverwrite>(p, tile, values, acc, padded_v, rows, keys, diagonal);
        } else {
          weighted_rows<Store::kAdd>(p, tile, values, acc, padded_v, rows, keys, diagonal);
        }
        A* const old = max;
        max = next_max;
        next_max = old;
      }
      for (std::int64_t r = 0; r < rows; ++r) {
        ReduceLanes<JoinSum, A> sums;
        sums.load(lanes + r * kPad);
        const A sum = sums.join();
        lse[i0 + r] = max[r] + log_value(sum);
        unpack_rows(acc + r * padded_v, s.b, s.first + i0 + r, h, 1, value_dim, padded_v,
                    A(1) / sum, x.out);
      }
    }
  }
}

template <class T, class A>
void backward_segment(const AttentionArgs<T, A>& x, const Segment& s, A* scratch) {
  const std::int64_t dim = x.head_dim, padded = x.padded_dim, tile = x.key_tile;
  const std::int64_t value_dim = x.value_dim, padded_v = x.padded_value_dim;
  const std::int64_t group = x.heads / x.kv_heads;
  const std::int64_t tokens = (s.length + tile - 1) / tile * tile;
  Bump<A> bump{scratch};
  A* const kt = bump.take(tokens * padded);
  A* const vt = bump.take(tokens * padded_v);
  A* const k = bump.take(tokens * padded);
  A* const dk = bump.take(tokens * padded);
  A* const dv = bump.take(tokens * padded_v);
  A* const q = bump.take(x.query_tile * padded);
  A* const dout = bump.take(x.query_tile * padded_v);
  A* const dq = bump.take(x.query_tile * padded);
  A* const p = bump.take(x.query_tile * tile);
  A* const dp = bump.take(x.query_tile * tile);
  A* const delta = bump.take(x.query_tile);
  pack_rows(x.k, s.b, s.first, s.kv_head, s.length, dim, padded, A(1), k);
  transpose_tiles(k, s.length, padded, tile, kt);
  A* const v = dv;  // the rows of v are done with before dv begins
  pack_rows(x.v, s.b, s.first, s.kv_head, s.length, value_dim, padded_v, A(1), v);
  transpose_tiles(v, s.length, padded_v, tile, vt);
  for (std::int64_t i = 0; i < s.length * padded; ++i) dk[i] = A(0);
  for (std::int64_t i = 0; i < s.length * padded_v; ++i) dv[i] = A(0);

  for (std::int64_t h = s.kv_head * group; h < (s.kv_head + 1) * group; ++h) {
    const A* const lse = x.lse + s.b * x.lse_batch_stride + h * x.lse_head_stride + s.first;
    for (std::int64_t i0 = 0; i0 < s.length; i0 += x.query_tile) {
      const std::int64_t rows = smaller(x.query_tile, s.length - i0);
      pack_rows(x.q, s.b, s.first + i0, h, rows, dim, padded, x.scale, q);
      pack_rows(x.dout, s.b, s.first + i0, h, rows, value_dim, padded_v, A(1), dout);
      row_deltas(x.saved_out, s.b, s.first + i0, h, rows, value_dim, padded_v, dout, delta);
      for (std::int64_t i = 0; i < rows * padded; ++i) dq[i] = A(0);
      const std::int64_t last = x.causal ? i0 + rows : s.length;
      for (std::int64_t j0 = 0; j0 < last; j0 += tile) {
        const std::int64_t keys = smaller(tile, last - j0);
        const bool diagonal = x.causal && j0 == i0;
        score_tile(q, padded, kt + j0 * padded, tile, p, rows, keys, dim, diagonal);
        score_tile(dout, padded_v, vt + j0 * padded_v, tile, dp, rows, keys, value_dim, diagonal);
        tile_gradients(p, dp, tile, rows, keys, diagonal, lse + i0, delta);
        weighted_columns(p, tile, dout, dv + j0 * padded_v, padded_v, rows, keys, diagonal);
        weighted_columns(dp, tile, q, dk + j0 * padded, padded, rows, keys, diagonal);
        weighted_rows<Store::kAdd>(dp, tile, k + j0 * padded, dq, padded, rows, keys, diagonal);
      }
      // NOTE: q was packed with the scale in it, so dk has it already; dq gets it here.
      unpack_rows(dq, s.b, s.first + i0, h, rows, dim, padded, x.scale, x.dq);
    }
  }
  unpack_rows(dk, s.b, s.first, s.kv_head, s.length, dim, padded, A(1), x.dk);
  unpack_rows(dv, s.b, s.first, s.kv_head, s.length, value_dim, padded_v, A(1), x.dv);
}

/// `visit` for each document of work unit `unit`.
template <class T, class A, class Visit>
void for_each_segment(const AttentionArgs<T, A>& x, std::int64_t unit, const Visit& visit) {
  const std::int64_t b = unit / x.kv_heads, kv_head = unit % x.kv_heads;
  for (std::int64_t t = 0; t < x.tokens;) {
    const std::int64_t end = x.doc_end != nullptr ? x.doc_end[b * x.doc_stride + t] : x.tokens;
    visit(Segment{b, kv_head, t, end - t});
    t = end;
  }
}

}  // namespace

#define K25_ATTENTION_DEFINE(T, A)                                                                 \
  void attention_forward_cpu(const AttentionArgs<T, A>& args, std::int64_t begin,                  \
                             std::int64_t end, A* scratch) {                                       \
    for (std::int64_t unit = begin; unit < end; ++unit) {                                          \
      for_each_segment(args, unit, [&](const Segment& s) { forward_segment(args, s, scratch); });  \
    }                                                                                              \
  }                                                                                                \
  void attention_backward_cpu(const AttentionArgs<T, A>& args, std::int64_t begin,                 \
                              std::int64_t end, A* scratch) {                                      \
    for (std::int64_t unit = begin; unit < end; ++unit) {                                          \
      for_each_segment(args, unit, [&](const Segment& s) { backward_segment(args, s, scratch); }); \
    }                                                                                              \
  }
K25_ATTENTION_DEFINE(float, float)
K25_ATTENTION_DEFINE(BFloat16, float)
K25_ATTENTION_DEFINE(double, double)
#undef K25_ATTENTION_DEFINE

}  // namespace k25::kernels::K25_ISA
