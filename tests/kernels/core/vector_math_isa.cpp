#include "tests/kernels/core/vector_math_isa.h"

#include "kernels/core/vector_math.h"

namespace k25::kernels::K25_ISA {

void exp_all(const float* x, float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = exp_approx(x[i]);
}
void exp_bounded_all(const float* x, float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = exp_bounded(x[i]);
}
void round_all(const float* x, BFloat16* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) store_value(y + i, x[i]);
}
void widen_all(const BFloat16* x, float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = load_value(x + i);
}
float max_of(const float* x, std::int64_t n) { return row_max(x, n); }
float sum_of(const float* x, std::int64_t n) { return row_sum(x, n); }
double max_of(const double* x, std::int64_t n) { return row_max(x, n); }
double sum_of(const double* x, std::int64_t n) { return row_sum(x, n); }
void transpose_16(const float* x, float* y) {
  for (int r = 0; r < 16; r += kLanesOf<float>) {
    for (int c = 0; c < 16; c += kLanesOf<float>)
      transpose_block(x + r * 16 + c, 16, y + c * 16 + r, 16);
  }
}

}  // namespace k25::kernels::K25_ISA
