#include <bit>
#include <cmath>

#include "tests/kernels/adamw/adamw_states.h"
#include "tests/kernels/cuda_test.h"

namespace k25::kernels {
namespace {

using adamw_test::random_state;
using adamw_test::State;
using adamw_test::typical;
using op_test::GuardedTensor;
using op_test::Layout;
using op_test::OnGpu;
using op_test::throws_error;
using AdamWCudaTest = op_test::CudaTest;

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
