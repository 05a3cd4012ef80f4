#pragma once
// Stores past the caches, for results that nobody reads soon. For ISA_SOURCES.

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "kernels/core/isa.h"

namespace k25::kernels::K25_ISA {

/// to[0..n) = from[0..n); from: 64-byte aligned, to: as a float is. Before another thread may read
/// it: stream_fence.
inline void stream_out(const float* from, float* to, std::int64_t n) {
#if defined(__SSE2__)
  constexpr std::int64_t kLine = 64 / sizeof(float);
  // The first elements bring `to` to the border of a line.
  const auto past = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(to) / sizeof(float));
  const std::int64_t to_border = (kLine - past % kLine) % kLine;
  const std::int64_t head = to_border < n ? to_border : n;
  std::memcpy(to, from, static_cast<std::size_t>(head) * sizeof(float));
  std::int64_t i = head;
  for (; i + kLine <= n; i += kLine) {
#if defined(__AVX512F__)
    _mm512_stream_ps(to + i, _mm512_loadu_ps(from + i));
#elif defined(__AVX__)
    _mm256_stream_ps(to + i, _mm256_loadu_ps(from + i));
    _mm256_stream_ps(to + i + 8, _mm256_loadu_ps(from + i + 8));
#else
    for (int j = 0; j < kLine; j += 4) _mm_stream_ps(to + i + j, _mm_loadu_ps(from + i + j));
#endif
  }
  std::memcpy(to + i, from + i, static_cast<std::size_t>(n - i) * sizeof(float));
#else
  std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(float));
#endif
}

inline void stream_fence() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace k25::kernels::K25_ISA
