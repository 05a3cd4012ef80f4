#include "kernels/core/update_math.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

#include "kernels/core/philox.h"
#include "tests/kernels/core/update_math_isa.h"
#include "tests/kernels/op_test.h"

namespace k25 {
namespace {

/// |y - exact| in units of the last place of a float near `exact`.
double ulps(float y, double exact) {
  int exponent = 0;
  std::frexp(exact, &exponent);
  return std::abs(static_cast<double>(y) - exact) / std::ldexp(1.0, exponent - 24);
}

TEST(ExactLog, PowersOfTwoAndOne) {
  EXPECT_EQ(exact_log(1.f), 0.f);
  EXPECT_EQ(exact_log(2.f), 0x1.62e43p-1f);
  EXPECT_EQ(exact_log(0.5f), -0x1.62e43p-1f);
  EXPECT_EQ(exact_log(0x1p-24f), -0x1.0a2b24p+4f);
}

TEST(ExactLog, EveryFloatAroundOneIsWithinTwoUlps) {
  // All floats in [0.5, 2), where the result is small or changes sign; a sample of the others.
  double worst = 0;
  const auto visit = [&](std::uint32_t bits) {
    const float x = std::bit_cast<float>(bits);
    if (x == 1.f) return;
    worst = std::max(worst, ulps(exact_log(x), std::log(static_cast<double>(x))));
  };
  for (std::uint32_t bits = 0x3f000000u; bits < 0x40000000u; bits += 3) visit(bits);
  for (std::uint32_t bits = 0x3f7f0000u; bits < 0x3f810000u; ++bits) visit(bits);
  for (std::uint32_t bits = 0x00800000u; bits < 0x7f800000u; bits += 1009) visit(bits);
  visit(0x7f7fffffu);
  EXPECT_LE(worst, 0.91);
  EXPECT_GT(worst, 0.5);  // the measure itself works
}

/// The normal distribution function, from below for u < 1/2 and from above otherwise.
double normal_error(float u, float x) {
  const double density = std::exp(-0.5 * x * x) / std::sqrt(2 * std::numbers::pi);
  if (u < 0.5f) return (0.5 * std::erfc(-x / std::numbers::sqrt2) - u) / density;
  return (0.5 * std::erfc(x / std::numbers::sqrt2) - (1.0 - u)) / density;
}

TEST(ExactNormal, HandValues) {
  EXPECT_EQ(exact_normal(0.5f), 0.f);
  EXPECT_NEAR(exact_normal(0.975f), 1.9599639845, 1e-6);
  EXPECT_NEAR(exact_normal(0.025f), -1.9599639845, 1e-6);
  EXPECT_NEAR(exact_normal(0x1p-24f), -5.2947058, 3e-6);
}

TEST(ExactNormal, ErrorIsAsStated) {
  double worst = 0;
  const auto visit = [&](float u) {
    const float x = exact_normal(u);
    const double error = std::abs(normal_error(u, x)) / std::max(1.0, std::abs(double{x}));
    worst = std::max(worst, error);
  };
  for (std::uint32_t i = 0; i < 1u << 23; i += 37) {
    visit((static_cast<float>(i) + 0.5f) * 0x1p-23f);
  }
  for (std::uint32_t bits = 0x00800000u; bits < 0x3f800000u; bits += 20011) {
    visit(std::bit_cast<float>(bits));
  }
  EXPECT_LE(worst, 4e-7);
  EXPECT_GT(worst, 1e-8);
}

TEST(ExactNormal, IsAntisymmetricAndIncreasing) {
  float last = -100.f;
  for (std::uint32_t i = 0; i < 1u << 23; i += 101) {
    const float u = (static_cast<float>(i) + 0.5f) * 0x1p-23f;
    const float x = exact_normal(u);
    ASSERT_EQ(exact_normal(1.f - u), -x) << u;
    ASSERT_GT(x, last) << u;
    last = x;
  }
}

TEST(ExactMath, BitsAreEqualOnEveryInstructionSet) {
  std::vector<float> x, u;
  for (std::uint32_t bits = 0x00800000u; bits < 0x7f800000u; bits += 5003) {
    x.push_back(std::bit_cast<float>(bits));
    if (bits < 0x3f800000u) u.push_back(x.back());
  }
  const auto n = static_cast<std::int64_t>(x.size()), m = static_cast<std::int64_t>(u.size());
  std::vector<float> log_y(x.size()), normal_y(u.size());
  for (std::size_t i = 0; i < x.size(); ++i) log_y[i] = exact_log(x[i]);
  for (std::size_t i = 0; i < u.size(); ++i) normal_y[i] = exact_normal(u[i]);
  for (const CpuIsa isa : op_test::available_isas()) {
    std::vector<float> y(x.size());
    using namespace test;
    K25_ISA_CALL(isa, log_of, x.data(), y.data(), n);
    EXPECT_EQ(y, log_y) << cpu_isa_name(isa);
    y.resize(u.size());
    K25_ISA_CALL(isa, normal_of, u.data(), y.data(), m);
    EXPECT_EQ(y, normal_y) << cpu_isa_name(isa);
  }
}

TEST(AdamWUpdate, HandComputedStep) {
  // First step, all numbers exact in binary: beta1 = 1/2, beta2 = 3/4.
  AdamWScalars a;
  a.grad_scale = 0.5f;
  a.beta1 = 0.5f;
  a.one_minus_beta1 = 0.5f;
  a.beta2 = 0.75f;
  a.one_minus_beta2 = 0.25f;
  a.bias_correction1 = 2.f;
  a.bias_correction2 = 4.f;
  a.eps = 0.f;
  a.lr = 0.125f;
  a.lr_weight_decay = 0.25f;
  // g' = 2; m = 1; v = 1; update = 2 / sqrt(4) = 1; w = 8 - 0.25 * 8 - 0.125 = 5.875.
  const AdamWState s = adamw_update({8.f, 0.f, 0.f}, 4.f, a);
  EXPECT_EQ(s.m, 1.f);
  EXPECT_EQ(s.v, 1.f);
  EXPECT_EQ(s.master, 5.875f);
}

TEST(AdamWUpdate, EpsilonIsAddedOutsideTheRoot) {
  AdamWScalars a;
  a.beta1 = a.beta2 = 0.f;
  a.one_minus_beta1 = a.one_minus_beta2 = 1.f;
  a.eps = 1.f;
  a.lr = 1.f;
  // g = 1: update = 1 / (1 + 1); inside the root it would be 1 / sqrt(2).
  EXPECT_EQ(adamw_update({0.f, 0.f, 0.f}, 1.f, a).master, -0.5f);
  // A zero gradient with zero moments moves nothing.
  EXPECT_EQ(adamw_update({3.f, 0.f, 0.f}, 0.f, a).master, 3.f);
}

AdamWScalars scalars(double beta1, double beta2) {
  AdamWScalars a;
  a.grad_scale = 0.37f;
  a.beta1 = static_cast<float>(beta1);
  a.one_minus_beta1 = static_cast<float>(1.0 - beta1);
  a.beta2 = static_cast<float>(beta2);
  a.one_minus_beta2 = static_cast<float>(1.0 - beta2);
  a.bias_correction1 = static_cast<float>(1.0 / (1.0 - std::pow(beta1, 7)));
  a.bias_correction2 = static_cast<float>(1.0 / (1.0 - std::pow(beta2, 7)));
  a.lr = 3e-4f;
  a.lr_weight_decay = 3e-5f;
  return a;
}

TEST(AdamWUpdate, EqualsTheFormulaInDouble) {
  for (const auto& [b1, b2] : {std::array{0.9, 0.99}, {0.9, 0.999}, {0.99, 0.999}, {0.9, 0.95}}) {
    const AdamWScalars a = scalars(b1, b2);
    const Philox random(3, 0, "adamw");
    for (std::uint64_t i = 0; i < 1000; ++i) {
      const AdamWState old{random.normal(4 * i), 0.1f * random.normal(4 * i + 1),
                           1e-2f * random.uniform(4 * i + 2)};
      const float grad = random.normal(4 * i + 3);
      const double g = double{grad} * a.grad_scale;
      const double m = double{a.beta1} * old.m + double{a.one_minus_beta1} * g;
      const double v = double{a.beta2} * old.v + double{a.one_minus_beta2} * g * g;
      const double step = m * a.bias_correction1 / (std::sqrt(v * a.bias_correction2) + a.eps);
      const double w = old.master - double{a.lr_weight_decay} * old.master - a.lr * step;
      const AdamWState s = adamw_update(old, grad, a);
      // Each of the few roundings costs half an ulp of an intermediate.
      EXPECT_NEAR(s.m, m, 2.5e-7 * (std::abs(old.m) + std::abs(g)));
      EXPECT_NEAR(s.v, v, 3e-7 * v);
      EXPECT_NEAR(s.master, w, 1.2e-7 * std::abs(w) + 1e-6 * a.lr * std::abs(step) + 1e-9 * a.lr);
    }
  }
}

TEST(AdamWUpdate, MomentsFollowTheirBetasWithoutDrift) {
  // With a constant gradient of 1, v_t = 1 - beta2^t: 0.001 must enter as 1 - 0.999, not as a
  // rounded float difference (1.f - 0.999f is off by 1e-5 relative).
  for (const double beta : {0.9, 0.99, 0.999}) {
    AdamWScalars a = scalars(beta, beta);
    a.grad_scale = 1.f;
    EXPECT_EQ(a.one_minus_beta1, static_cast<float>(1.0 - beta));
    AdamWState s{0.f, 0.f, 0.f};
    for (int t = 0; t < 5000; ++t) s = adamw_update(s, 1.f, a);
    const double expected = 1.0 - std::pow(beta, 5000);
    EXPECT_NEAR(s.v, expected, 1e-4) << beta;
    EXPECT_NEAR(s.m, expected, 1e-4) << beta;
  }
}

TEST(AdamWUpdate, BitsAreEqualOnEveryInstructionSet) {
  constexpr std::size_t kCount = 1003;
  const Philox random(5, 0, "adamw bits");
  std::vector<AdamWState> states(kCount);
  std::vector<float> gradients(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    states[i] = {random.normal(4 * i), random.normal(4 * i + 1), random.uniform(4 * i + 2)};
    gradients[i] = random.normal(4 * i + 3);
  }
  const AdamWScalars a = scalars(0.9, 0.999);
  std::vector<AdamWState> expected(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    expected[i] = adamw_update(states[i], gradients[i], a);
  }
  for (const CpuIsa isa : op_test::available_isas()) {
    std::vector<AdamWState> ours = states;
    using namespace test;
    K25_ISA_CALL(isa, update_of, ours.data(), gradients.data(), a,
                 static_cast<std::int64_t>(kCount));
    for (std::size_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(ours[i].master),
                std::bit_cast<std::uint32_t>(expected[i].master));
      ASSERT_EQ(std::bit_cast<std::uint32_t>(ours[i].m),
                std::bit_cast<std::uint32_t>(expected[i].m));
      ASSERT_EQ(std::bit_cast<std::uint32_t>(ours[i].v),
                std::bit_cast<std::uint32_t>(expected[i].v));
    }
  }
}

}  // namespace
}  // namespace k25
