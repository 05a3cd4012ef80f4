#include "kernels/residual/residual_cpu.h"

#include "kernels/core/vector_math.h"

namespace k25::kernels::K25_ISA {
namespace {

template <class T>
void add(const T* a, const T* b, T* y, std::int64_t n) {
#pragma GCC ivdep  // y is a, b, or apart from both
  for (std::int64_t i = 0; i < n; ++i) store_value(y + i, load_value(a + i) + load_value(b + i));
}

}  // namespace

void residual_cpu(const float* a, const float* b, float* y, std::int64_t n) { add(a, b, y, n); }
void residual_cpu(const BFloat16* a, const BFloat16* b, BFloat16* y, std::int64_t n) {
  add(a, b, y, n);
}
void residual_cpu(const double* a, const double* b, double* y, std::int64_t n) { add(a, b, y, n); }

}  // namespace k25::kernels::K25_ISA
