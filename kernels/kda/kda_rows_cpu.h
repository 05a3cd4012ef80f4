#pragma once
// Rows of the scratch: packing, unpacking and what is done to them element by element. Rows are
// padded to a multiple of kKdaPad with zeros. Only for ISA sources.

#include "kernels/core/tile_gemm.h"
#include "kernels/core/vector_math.h"
#include "kernels/kda/kda_cpu.h"

namespace k25::kernels::K25_ISA {

static_assert(kKdaPad == kReduceLanes);

/// Denormals count as zero, in operands and results, while it lives. Strong decays make many of
/// them, and each costs a hundred cycles.
class FlushDenormals {
 public:
  [[gnu::always_inline]] FlushDenormals() : saved_(__builtin_ia32_stmxcsr()) {
    __builtin_ia32_ldmxcsr(saved_ | kFlushToZero | kDenormalsAreZero);
  }
  [[gnu::always_inline]] ~FlushDenormals() { __builtin_ia32_ldmxcsr(saved_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  static constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040;
  unsigned saved_;
};

template <class A>
inline void fill_rows(A* dst, std::int64_t count, A value) {
  for (std::int64_t i = 0; i < count; ++i) dst[i] = value;
}
template <class A>
inline void copy_rows(const A* __restrict src, std::int64_t count, A* __restrict dst) {
  for (std::int64_t i = 0; i < count; ++i) dst[i] = src[i];
}

/// n rows of `dim` elements times factor into dst [rows, padded_dim], zeros in the rest.
template <class T, class A>
inline void pack_rows(const T* src, std::int64_t stride, std::int64_t n, std::int64_t rows,
                      std::int64_t dim, std::int64_t padded_dim, A factor, A* dst) {
  for (std::int64_t r = 0; r < n; ++r) {
    const T* const __restrict from = src + r * stride;
    A* const __restrict to = dst + r * padded_dim;
    for (std::int64_t e = 0; e < dim; ++e) to[e] = load_value(from + e) * factor;
    for (std::int64_t e = dim; e < padded_dim; ++e) to[e] = A(0);
  }
  for (std::int64_t i = n * padded_dim; i < rows * padded_dim; ++i) dst[i] = A(0);
}

/// The way back, without the padding.
template <class T, class A>
inline void unpack_rows(const A* src, std::int64_t n, std::int64_t dim, std::int64_t padded_dim,
                        A factor, T* dst, std::int64_t stride) {
  for (std::int64_t r = 0; r < n; ++r) {
    const A* const __restrict from = src + r * padded_dim;
    T* const __restrict to = dst + r * stride;
    for (std::int64_t e = 0; e < dim; ++e) store_value(to + e, from[e] * factor);
  }
}

/// dst[c * dst_row + r] = src[r * src_row + c]; rows and cols multiples of kKdaPad.
template <class A>
inline void transpose_rows(const A* src, std::int64_t rows, std::int64_t cols, std::int64_t src_row,
                           A* dst, std::int64_t dst_row) {
  for (std::int64_t r = 0; r < rows; r += kLanesOf<A>) {
    for (std::int64_t c = 0; c < cols; c += kLanesOf<A>) {
      transpose_block(src + r * src_row + c, src_row, dst + c * dst_row + r, dst_row);
    }
  }
}

/// y += factor x.
template <class A>
inline void add_scaled(A factor, const A* __restrict x, std::int64_t n, A* __restrict y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] += factor * x[i];
}

/// sum of x y; n a multiple of kKdaPad.
template <class A>
inline A dot_rows(const A* __restrict x, const A* __restrict y, std::int64_t n) {
  A lanes[kKdaPad] = {};
  for (std::int64_t i = 0; i < n; i += kKdaPad) {
    for (std::int64_t l = 0; l < kKdaPad; ++l) lanes[l] += x[i + l] * y[i + l];
  }
  return row_sum(lanes, kKdaPad);
}

/// dst [n, dim] = src [n, dim] times factor [dim] of the sub-chunk that the row lies in.
template <class A>
inline void scale_sub_chunks(const A* src, const A* factor, std::int64_t n, std::int64_t dim,
                             A* dst) {
  for (std::int64_t r = 0; r < n; ++r) {
    const A* const __restrict from = src + r * dim;
    const A* const __restrict by = factor + r / kKdaSubChunk * dim;
    A* const __restrict to = dst + r * dim;
    for (std::int64_t e = 0; e < dim; ++e) to[e] = from[e] * by[e];
  }
}

/// A state as the caller has it into dst [padded_key, padded_value]; null: zeros.
template <class A>
inline void load_state(const A* src, std::int64_t row_stride, const KdaSizes& s, A* dst) {
  if (src == nullptr) return fill_rows(dst, s.padded_key * s.padded_value, A(0));
  pack_rows(src, row_stride, s.key_dim, s.padded_key, s.value_dim, s.padded_value, A(1), dst);
}
template <class A>
inline void store_state(const A* src, const KdaSizes& s, A* dst, std::int64_t row_stride) {
  unpack_rows(src, s.key_dim, s.value_dim, s.padded_value, A(1), dst, row_stride);
}

}  // namespace k25::kernels::K25_ISA
