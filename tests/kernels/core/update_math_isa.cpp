#include "tests/kernels/core/update_math_isa.h"

namespace k25::test::K25_ISA {

void log_of(const float* x, float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = exact_log(x[i]);
}

void normal_of(const float* u, float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = exact_normal(u[i]);
}

void update_of(AdamWState* states, const float* gradients, const AdamWScalars& a, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) states[i] = adamw_update(states[i], gradients[i], a);
}

}  // namespace k25::test::K25_ISA
