#pragma once
// Vector arithmetic for ISA sources: exp, row maximum and sum, transpose, bf16.
//
// Only ISA sources include this file: everything lives in namespace K25_ISA (see isa.h).
// Numerics  exp_approx(float) is made of + - * and masks, so a loop over it is vectorised and
//         gives the same bits on every instruction set; error <= 1 ulp measured, 2 ulp promised;
//         exp(-inf) = 0, results below 2^-126 are flushed to 0, overflow is +inf, NaN stays NaN.
//         row_max and row_sum keep kReduceLanes partial results: element i goes to lane
//         i mod kReduceLanes, the lanes are joined in a tree: the same bits on every instruction
//         set and for every alignment. row_max passes over NaN, row_sum does not.
// Source  the coefficients are those of expf in the Cephes library (Moshier, 1989).

#include <cstdint>
#include <type_traits>

#include "kernels/core/dtype.h"

#ifndef K25_ISA
#error "vector_math.h is for ISA_SOURCES only"
#endif

namespace k25::kernels::K25_ISA {

/// Widens a stored element to its arithmetic type: float for fp32 and bf16, double for fp64.
[[gnu::always_inline]] inline float load_value(const float* p) { return *p; }
[[gnu::always_inline]] inline double load_value(const double* p) { return *p; }
[[gnu::always_inline]] inline float load_value(const BFloat16* p) {
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(p->bits) << 16);
}

/// Rounds to the stored type; bf16 to nearest even, NaN stays NaN (as BFloat16's constructor).
[[gnu::always_inline]] inline void store_value(float* p, float v) { *p = v; }
[[gnu::always_inline]] inline void store_value(double* p, double v) { *p = v; }
[[gnu::always_inline]] inline void store_value(BFloat16* p, float v) {
  const std::uint32_t u = __builtin_bit_cast(std::uint32_t, v);
  const std::uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const std::uint32_t nan = (u >> 16) | 0x0040u;
  p->bits = static_cast<std::uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

/// What both exponentials start with: e^x = p 2^n, n in the low bits of `shifted`.
struct ExpParts {
  float p;
  std::uint32_t exponent;  ///< n; garbage for huge |x|, hence unsigned
};

/// Cephes' range reduction and polynomial (expf), the sum in pairs.
[[gnu::always_inline]] inline ExpParts exp_parts(float x) {
  constexpr float kShift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float shifted = x * 1.44269504088896341f + kShift;
  const float n = shifted - kShift;
  // NOTE: 0.693359375 has 10 bits, so n times it is exact.
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  const float r2 = r * r;
  const float high = 1.9875691500e-4f * r + 1.3981999507e-3f;
  const float middle = 8.3334519073e-3f * r + 4.1665795894e-2f;
  const float low = 1.6666665459e-1f * r + 5.0000001201e-1f;
  const float p = (((high * r2 + middle) * r2 + low) * r2 + r) + 1.0f;
  return {p,
          __builtin_bit_cast(std::uint32_t, shifted) - __builtin_bit_cast(std::uint32_t, kShift)};
}

inline constexpr float kExpLow = -87.33654f;  ///< log 2^-126: below it results are 0

/// e^x.
// NOTE: masks instead of selects; GCC 12 makes branches of the latter and gives up the loop.
[[gnu::always_inline]] inline float exp_approx(float x) {
  constexpr float kHigh = 88.72283f;  // log 2^128
  const ExpParts e = exp_parts(x);
  // NOTE: added to the exponent field, because 2^128 is no float and a factor would be.
  const std::uint32_t value = __builtin_bit_cast(std::uint32_t, e.p) + (e.exponent << 23);
  const std::uint32_t in_range = 0u - static_cast<std::uint32_t>(x >= kExpLow);
  const std::uint32_t too_large = 0u - static_cast<std::uint32_t>(x > kHigh);
  const std::uint32_t not_a_number = 0u - static_cast<std::uint32_t>(x != x);
  const std::uint32_t finite = value & in_range & ~too_large;
  return __builtin_bit_cast(float, finite | (too_large & 0x7f800000u) | not_a_number);
}
[[gnu::always_inline]] inline double exp_approx(double x) { return __builtin_exp(x); }

/// e^x for x <= 88 or NaN (softmax: x - max), cheaper than exp_approx and with the same bits.
[[gnu::always_inline]] inline float exp_bounded(float x) {
  const ExpParts e = exp_parts(x);
  const float value = e.p * __builtin_bit_cast(float, (e.exponent + 127u) << 23);
  const std::uint32_t too_small = 0u - static_cast<std::uint32_t>(x < kExpLow);
  return __builtin_bit_cast(float, __builtin_bit_cast(std::uint32_t, value) & ~too_small);
}
[[gnu::always_inline]] inline double exp_bounded(double x) { return __builtin_exp(x); }

/// Natural logarithm of a positive number, rounded from double.
[[gnu::always_inline]] inline float log_value(float x) {
  return static_cast<float>(__builtin_log(static_cast<double>(x)));
}
[[gnu::always_inline]] inline double log_value(double x) { return __builtin_log(x); }

// ---- native vectors -----------------------------------------------------------------------------

#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64;
#elif defined(__AVX__)
inline constexpr int kVectorBytes = 32;
#else
inline constexpr int kVectorBytes = 16;
#endif

/// One register of T. Load and store accept any alignment.
template <class T>
struct VectorOf {
  typedef T Type __attribute__((vector_size(kVectorBytes)));
  typedef T Unaligned __attribute__((vector_size(kVectorBytes), aligned(alignof(T)), may_alias));
  static constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(T));
};
template <class T>
using Vector = typename VectorOf<T>::Type;
template <class T>
inline constexpr int kLanesOf = VectorOf<T>::kLanes;

template <class T>
[[gnu::always_inline]] inline Vector<T> load_vector(const T* p) {
  return *reinterpret_cast<const typename VectorOf<T>::Unaligned*>(p);
}
template <class T>
[[gnu::always_inline]] inline void store_vector(T* p, Vector<T> v) {
  *reinterpret_cast<typename VectorOf<T>::Unaligned*>(p) = v;
}

/// Lane i becomes lane i + kBy (round the end).
template <int kBy, class T>
[[gnu::always_inline]] inline Vector<T> rotate_lanes(Vector<T> v) {
  using Index = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;
  Vector<Index> from;
#pragma GCC unroll 16
  for (int i = 0; i < kLanesOf<T>; ++i) from[i] = (i + kBy) % kLanesOf<T>;
  return __builtin_shuffle(v, from);
}

// ---- reductions ---------------------------------------------------------------------------------

inline constexpr int kReduceLanes = 16;

struct JoinSum {
  template <class V>
  [[gnu::always_inline]] static V join(V a, V b) {
    return a + b;
  }
};
struct JoinMax {
  template <class V>
  [[gnu::always_inline]] static V join(V a, V b) {
    return b > a ? b : a;
  }
};

/// kReduceLanes partial results of a reduction in as many registers as that takes.
template <class Op, class T>
struct ReduceLanes {
  static constexpr int kRegisters = kReduceLanes / kLanesOf<T>;
  Vector<T> part[kRegisters];

  [[gnu::always_inline]] void fill(T value) {
#pragma GCC unroll 8
    for (int i = 0; i < kRegisters; ++i) part[i] = Vector<T>{} + value;
  }
  [[gnu::always_inline]] void load(const T* lanes) {
#pragma GCC unroll 8
    for (int i = 0; i < kRegisters; ++i) part[i] = load_vector(lanes + i * kLanesOf<T>);
  }
  [[gnu::always_inline]] void store(T* lanes) const {
#pragma GCC unroll 8
    for (int i = 0; i < kRegisters; ++i) store_vector(lanes + i * kLanesOf<T>, part[i]);
  }
  [[gnu::always_inline]] void scale(T factor) {
#pragma GCC unroll 8
    for (int i = 0; i < kRegisters; ++i) part[i] *= Vector<T>{} + factor;
  }
  /// Takes in p[0..kReduceLanes).
  [[gnu::always_inline]] void take(const T* p) {
#pragma GCC unroll 8
    for (int i = 0; i < kRegisters; ++i) {
      part[i] = Op::join(part[i], load_vector(p + i * kLanesOf<T>));
    }
  }
  /// Takes in p[0..n), n < kReduceLanes.
  [[gnu::always_inline]] void take_some(const T* p, std::int64_t n) {
    alignas(64) T lanes[kReduceLanes];
    store(lanes);
    for (std::int64_t i = 0; i < n; ++i) lanes[i] = Op::join(lanes[i], p[i]);
    load(lanes);
  }
  /// Joins lane i with lane i + 8, then i + 4, i + 2 and i + 1.
  [[gnu::always_inline]] T join() const {
    Vector<T> r[kRegisters];
#pragma GCC unroll 8
    for (int i = 0; i < kRegisters; ++i) r[i] = part[i];
#pragma GCC unroll 4
    for (int count = kRegisters / 2; count > 0; count /= 2) {
#pragma GCC unroll 8
      for (int i = 0; i < count; ++i) r[i] = Op::join(r[i], r[i + count]);
    }
    return join_register<kLanesOf<T> / 2>(r[0]);
  }

 private:
  template <int kBy>
  [[gnu::always_inline]] static T join_register(Vector<T> v) {
    v = Op::join(v, rotate_lanes<kBy, T>(v));
    if constexpr (kBy > 1) {
      return join_register<kBy / 2>(v);
    } else {
      return v[0];
    }
  }
};

template <class Op, class T>
[[gnu::always_inline]] inline T reduce_row(const T* p, std::int64_t n, T start) {
  ReduceLanes<Op, T> acc;
  acc.fill(start);
  std::int64_t i = 0;
  for (; i + kReduceLanes <= n; i += kReduceLanes) acc.take(p + i);
  if (i < n) acc.take_some(p + i, n - i);
  return acc.join();
}

/// Largest of p[0..n); -inf for n = 0.
template <class T>
inline T row_max(const T* p, std::int64_t n) {
  return reduce_row<JoinMax>(p, n, static_cast<T>(-__builtin_inf()));
}

/// Sum of p[0..n); 0 for n = 0.
template <class T>
inline T row_sum(const T* p, std::int64_t n) {
  return reduce_row<JoinSum>(p, n, T(0));
}

// ---- transpose ----------------------------------------------------------------------------------

/// One step of a transpose in registers: swaps the off-diagonal quarters of all blocks of 2 kBy.
template <int kBy, class T>
[[gnu::always_inline]] inline void transpose_step(Vector<T> (&rows)[kLanesOf<T>]) {
  using Index = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;
  constexpr int kLanes = kLanesOf<T>;
  Vector<Index> low, high;
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    low[i] = (i & kBy) == 0 ? i : i - kBy + kLanes;
    high[i] = (i & kBy) == 0 ? i + kBy : i + kLanes;
  }
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    if ((i & kBy) != 0) continue;
    const Vector<T> a = rows[i], b = rows[i + kBy];
    rows[i] = __builtin_shuffle(a, b, low);
    rows[i + kBy] = __builtin_shuffle(a, b, high);
  }
  if constexpr (kBy > 1) transpose_step<kBy / 2, T>(rows);
}

/// dst[c * dst_row + r] = src[r * src_row + c] for r, c < one register's lanes.
template <class T>
[[gnu::always_inline]] inline void transpose_block(const T* src, std::int64_t src_row, T* dst,
                                                   std::int64_t dst_row) {
  constexpr int kLanes = kLanesOf<T>;
  Vector<T> rows[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) rows[i] = load_vector(src + i * src_row);
  transpose_step<kLanes / 2, T>(rows);
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) store_vector(dst + i * dst_row, rows[i]);
}

}  // namespace k25::kernels::K25_ISA
