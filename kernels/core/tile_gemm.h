#pragma once
// Products of tiles, of attention and its kin: C = A B or C += A B for operands that lie in the
// first caches; and the scratch that they lie in.
//
// A(m, k) may have any strides (its elements are broadcast), B and C have dense rows of a multiple
// of kReduceLanes elements. Only for ISA sources.
//
// Triangles. On the diagonal tile of causal attention a query sees no later key. These products
// then read and multiply visible pairs only, so that what lies after a token (an infinity, say)
// cannot reach it through 0 * inf.

#include <cstdint>

#if defined(__FMA__)
#include <immintrin.h>
#endif

#include "kernels/core/vector_math.h"

namespace k25::kernels::K25_ISA {

[[gnu::always_inline]] inline std::int64_t smaller(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}
/// To whole groups of kReduceLanes elements, the row lengths of the scratch.
[[gnu::always_inline]] inline std::int64_t pad_up(std::int64_t n) {
  return (n + kReduceLanes - 1) / kReduceLanes * kReduceLanes;
}

/// Hands out pieces of the scratch.
template <class A>
struct Bump {
  A* next;
  A* take(std::int64_t count) {
    A* const piece = next;
    next += count;
    return piece;
  }
};

enum class Triangle {
  kNone,
  kColumns,  ///< C(m, n) is wanted for n <= m; more may be written
  kLower,    ///< row m sums over k <= m
  kUpper,    ///< row m sums over k >= m
};
enum class Store { kOverwrite, kAdd };

template <class T>
struct TileOperands {
  const T* a;
  std::int64_t a_row, a_col;  // A(m, k) = a[m * a_row + k * a_col]
  const T* b;
  std::int64_t b_row;
  T* c;
  std::int64_t c_row;
};

[[gnu::always_inline]] inline Vector<float> multiply_add(Vector<float> a, Vector<float> b,
                                                         Vector<float> c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}
[[gnu::always_inline]] inline Vector<double> multiply_add(Vector<double> a, Vector<double> b,
                                                          Vector<double> c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_pd(a, b, c);
#elif defined(__FMA__)
  return _mm256_fmadd_pd(a, b, c);
#else
  return a * b + c;
#endif
}

// Accumulators of kMicroRows x kMicroVectors, two B vectors and a broadcast fill the registers.
#if defined(__AVX512F__)
inline constexpr int kMicroRows = 8;
#elif defined(__FMA__)
inline constexpr int kMicroRows = 6;
#else
inline constexpr int kMicroRows = 4;
#endif
inline constexpr int kMicroVectors = 2;

/// acc[r] += A(m + r, k) B(k, :) for r in [kFrom, kTo).
template <int kFrom, int kTo, int kRows, int kVectors, class T>
[[gnu::always_inline]] inline void micro_step(Vector<T> (&acc)[kRows][kVectors], const T* a,
                                              std::int64_t a_row, const T* b) {
  Vector<T> column[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) column[v] = load_vector(b + v * kLanesOf<T>);
#pragma GCC unroll 16
  for (int r = kFrom; r < kTo; ++r) {
    const Vector<T> factor = Vector<T>{} + a[r * a_row];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) acc[r][v] = multiply_add(factor, column[v], acc[r][v]);
  }
}

/// The triangle's corner: steps k = m + i for i in [kStep, kRows), each for the rows that see it.
template <Triangle kTriangle, int kStep, int kRows, int kVectors, class T>
[[gnu::always_inline]] inline void micro_corner(Vector<T> (&acc)[kRows][kVectors], const T* a,
                                                const TileOperands<T>& o, const T* b) {
  if constexpr (kTriangle == Triangle::kLower && kStep < kRows) {
    micro_step<kStep, kRows>(acc, a, o.a_row, b);
    micro_corner<kTriangle, kStep + 1>(acc, a + o.a_col, o, b + o.b_row);
  }
  if constexpr (kTriangle == Triangle::kUpper && kStep < kRows - 1) {
    micro_step<0, kStep + 1>(acc, a, o.a_row, b);
    micro_corner<kTriangle, kStep + 1>(acc, a + o.a_col, o, b + o.b_row);
  }
}

/// C(m .. m + kRows, n .. n + kVectors vectors).
template <Triangle kTriangle, Store kStore, int kRows, int kVectors, class T>
[[gnu::always_inline]] inline void micro_tile(const TileOperands<T>& o, std::int64_t m,
                                              std::int64_t n, std::int64_t k_count) {
  Vector<T> acc[kRows][kVectors];
  T* const c = o.c + m * o.c_row + n;
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      acc[r][v] =
          kStore == Store::kAdd ? load_vector(c + r * o.c_row + v * kLanesOf<T>) : Vector<T>{};
    }
  }
  std::int64_t k = 0, k_end = k_count;
  if constexpr (kTriangle == Triangle::kLower) k_end = m + 1;
  if constexpr (kTriangle == Triangle::kUpper) k = m;
  const T* a = o.a + m * o.a_row + k * o.a_col;
  const T* b = o.b + n + k * o.b_row;
  if constexpr (kTriangle == Triangle::kUpper) {
    micro_corner<kTriangle, 0>(acc, a, o, b);
    k += kRows - 1;
    a += (kRows - 1) * o.a_col;
    b += (kRows - 1) * o.b_row;
  }
  for (; k < k_end; ++k, a += o.a_col, b += o.b_row) micro_step<0, kRows>(acc, a, o.a_row, b);
  if constexpr (kTriangle == Triangle::kLower) micro_corner<kTriangle, 1>(acc, a, o, b);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      store_vector(c + r * o.c_row + v * kLanesOf<T>, acc[r][v]);
    }
  }
}

/// One panel of kVectors vectors for all rows, the last rows in smaller groups.
template <Triangle kTriangle, Store kStore, int kRows, int kVectors, class T>
inline void tile_panel(const TileOperands<T>& o, std::int64_t m, std::int64_t m_count,
                       std::int64_t n, std::int64_t k_count) {
  for (; m + kRows <= m_count; m += kRows) {
    if (kTriangle == Triangle::kColumns && n >= m + kRows) continue;
    micro_tile<kTriangle, kStore, kRows, kVectors>(o, m, n, k_count);
  }
  if constexpr (kRows > 1) {
    constexpr int kFewer = kRows > 4 ? 4 : kRows / 2;
    if (m < m_count) tile_panel<kTriangle, kStore, kFewer, kVectors>(o, m, m_count, n, k_count);
  }
}

/// C [m_count, n_count] from k_count steps; n_count a multiple of kReduceLanes. The triangles
/// kLower and kUpper need m_count == k_count.
template <Triangle kTriangle, Store kStore, class T>
inline void tile_gemm(const TileOperands<T>& o, std::int64_t m_count, std::int64_t n_count,
                      std::int64_t k_count) {
  constexpr int kPanel = kMicroVectors * kLanesOf<T>;
  std::int64_t n = 0;
  for (; n + kPanel <= n_count; n += kPanel) {
    tile_panel<kTriangle, kStore, kMicroRows, kMicroVectors>(o, 0, m_count, n, k_count);
  }
  for (; n < n_count; n += kLanesOf<T>) {
    tile_panel<kTriangle, kStore, kMicroRows, 1>(o, 0, m_count, n, k_count);
  }
}

}  // namespace k25::kernels::K25_ISA
