#include "kernels/adamw/adamw.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/kernels/adamw/adamw_states.h"

namespace k25::kernels {
namespace {

using adamw_test::random_state;
using adamw_test::State;
using adamw_test::typical;
using op_test::GuardedTensor;
using op_test::Layout;
using op_test::random_tensor;
using op_test::throws_error;

/// Equal bits; any NaN equals any other (IEEE leaves the payload open).
::testing::AssertionResult same_bits(float ours, float expected) {
  if (std::isnan(ours) && std::isnan(expected)) return ::testing::AssertionSuccess();
  if (std::bit_cast<std::uint32_t>(ours) == std::bit_cast<std::uint32_t>(expected)) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << std::hexfloat << ours << ", expected " << expected;
}

TEST(AdamW, ByHand) {
  // g = 2 x 0.5 = 1; m = 0.5 x 0 + 0.5 = 0.5; v = 0.75 x 0 + 0.25 = 0.25; corrected: m = 1, v = 1.
  // w = 4 - 0.125 x 4 - 0.25 x 1 / (1 + 1) = 3.375. All exact in binary.
  const AdamWScalars a{.grad_scale = 0.5f,
                       .beta1 = 0.5f,
                       .one_minus_beta1 = 0.5f,
                       .beta2 = 0.75f,
                       .one_minus_beta2 = 0.25f,
                       .bias_correction1 = 2.f,
                       .bias_correction2 = 4.f,
                       .eps = 1.f,
                       .lr = 0.25f,
                       .lr_weight_decay = 0.125f};
  op_test::for_each_isa([&](Context& ctx) {
    const GuardedTensor master(DType::kFloat32, {1}, std::vector<double>{4});
    const GuardedTensor m(DType::kFloat32, {1}, std::vector<double>{0});
    const GuardedTensor v(DType::kFloat32, {1}, std::vector<double>{0});
    const GuardedTensor grad(DType::kFloat32, {1}, std::vector<double>{2});
    const GuardedTensor copy(DType::kBFloat16, {1});
    adamw_update(ctx, {.grad_n = grad, .scalars = a},
                 {.master_n = master, .m_n = m, .v_n = v, .copy_out_n = copy});
    EXPECT_EQ(master.get(0), 3.375);
    EXPECT_EQ(m.get(0), 0.5);
    EXPECT_EQ(v.get(0), 0.25);
    EXPECT_EQ(copy.get(0), 3.375);
  });
}

TEST(AdamW, EveryInstructionSetGivesTheBitsOfTheHeader) {
  constexpr std::int64_t kCount = 40001;
  AdamWScalars huge = typical();
  huge.grad_scale = 1e30f;
  AdamWScalars plain = typical();
  plain.lr_weight_decay = 0.f;
  plain.eps = 0.f;  // 0 / 0 where v is 0: NaN in all builds alike
  for (const AdamWScalars& a : {typical(), huge, plain}) {
    const State before = random_state(kCount);
    op_test::for_each_context([&](Context& ctx) {
      const State s = random_state(kCount, Layout{.shift = 1});
      const GuardedTensor copy(DType::kBFloat16, {kCount}, Layout{.shift = 3});
      adamw_update(ctx, {.grad_n = s.grad, .scalars = a},
                   {.master_n = s.master, .m_n = s.m, .v_n = s.v, .copy_out_n = copy});
      for (std::int64_t i = 0; i < kCount; ++i) {
        const AdamWState expected = ::k25::adamw_update(
            {static_cast<float>(before.master.get(i)), static_cast<float>(before.m.get(i)),
             static_cast<float>(before.v.get(i))},
            static_cast<float>(before.grad.get(i)), a);
        const auto master = static_cast<float>(s.master.get(i));
        ASSERT_TRUE(same_bits(master, expected.master)) << i;
        ASSERT_TRUE(same_bits(static_cast<float>(s.m.get(i)), expected.m)) << i;
        ASSERT_TRUE(same_bits(static_cast<float>(s.v.get(i)), expected.v)) << i;
        ASSERT_TRUE(
            same_bits(static_cast<float>(copy.get(i)), static_cast<float>(BFloat16(master))))
            << i;
      }
      EXPECT_TRUE(s.master.guards_intact());
      EXPECT_TRUE(s.m.guards_intact());
      EXPECT_TRUE(s.v.guards_intact());
      EXPECT_TRUE(copy.guards_intact());
      EXPECT_EQ(s.grad.bits(), before.grad.bits());
    });
  }
}

TEST(AdamW, FollowsTheFormulaInFp64) {
  constexpr std::int64_t kCount = 1000;
  Context ctx = op_test::make_context();
  const AdamWScalars a = typical();
  const GuardedTensor master = random_tensor("w", DType::kFloat32, {kCount});
  const GuardedTensor m = random_tensor("m", DType::kFloat32, {kCount});
  const GuardedTensor v = random_tensor("v", DType::kFloat32, {kCount}, {}, 0.01, 1);
  const GuardedTensor grad = random_tensor("g", DType::kFloat32, {kCount});
  std::vector<double> expected;
  for (std::int64_t i = 0; i < kCount; ++i) {
    const double g = double{a.grad_scale} * grad.get(i);
    const double m1 = double{a.beta1} * m.get(i) + double{a.one_minus_beta1} * g;
    const double v1 = double{a.beta2} * v.get(i) + double{a.one_minus_beta2} * g * g;
    const double step = m1 * double{a.bias_correction1} /
                        (std::sqrt(v1 * double{a.bias_correction2}) + double{a.eps});
    expected.push_back(master.get(i) - double{a.lr_weight_decay} * master.get(i) -
                       double{a.lr} * step);
  }
  adamw_update(ctx, {.grad_n = grad, .scalars = a},
               {.master_n = master, .m_n = m, .v_n = v, .copy_out_n = {}});
  EXPECT_TRUE(op_test::all_near(master.get(), expected, 2e-7));
}

TEST(AdamW, EverySizeStaysInsideItsRange) {
  for (const std::int64_t n : {0, 1, 2, 7, 8, 15, 16, 17, 1023, 1024, 1025, 16384, 16385}) {
    op_test::for_each_context([n](Context& ctx) {
      const State whole = random_state(n);
      const State s = random_state(n, Layout{.shift = 2});
      adamw_update(ctx, {.grad_n = s.grad, .scalars = typical()},
                   {.master_n = s.master, .m_n = s.m, .v_n = s.v, .copy_out_n = {}});
      EXPECT_TRUE(s.master.guards_intact());
      // In two calls: the range does not matter to the bits.
      const std::int64_t half = n / 2;
      for (const auto& [begin, end] : {std::pair{std::int64_t{0}, half}, std::pair{half, n}}) {
        const auto cut = [begin = begin, end = end](const GuardedTensor& t) {
          return t.tensor().slice(0, begin, end);
        };
        adamw_update(ctx, {.grad_n = cut(whole.grad), .scalars = typical()},
                     {.master_n = cut(whole.master),
                      .m_n = cut(whole.m),
                      .v_n = cut(whole.v),
                      .copy_out_n = {}});
      }
      EXPECT_EQ(whole.master.bits(), s.master.bits());
      EXPECT_EQ(whole.m.bits(), s.m.bits());
      EXPECT_EQ(whole.v.bits(), s.v.bits());
    });
  }
}

TEST(AdamW, BesideTheOldStateItHasTheSameBits) {
  for (const std::int64_t n : {0, 1, 15, 16, 17, 1023, 1024, 1025, 16385}) {
    for (const int shift : {0, 1, 2, 13}) {
      op_test::for_each_context([&](Context& ctx) {
        const State old = random_state(n), want = random_state(n);
        const State next = random_state(n, Layout{.shift = shift});
        const std::vector<std::uint8_t> before = old.master.bits();
        adamw_update(
            ctx, {.grad_n = want.grad, .scalars = typical()},
            {.master_n = want.master, .m_n = want.m, .v_n = want.v, .copy_out_n = want.copy});
        adamw_update(
            ctx,
            {.grad_n = old.grad,
             .scalars = typical(),
             .old_master_n = old.master,
             .old_m_n = old.m,
             .old_v_n = old.v},
            {.master_n = next.master, .m_n = next.m, .v_n = next.v, .copy_out_n = next.copy});
        EXPECT_EQ(next.master.bits(), want.master.bits());
        EXPECT_EQ(next.m.bits(), want.m.bits());
        EXPECT_EQ(next.v.bits(), want.v.bits());
        EXPECT_EQ(next.copy.bits(), want.copy.bits());
        EXPECT_EQ(old.master.bits(), before);
        for (const GuardedTensor* t : {&next.master, &next.m, &next.v, &next.copy}) {
          EXPECT_TRUE(t->guards_intact());
        }
      });
    }
  }
}

TEST(AdamW, RefusesWhatDoesNotFit) {
  Context ctx = op_test::make_context();
  const ErrorKind usage = ErrorKind::kUsage;
  const GuardedTensor a(DType::kFloat32, {4});
  const GuardedTensor small(DType::kFloat32, {3});
  const GuardedTensor low(DType::kBFloat16, {4});
  const GuardedTensor matrix(DType::kFloat32, {2, 2});
  const auto call = [&](const ConstTensor& grad, const AdamWOut& out) {
    return [&ctx, grad, out] { adamw_update(ctx, {.grad_n = grad, .scalars = typical()}, out); };
  };
  EXPECT_TRUE(throws_error(call(a, {.master_n = small, .m_n = a, .v_n = a, .copy_out_n = {}}),
                           usage, {"adamw_update", "master_n is fp32 [3]", "expected fp32 [4]"}));
  EXPECT_TRUE(throws_error(
      [&] {
        adamw_update(ctx, {.grad_n = a, .scalars = typical(), .old_master_n = a, .old_v_n = a},
                     {.master_n = a, .m_n = a, .v_n = a, .copy_out_n = {}});
      },
      usage, {"old_m_n"}));
  EXPECT_TRUE(throws_error(call(a, {.master_n = a, .m_n = {}, .v_n = a, .copy_out_n = {}}), usage,
                           {"m_n is missing"}));
  EXPECT_TRUE(throws_error(call(a, {.master_n = a, .m_n = a, .v_n = low, .copy_out_n = {}}), usage,
                           {"v_n is bf16"}));
  EXPECT_TRUE(throws_error(call(a, {.master_n = a, .m_n = a, .v_n = a, .copy_out_n = small}), usage,
                           {"copy_out_n is fp32 [3]", "expected bf16 [4]"}));
  EXPECT_TRUE(throws_error(call(matrix, {.master_n = a, .m_n = a, .v_n = a, .copy_out_n = {}}),
                           usage, {"grad_n is [2, 2]", "one dimension"}));
  const Tensor device(a.tensor().raw(), DType::kFloat32, {4}, Device::kCuda);
  EXPECT_TRUE(throws_error(call(a, {.master_n = device, .m_n = a, .v_n = a, .copy_out_n = {}}),
                           usage, {"master_n is on the GPU"}));
}

}  // namespace
}  // namespace k25::kernels
