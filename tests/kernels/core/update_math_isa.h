#pragma once
// exact_log, exact_normal and adamw_update compiled for each instruction set, for update_math_test.

#include <cstdint>

#include "kernels/core/isa.h"
#include "kernels/core/update_math.h"

namespace k25::test {

K25_ISA_DECLARE(void log_of(const float* x, float* y, std::int64_t n);
                void normal_of(const float* u, float* y, std::int64_t n);
                void update_of(AdamWState* states, const float* gradients, const AdamWScalars& a,
                               std::int64_t n);)

}  // namespace k25::test
