#include <bit>
#include <cmath>

#include "kernels/adamw/adamw.h"
#include "tests/kernels/cuda_test.h"

namespace k25::kernels {
namespace {

using op_test::GuardedTensor;
using op_test::Layout;
using op_test::OnGpu;
using op_test::throws_error;
using AdamWCudaTest = op_test::CudaTest;

struct State {
  GuardedTensor master, m, v, grad, copy;
};

/// Ordinary values, and then the whole range: random exponents from denormal to huge, zeros.
State random_state(std::int64_t n, Layout layout = {}) {
  State s{GuardedTensor(DType::kFloat32, {n}, layout), GuardedTensor(DType::kFloat32, {n}, layout),
          GuardedTensor(DType::kFloat32, {n}, layout), GuardedTensor(DType::kFloat32, {n}, layout),
          GuardedTensor(DType::kBFloat16, {n}, layout)};
  const Philox random(25, 1, "adamw states");
  std::uint64_t draw = 0;
  const auto value = [&](std::int64_t i) -> float {
    const std::uint32_t bits = random.bits(draw++);
    if (i % 3 == 0) return random.uniform(draw++) * 2 - 1;
    if (bits % 16 == 0) return bits % 32 == 0 ? 0.f : -0.f;
    return std::bit_cast<float>((bits & 0x807fffffu) | (bits >> 8) % 255 << 23);
  };
  for (std::int64_t i = 0; i < n; ++i) {
    s.master.set(i, value(i));
    s.m.set(i, value(i));
    s.v.set(i, std::abs(value(i)));
    s.grad.set(i, value(i));
  }
  return s;
}

AdamWScalars typical() {
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

/// Equal bits; any NaN equals any other (IEEE leaves the payload open).
::testing::AssertionResult same_bits(const GuardedTensor& ours, const GuardedTensor& want) {
  for (std::int64_t i = 0; i < want.count(); ++i) {
    const double a = ours.get(i), b = want.get(i);
    if (std::isnan(a) && std::isnan(b)) continue;
    if (std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b)) continue;
    return ::testing::AssertionFailure() << i << ": " << std::hexfloat << a << ", expected " << b;
  }
  return ::testing::AssertionSuccess();
}

enum class Copy { kNone, kBf16 };

void expect_equal(Context& cpu, Context& gpu, std::int64_t n, Layout layout, const AdamWScalars& a,
                  Copy copy) {
  const State want = random_state(n), s = random_state(n, layout);
  const bool copies = copy == Copy::kBf16;
  adamw_update(cpu, {.grad_n = want.grad, .scalars = a},
               {.master_n = want.master,
                .m_n = want.m,
                .v_n = want.v,
                .copy_out_n = copies ? want.copy.tensor() : Tensor()});
  const OnGpu master(gpu, s.master), m(gpu, s.m), v(gpu, s.v), grad(gpu, s.grad);
  const OnGpu on_copy(gpu, s.copy);
  adamw_update(
      gpu, {.grad_n = grad, .scalars = a},
      {.master_n = master, .m_n = m, .v_n = v, .copy_out_n = copies ? on_copy.tensor() : Tensor()});
  EXPECT_TRUE(same_bits(master.fetch(), want.master));
  EXPECT_TRUE(same_bits(m.fetch(), want.m));
  EXPECT_TRUE(same_bits(v.fetch(), want.v));
  EXPECT_EQ(grad.fetch().bits(), want.grad.bits());
  EXPECT_TRUE(same_bits(on_copy.fetch(), want.copy));  // both unwritten without a copy
  for (const GuardedTensor* t : {&s.master, &s.m, &s.v, &s.grad, &s.copy}) {
    EXPECT_TRUE(t->guards_intact());
  }
}

TEST_F(AdamWCudaTest, EqualsTheCpuBitForBitOverTheWholeRange) {
  AdamWScalars huge = typical();
  huge.grad_scale = 1e30f;
  AdamWScalars plain = typical();
  plain.lr_weight_decay = 0.f;
  plain.eps = 0.f;  // 0 / 0 where v is 0
  for (const AdamWScalars& a : {typical(), huge, plain}) {
    expect_equal(cpu(), gpu(), 200001, {}, a, Copy::kBf16);
  }
}

TEST_F(AdamWCudaTest, EverySizeAndShiftStaysInside) {
  for (const std::int64_t n : {0, 1, 3, 4, 5, 1023, 1024, 1025}) {
    for (const Layout layout : {Layout{}, Layout{.shift = 1}, Layout{.shift = 4}}) {
      expect_equal(cpu(), gpu(), n, layout, typical(), Copy::kNone);
      expect_equal(cpu(), gpu(), n, layout, typical(), Copy::kBf16);
    }
  }
}

TEST_F(AdamWCudaTest, RefusesMixedDevices) {
  const ErrorKind usage = ErrorKind::kUsage;
  const State s = random_state(4);
  const OnGpu grad(gpu(), s.grad), m(gpu(), s.m);
  EXPECT_TRUE(throws_error(
      [&] {
        adamw_update(gpu(), {.grad_n = grad, .scalars = typical()},
                     {.master_n = s.master, .m_n = m, .v_n = m, .copy_out_n = {}});
      },
      usage, {"master_n is in host memory"}));
  EXPECT_TRUE(throws_error(
      [&] {
        adamw_update(gpu(), {.grad_n = s.grad, .scalars = typical()},
                     {.master_n = s.master, .m_n = m, .v_n = s.v, .copy_out_n = {}});
      },
      usage, {"m_n is on the GPU"}));
}

}  // namespace
}  // namespace k25::kernels
