#pragma once
// States and scalars of the CPU and the CUDA tests of AdamW.

#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/adamw/adamw.h"
#include "tests/kernels/op_test.h"

namespace k25::kernels::adamw_test {

using op_test::GuardedTensor;
using op_test::Layout;

struct State {
  GuardedTensor master, m, v, grad, copy;  ///< copy: bf16, for copy_out
};

/// Ordinary values, and then the whole range: random exponents from denormal to huge, zeros.
inline State random_state(std::int64_t n, Layout layout = {}) {
  State s{GuardedTensor(DType::kFloat32, {n}, layout), GuardedTensor(DType::kFloat32, {n}, layout),
          GuardedTensor(DType::kFloat32, {n}, layout), GuardedTensor(DType::kFloat32, {n}, layout),
          GuardedTensor(DType::kBFloat16, {n}, layout)};
  const Philox random(25, 1, "adamw states");
  std::uint64_t draw = 0;
  const auto value = [&](std::int64_t i) -> float {
    const std::uint32_t bits = random.bits(draw++);
    if (i % 3 == 0) return random.uniform(draw++) * 2 - 1;
    if (bits % 16 == 0) return bits % 32 == 0 ? 0.f : -0.f;
    const std::uint32_t exponent = (bits >> 8) % 255;  // 0 is denormal, 254 huge, never infinite
    return std::bit_cast<float>((bits & 0x807fffffu) | exponent << 23);
  };
  for (std::int64_t i = 0; i < n; ++i) {
    s.master.set(i, value(i));
    s.m.set(i, value(i));
    s.v.set(i, std::abs(value(i)));  // a mean of squares
    s.grad.set(i, value(i));
  }
  return s;
}

inline AdamWScalars typical() {
  return {.grad_scale = 0.37f,
          .beta1 = 0.9f,
          .one_minus_beta1 = 0.1f,
          .beta2 = 0.95f,
          .one_minus_beta2 = 0.05f,
          .bias_correction1 = 5.2631578f,
          .bias_correction2 = 10.256410f,
          .eps = 1e-8f,
          .lr = 3e-3f,
          .lr_weight_decay = 3e-4f};
}

}  // namespace k25::kernels::adamw_test
