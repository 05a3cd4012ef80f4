#pragma once
// The ISA kernels behind residual.h. One run of n elements; y may be a or b.

#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/core/isa.h"

namespace k25::kernels {

K25_ISA_DECLARE(void residual_cpu(const float* a, const float* b, float* y, std::int64_t n);
                void residual_cpu(const BFloat16* a, const BFloat16* b, BFloat16* y,
                                  std::int64_t n);
                void residual_cpu(const double* a, const double* b, double* y, std::int64_t n);)

}  // namespace k25::kernels
