#pragma once
// The ISA kernels behind convert.h. Ranges of one contiguous run; x and y do not overlap.

#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/core/isa.h"

namespace k25::kernels {

K25_ISA_DECLARE(void convert_f32_to_bf16(const float* x, BFloat16* y, std::int64_t n);
                void convert_bf16_to_f32(const BFloat16* x, float* y, std::int64_t n);
                void convert_f32_to_f64(const float* x, double* y, std::int64_t n);
                void convert_f64_to_f32(const double* x, float* y, std::int64_t n);)

}  // namespace k25::kernels
