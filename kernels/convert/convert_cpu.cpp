#include "kernels/convert/convert_cpu.h"

#include "kernels/core/vector_math.h"

namespace k25::kernels::K25_ISA {

void convert_f32_to_bf16(const float* __restrict x, BFloat16* __restrict y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) store_value(y + i, x[i]);
}

void convert_bf16_to_f32(const BFloat16* __restrict x, float* __restrict y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = load_value(x + i);
}

void convert_f32_to_f64(const float* __restrict x, double* __restrict y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = x[i];
}

void convert_f64_to_f32(const double* __restrict x, float* __restrict y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = static_cast<float>(x[i]);
}

}  // namespace k25::kernels::K25_ISA
