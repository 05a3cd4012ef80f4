#pragma once
// What the CPU's attentions share: rows packed into tiles, products of tiles and their softmax.
// Only for ISA sources.

#include "kernels/attention/attention_cpu.h"
#include "kernels/core/tile_gemm.h"
#include "kernels/core/vector_math.h"

namespace k25::kernels::K25_ISA {

static_assert(kAttentionPad == kReduceLanes);

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
/// columns past the last row are zero up to kAttentionPad. Writes zeros behind the rows, up to a
/// multiple of kAttentionPad.
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

/// Largest visible score of each row, not less than `before`; hides the rest up to kAttentionPad.
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

/// s becomes exp(s - max). `lanes` (kAttentionPad partial sums a row) and acc are brought to the
/// new maximum, and the lanes grow by this tile; the first tile sets the lanes and leaves acc
/// alone.
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
      sums.load(lanes + r * kAttentionPad);
      sums.scale(factor);
      A* const total = acc + r * padded_dim;
      for (std::int64_t e = 0; e < padded_dim; e += kAttentionPad) {
        for (std::int64_t i = 0; i < kAttentionPad; ++i) total[e + i] *= factor;
      }
    }
    // NOTE: inner loops of constant length need no epilogue, and the constants stay in registers.
    for (std::int64_t j = 0; j < seen; j += kAttentionPad) {
      for (std::int64_t i = 0; i < kAttentionPad; ++i)
        row[j + i] = exp_bounded(row[j + i] - largest);
      sums.take(row + j);
    }
    sums.store(lanes + r * kAttentionPad);
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
    for (std::int64_t j = 0; j < seen; j += kAttentionPad) {
      for (std::int64_t i = 0; i < kAttentionPad; ++i) {
        p_row[j + i] = exp_bounded(p_row[j + i] - log_sum);
        dp_row[j + i] = p_row[j + i] * (dp_row[j + i] - mean);
      }
    }
  }
}

/// delta_r = sum_e dout out, the mean of dp under p.
template <class T, class A>
void row_deltas(const HeadsView<const T>& saved_out, std::int64_t b, std::int64_t t, std::int64_t h,
                std::int64_t rows, std::int64_t dim, std::int64_t padded_dim, const A* dout,
                A* delta) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const T* const out = saved_out.row(b, t + r, h);
    const A* const grad = dout + r * padded_dim;
    A lanes[kAttentionPad] = {};
    std::int64_t e = 0;
    for (; e + kAttentionPad <= dim; e += kAttentionPad) {
      for (std::int64_t i = 0; i < kAttentionPad; ++i) {
        lanes[i] += grad[e + i] * load_value(out + e + i);
      }
    }
    for (std::int64_t i = 0; e < dim; ++e, ++i) lanes[i] += grad[e] * load_value(out + e);
    delta[r] = row_sum(lanes, kAttentionPad);
  }
}

}  // namespace k25::kernels::K25_ISA
