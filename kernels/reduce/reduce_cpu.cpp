#include "kernels/reduce/reduce_cpu.h"

#include <bit>

#include "kernels/reduce/reduce.h"

namespace k25::kernels::K25_ISA {
namespace {

constexpr int kLanes = 32;  // of reduce.h, on every machine

double join(double* lanes) {
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  }
  return lanes[0];
}

double square_sum(const float* x) {
  double lanes[kLanes] = {};
  for (std::int64_t i = 0; i < kChunk; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) {
      const double v = x[i + l];
      lanes[l] += v * v;
    }
  }
  return join(lanes);
}

double row_sum(const float* x, std::int64_t n) {
  double lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) lanes[l] += x[i + l];
  }
  for (int l = 0; i + l < n; ++l) lanes[l] += x[i + l];
  return join(lanes);
}

}  // namespace

void square_sums_cpu(const float* x, double* sums, std::int64_t chunks) {
  for (std::int64_t c = 0; c < chunks; ++c) sums[c] = square_sum(x + c * kChunk);
}

void row_sums_cpu(const float* x, std::int64_t stride, std::int64_t n, double* sums,
                  std::int64_t rows) {
  for (std::int64_t r = 0; r < rows; ++r) sums[r] = row_sum(x + r * stride, n);
}

void ordered_sum_cpu(const float* __restrict parts, std::int64_t num_parts, std::int64_t stride,
                     float* __restrict acc, std::int64_t n) {
  constexpr std::int64_t kBlock = 1024;  // acc stays in the first-level cache over all parts
  for (std::int64_t begin = 0; begin < n; begin += kBlock) {
    const std::int64_t end = begin + kBlock < n ? begin + kBlock : n;
    for (std::int64_t p = 0; p < num_parts; ++p) {
      const float* __restrict part = parts + p * stride;
      for (std::int64_t i = begin; i < end; ++i) acc[i] += part[i];
    }
  }
}

std::int64_t first_not_finite_cpu(const float* x, std::int64_t n) {
  constexpr std::uint32_t kExponent = 0x7f800000u;
  constexpr std::int64_t kBlock = 512;
  for (std::int64_t begin = 0; begin < n; begin += kBlock) {
    const std::int64_t end = begin + kBlock < n ? begin + kBlock : n;
    std::uint32_t found = 0;
    for (std::int64_t i = begin; i < end; ++i) {
      found |= (std::bit_cast<std::uint32_t>(x[i]) & kExponent) == kExponent ? 1u : 0u;
    }
    for (std::int64_t i = begin; found != 0 && i < end; ++i) {
      if ((std::bit_cast<std::uint32_t>(x[i]) & kExponent) == kExponent) return i;
    }
  }
  return n;
}

}  // namespace k25::kernels::K25_ISA
