#pragma once
// The tolerance rule for a CUDA op whose CPU twin is tested on its own: against the twin in fp64 on
// the same operands, naive being the twin in the same dtype. Only targets built with CUDA include
// it.

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/kernels/cuda_test.h"

namespace k25::op_test {

inline constexpr DType kGpuFloats[] = {DType::kFloat32, DType::kBFloat16};
/// Plain, twice, so that a second run is compared; then vectors apart; then nothing aligned.
inline constexpr Layout kGpuLayouts[] = {
    {}, {}, {.row_padding = 8, .shift = 8}, {.row_padding = 3, .shift = 1}};

/// Room for another order of sums, relative to the size of the largest result.
inline double twin_floor(const std::vector<double>& ref) {
  double largest = 0;
  for (const double x : ref) largest = std::max(largest, std::abs(x));
  return 1e-6 * largest + 1e-7;
}

inline ::testing::AssertionResult twin_near(const GuardedTensor& ours, const GuardedTensor& twin,
                                            const GuardedTensor& ref64) {
  const std::vector<double> ref = ref64.get();
  return low_precision_near(ours.get(), twin.get(), ref, twin_floor(ref));
}

/// Bits of the results of a run, to be compared with the next.
inline std::vector<std::uint8_t> bits_of(const std::vector<const GuardedTensor*>& results) {
  std::vector<std::uint8_t> all;
  for (const GuardedTensor* t : results) {
    const auto more = t->bits();
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

}  // namespace k25::op_test
