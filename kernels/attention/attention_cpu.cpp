// Attention on the CPU: FlashAttention's tiles, one document at a time.
//
// A document is an attention problem of its own and its tiles start at its first token, so nothing
// outside it is ever read for it, and its result does not depend on where it lies in the sequence.
// One work unit is a sequence and a key/value head; the query heads of the group follow each other,
// so dk and dv are summed in a fixed order.
#include "kernels/attention/attention_cpu.h"

#include "kernels/core/tile_gemm.h"
#include "kernels/core/vector_math.h"

namespace k25::kernels::K25_ISA {
namespace {

constexpr std::int64_t kPad = kAttentionPad;
static_assert(kPad == kReduceLanes);

/// The tokens [first, first + length) of sequence b, one document, for one key/value head.
struct Segment {
  std::int64_t b, kv_head, first, length;
};

// ---- packing --------------------------------------------------------------------------------

/// rows x dim into dst [rows, padded_dim], times factor; the padding is zero.
template <class T, class A>
void pack_rows(const HeadsView<const T>& src, std::int64_t b, std::int64_t t, std::int64_t h,
               std::int64_t rows, std::int64_t dim, std::int64_t padded_dim, A factor, A* dst) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const T* const from = src.row(b, t + r, h);
    A* const to = dst + r * padded_dim;
    for (std::int64_t e = 0; e < dim; ++e) to[e] = load_value(from + e) * factor;
    for (std::int64_t e = dim; e < padded_dim; ++e) to[e] = A(0);
  }
}

/// Packed rows [length, padded_dim] into their transpose in tiles of [padded_dim, key_tile];
/// columns past the last row are zero up to kPad. Writes zeros behind the rows, up to a multiple of
/// kPad.
template <class A>
void transpose_tiles(A* rows, std::int64_t length, std::int64_t padded_dim, std::int64_t key_tile,
                     A* dst) {
  for (std::int64_t i = length * padded_dim; i < pad_up(length) * padded_dim; ++i) rows[i] = A(0);
  for (std::int64_t j0 = 0; j0 < length; j0 += key_tile, dst += padded_dim * key_tile) {
    const std::int64_t count = pad_up(smaller(key_tile, length - j0));
    for (std::int64_t e = 0; e < padded_dim; e += kLanesOf<A>) {
      for (std::int64_t j = 0; j < count; j += kLanesOf<A>) {
        transpose_block(rows + (j0 + j) * padded_dim + e, padded_dim, dst + e * key_tile + j,
                        key_tile);
      }
    }
  }
}

/// src [rows, padded_dim] times factor into a view.
template <class T, class A>
void unpack_rows(const A* src, std::int64_t b, std::int64_t t, std::int64_t h, std::int64_t rows,
                 std::int64_t dim, std::int64_t padded_dim, A factor, const HeadsView<T>& dst) {
  for (std::int64_t r = 0; r < rows; ++r) {
    T* const to = dst.row(b, t + r, h);
    const A* const from = src + r * padded_dim;
    for (std::int64_t e = 0; e < dim; ++e) store_value(to + e, from[e] * factor);
  }
}

// ---- products -------------------------------------------------------------------------------

/// c [rows, keys] = a [rows, dim] b [dim, key_tile]; on the diagonal just the visible part.
template <class A>
void score_tile(const A* a, std::int64_t padded_dim, const A* b, std::int64_t key_tile, A* c,
                std::int64_t rows, std::int64_t keys, std::int64_t dim, bool diagonal) {
  const TileOperands<A> o{a, padded_dim, 1, b, key_tile, c, key_tile};
  if (diagonal) {
    tile_gemm<Triangle::kColumns, Store::kOverwrite>(o, rows, pad_up(keys), dim);
  } else {
    tile_gemm<Triangle::kNone, Store::kOverwrite>(o, rows, pad_up(keys), dim);
  }
}

/// c [rows, padded_dim] = or += p [rows, keys] b [keys, padded_dim].
template <Store kStore, class A>
void weighted_rows(const A* p, std::int64_t key_tile, const A* b, A* c, std::int64_t padded_dim,
                   std::int64_t rows, std::int64_t keys, bool diagonal) {
  const TileOperands<A> o{p, key_tile, 1, b, padded_dim, c, padded_dim};
  if (diagonal) {
    tile_gemm<Triangle::kLower, kStore>(o, rows, padded_dim, keys);
  } else {
    tile_gemm<Triangle::kNone, kStore>(o, rows, padded_dim, keys);
  }
}

/// c [keys, padded_dim] += p^T [keys, rows] b [rows, padded_dim].
template <class A>
void weighted_columns(const A* p, std::int64_t key_tile, const A* b, A* c, std::int64_t padded_dim,
                      std::int64_t rows, std::int64_t keys, bool diagonal) {
  const TileOperands<A> o{p, 1, key_tile, b, padded_dim, c, padded_dim};
  if (diagonal) {
    tile_gemm<Triangle::kUpper, Store::kAdd>(o, keys, padded_dim, rows);
  } else {
    tile_gemm<Triangle::kNone, Store::kAdd>(o, keys, padded_dim, rows);
  }
}

// ---- softmax --------------------------------------------------------------------------------

/// Largest visible score of each row, not less than `before`; hides the rest up to kPad.
template <class A>
void tile_maxima(A* s, std::int64_t key_tile, std::int64_t rows, std::int64_t keys, bool diagonal,
                 const A* before, A* after) {
  for (std::int64_t r = 0; r < rows; ++r) {
    A* const row = s + r * key_tile;
    const std::int64_t seen = diagonal ? r + 1 : keys;
    for (std::int64_t j = seen; j < pad_up(seen); ++j) row[j] = static_cast<A>(-__builtin_inf());
    const A largest = row_max(row, pad_up(seen));
    after[r] = largest > before[r] ? largest : before[r];
  }
}

/// s becomes exp(s - max). `lanes` (kPad partial sums a row) and acc are brought to the new
/// maximum, and the lanes grow by this tile; the first tile sets the lanes and leaves acc alone.
template <class A>
void tile_exponentials(A* s, std::int64_t key_tile, std::int64_t rows, std::int64_t keys,
                       bool diagonal, bool first, const A* max, const A* rescale, A* lanes, A* acc,
                       std::int64_t padded_dim) {
  for (std::int64_t r = 0; r < rows; ++r) {
    A* const row = s + r * key_tile;
    const std::int64_t seen = pad_up(diagonal ? r + 1 : keys);
    const A largest = max[r];
    ReduceLanes<JoinSum, A> sums;
    if (first) {
      sums.fill(A(0));
    } else {
      const A factor = rescale[r];
      sums.load(lanes + r * kPad);
      sums.scale(factor);
      A* const total = acc + r * padded_dim;
      for (std::int64_t e = 0; e < padded_dim; e += kPad) {
        for (std::int64_t i = 0; i < kPad; ++i) total[e + i] *= factor;
      }
    }
    // NOTE: inner loops of constant length need no epilogue, and the constants stay in registers.
    for (std::int64_t j = 0; j < seen; j += kPad) {
      for (std::int64_t i = 0; i < kPad; ++i) row[j + i] = exp_bounded(row[j + i] - largest);
      sums.take(row + j);
    }
    sums.store(lanes + r * kPad);
  }
}

/// p becomes exp(s - lse), dp becomes p (dp - delta).
template <class A>
void tile_gradients(A* p, A* dp, std::int64_t key_tile, std::int64_t rows, std::int64_t keys,
                    bool diagonal, const A* lse, const A* delta) {
  for (std::int64_t r = 0; r < rows; ++r) {
    A* const __restrict p_row = p + r * key_tile;
    A* const __restrict dp_row = dp + r * key_tile;
    // NOTE: whole vectors; what is hidden from the row is never read again.
    const std::int64_t seen = pad_up(diagonal ? r + 1 : keys);
    const A log_sum = lse[r], mean = delta[r];
    for (std::int64_t j = 0; j < seen; j += kPad) {
      for (std::int64_t i = 0; i < kPad; ++i) {
        p_row[j + i] = exp_bounded(p_row[j + i] - log_sum);
        dp_row[j + i] = p_row[j + i] * (dp_row[j + i] - mean);
      }
    }
  }
}

// ---- one document ---------------------------------------------------------------------------

template <class T, class A>
void forward_segment(const AttentionArgs<T, A>& x, const Segment& s, A* scratch) {
  const std::int64_t dim = x.head_dim, padded = x.padded_dim, tile = x.key_tile;
  const std::int64_t group = x.heads / x.kv_heads;
  const std::int64_t tiled = (s.length + tile - 1) / tile * tile * padded;
  Bump<A> bump{scratch};
  A* const kt = bump.take(tiled);
  A* const k = bump.take(tiled);
  A* const v = bump.take(tiled);
  A* const q = bump.take(x.query_tile * padded);
  A* const acc = bump.take(x.query_tile * padded);
  A* const p = bump.take(x.query_tile * tile);
  A* const lanes = bump.take(x.query_tile * kPad);
  A* max = bump.take(x.query_tile);
  A* next_max = bump.take(x.query_tile);
  A* const rescale = bump.take(x.query_tile);
  pack_rows(x.k, s.b, s.first, s.kv_head, s.length, dim, padded, A(1), k);
  pack_rows(x.v, s.b, s.first, s.kv_head, s.length, dim, padded, A(1), v);
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
                          padded);
        const A* const values = v + j0 * padded;
        if (first) {
          weighted_rows<Store::kOverwrite>(p, tile, values, acc, padded, rows, keys, diagonal);
        } else {
          weighted_rows<Store::kAdd>(p, tile, values, acc, padded, rows, keys, diagonal);
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
        unpack_rows(acc + r * padded, s.b, s.first + i0 + r, h, 1, dim, padded, A(1) / sum, x.out);
      }
    }
  }
}

/// delta_r = sum_e dout out, the mean of dp under p.
template <class T, class A>
void row_deltas(const AttentionArgs<T, A>& x, std::int64_t b, std::int64_t t, std::int64_t h,
                std::int64_t rows, const A* dout, A* delta) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const T* const out = x.saved_out.row(b, t + r, h);
    const A* const grad = dout + r * x.padded_dim;
    A lanes[kPad] = {};
    std::int64_t e = 0;
    for (; e + kPad <= x.head_dim; e += kPad) {
      for (std::int64_t i = 0; i < kPad; ++i) lanes[i] += grad[e + i] * load_value(out + e + i);
    }
    for (std::int64_t i = 0; e < x.head_dim; ++e, ++i) lanes[i] += grad[e] * load_value(out + e);
    delta[r] = row_sum(lanes, kPad);
  }
}

template <class T, class A>
void backward_segment(const AttentionArgs<T, A>& x, const Segment& s, A* scratch) {
  const std::int64_t dim = x.head_dim, padded = x.padded_dim, tile = x.key_tile;
  const std::int64_t group = x.heads / x.kv_heads;
  const std::int64_t tiled = (s.length + tile - 1) / tile * tile * padded;
  Bump<A> bump{scratch};
  A* const kt = bump.take(tiled);
  A* const vt = bump.take(tiled);
  A* const k = bump.take(tiled);
  A* const dk = bump.take(tiled);
  A* const dv = bump.take(tiled);
  A* const q = bump.take(x.query_tile * padded);
  A* const dout = bump.take(x.query_tile * padded);
  A* const dq = bump.take(x.query_tile * padded);
  A* const p = bump.take(x.query_tile * tile);
  A* const dp = bump.take(x.query_tile * tile);
  A* const delta = bump.take(x.query_tile);
  pack_rows(x.k, s.b, s.first, s.kv_head, s.length, dim, padded, A(1), k);
  transpose_tiles(k, s.length, padded, tile, kt);
  A* const v = dv;  // the rows of v are done with before dv begins
  pack_rows(x.v, s.b, s.first, s.kv_head, s.length, dim, padded, A(1), v);
  transpose_tiles(v, s.length, padded, tile, vt);
  for (std::int64_t i = 0; i < s.length * padded; ++i) dk[i] = dv[i] = A(0);

  for (std::int64_t h = s.kv_head * group; h < (s.kv_head + 1) * group; ++h) {
    const A* const lse = x.lse + s.b * x.lse_batch_stride + h * x.lse_head_stride + s.first;
    for (std::int64_t i0 = 0; i0 < s.length; i0 += x.query_tile) {
      const std::int64_t rows = smaller(x.query_tile, s.length - i0);
      pack_rows(x.q, s.b, s.first + i0, h, rows, dim, padded, x.scale, q);
      pack_rows(x.dout, s.b, s.first + i0, h, rows, dim, padded, A(1), dout);
      row_deltas(x, s.b, s.first + i0, h, rows, dout, delta);
      for (std::int64_t i = 0; i < rows * padded; ++i) dq[i] = A(0);
      const std::int64_t last = x.causal ? i0 + rows : s.length;
      for (std::int64_t j0 = 0; j0 < last; j0 += tile) {
        const std::int64_t keys = smaller(tile, last - j0);
        const bool diagonal = x.causal && j0 == i0;
        score_tile(q, padded, kt + j0 * padded, tile, p, rows, keys, dim, diagonal);
        score_tile(dout, padded, vt + j0 * padded, tile, dp, rows, keys, dim, diagonal);
        tile_gradients(p, dp, tile, rows, keys, diagonal, lse + i0, delta);
        weighted_columns(p, tile, dout, dv + j0 * padded, padded, rows, keys, diagonal);
        weighted_columns(dp, tile, q, dk + j0 * padded, padded, rows, keys, diagonal);
        weighted_rows<Store::kAdd>(dp, tile, k + j0 * padded, dq, padded, rows, keys, diagonal);
      }
      // NOTE: q was packed with the scale in it, so dk has it already; dq gets it here.
      unpack_rows(dq, s.b, s.first + i0, h, rows, dim, padded, x.scale, x.dq);
    }
  }
  unpack_rows(dk, s.b, s.first, s.kv_head, s.length, dim, padded, A(1), x.dk);
  unpack_rows(dv, s.b, s.first, s.kv_head, s.length, dim, padded, A(1), x.dv);
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
