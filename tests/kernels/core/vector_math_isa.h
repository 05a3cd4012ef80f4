#pragma once
// vector_math.h built for each instruction set, for vector_math_test.

#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/core/isa.h"

namespace k25::kernels {

K25_ISA_DECLARE(void exp_all(const float* x, float* y, std::int64_t n);
                void exp_bounded_all(const float* x, float* y, std::int64_t n);
                void round_all(const float* x, BFloat16* y, std::int64_t n);
                void widen_all(const BFloat16* x, float* y, std::int64_t n);
                float max_of(const float* x, std::int64_t n);
                float sum_of(const float* x, std::int64_t n);
                double max_of(const double* x, std::int64_t n);
                double sum_of(const double* x, std::int64_t n);
                void transpose_16(const float* x, float* y);)

}  // namespace k25::kernels
