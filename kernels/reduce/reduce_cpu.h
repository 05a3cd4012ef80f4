#pragma once
// The ISA kernels behind reduce.h. Equal bits on every instruction set.

#include <cstdint>

#include "kernels/core/isa.h"

namespace k25::kernels {

K25_ISA_DECLARE(
    // sums[c] for `chunks` whole chunks that start at x.
    void square_sums_cpu(const float* x, double* sums, std::int64_t chunks);
    // sums[r] for `rows` rows of n elements.
    void row_sums_cpu(const float* x, std::int64_t stride, std::int64_t n, double* sums,
                      std::int64_t rows);
    // acc[i] += parts[p * stride + i] for p = 0, 1, ... in order, i in [0, n).
    void ordered_sum_cpu(const float* parts, std::int64_t num_parts, std::int64_t stride,
                         float* acc, std::int64_t n);
    // Index of the first non-finite element, or n.
    std::int64_t first_not_finite_cpu(const float* x, std::int64_t n);)

}  // namespace k25::kernels
