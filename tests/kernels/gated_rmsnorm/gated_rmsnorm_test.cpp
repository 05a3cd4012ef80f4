#include "kernels/gated_rmsnorm/gated_rmsnorm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/kernels/gated_rmsnorm/gated_rmsnorm_problem.h"
#include "tests/kernels/op_test.h"

namespace k25::kernels::gated_rmsnorm_test {
namespace {

using op_test::all_near;
using op_test::for_each_context;
using op_test::for_each_isa;
using op_test::throws_error;

constexpr Sizes kSizes[] = {{0, 2, 4},   {1, 1, 1},    {3, 2, 15},   {31, 1, 16},
                            {32, 3, 17}, {65, 1, 130}, {1030, 2, 3}, {5, 4, 128}};

TEST(GatedRmsNorm, ByHand) {
  for_each_isa([](Context& ctx) {
    Problem p({1, 1, 2});
    p.desc.eps = 3.5;  // mean 12.5, so the root is 4
    p.x.set({3, 4});
    p.gate.set({0, std::log(3.0)});  // sigmoid 1/2 and 3/4
    p.gain.set({2, 4});
    p.dy.set({1, 0});
    p.forward(ctx);
    EXPECT_TRUE(all_near(p.y.get(), {0.75, 3}, 1e-15));
    EXPECT_TRUE(all_near(p.rstd.get(), {0.25}, 1e-15));
    p.backward(ctx);  // n = (3/4, 1), z = (1, 0), mean(z n) = 3/8
    EXPECT_TRUE(all_near(p.dx.get(), {0.25 * (1 - 0.75 * 0.375), -0.25 * 0.375}, 1e-15));
    EXPECT_TRUE(all_near(p.dgate.get(), {0.75 * 2 * 0.25, 0}, 1e-15));
    EXPECT_TRUE(all_near(p.dgain.get(), {0.375, 0}, 1e-15));
  });
}

TEST(GatedRmsNorm, EveryShapeAndDType) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat64}) {
    for (const Sizes s : kSizes) {
      SCOPED_TRACE(std::to_string(s.rows) + " x " + std::to_string(s.cols));
      const Layout layout{.row_padding = 3, .shift = 1};
      const Problem low(s, dtype, layout);
      Problem exact(s);
      exact.x.set(low.x.get());
      exact.gate.set(low.gate.get());
      exact.gain.set(low.gain.get());
      exact.dy.set(low.dy.get());
      Context best = op_test::make_context();
      exact.forward(best);
      exact.backward(best);
      const std::vector<double> ref = low.naive<double>();
      EXPECT_TRUE(all_near(exact.y.get(), ref, 1e-13));
      const auto naive =
          dtype == DType::kBFloat16 ? low.naive<op_test::NaiveBf16>() : low.naive<float>();
      std::vector<std::vector<std::uint8_t>> first;
      for_each_context([&](Context& ctx) {
        const Problem p(s, dtype, layout);
        p.forward(ctx);
        p.backward(ctx);
        EXPECT_TRUE(op_test::low_precision_near(p.y.get(), naive, ref, 1e-6));
        const double storage = dtype == DType::kBFloat16 ? 0x1p-8 : 1e-5;
        EXPECT_TRUE(all_near(p.dx.get(), exact.dx.get(), storage));
        EXPECT_TRUE(all_near(p.dgate.get(), exact.dgate.get(), storage));
        EXPECT_TRUE(all_near(p.dgain.get(), exact.dgain.get(), 1e-5));
        std::size_t i = 0;
        for (const GuardedTensor* t : {&p.y, &p.rstd, &p.dx, &p.dgate, &p.dgain}) {
          EXPECT_TRUE(t->guards_intact());
          if (first.size() <= i) first.push_back(t->bits());
          EXPECT_EQ(t->bits(), first[i++]);
        }
      });
    }
  }
}

TEST(GatedRmsNorm, FiniteDifferences) {
  for_each_isa([](Context& ctx) {
    Problem p({3, 2, 19});
    p.forward(ctx);
    p.backward(ctx);
    const auto loss = [&] {
      p.forward(ctx);
      return op_test::weighted_sum(p.dy.get(), p.y.get());
    };
    EXPECT_TRUE(op_test::gradient_near(p.x, p.dx.get(), loss));
    EXPECT_TRUE(op_test::gradient_near(p.gate, p.dgate.get(), loss));
    EXPECT_TRUE(op_test::gradient_near(p.gain, p.dgain.get(), loss));
  });
}

TEST(GatedRmsNorm, OverItsInputs) {
  for_each_context([](Context& ctx) {
    const Sizes s{40, 2, 33};
    const Problem apart(s, DType::kFloat32);
    apart.forward(ctx);
    apart.backward(ctx);
    const GatedRmsNormPlan plan = gated_rmsnorm_plan(apart.desc);
    const Scratch scratch(plan.workspace_bytes);
    for (const bool over_x : {true, false}) {
      const Problem p(s, DType::kFloat32);
      const GuardedTensor& y = over_x ? p.x : p.gate;
      gated_rmsnorm_forward(ctx, plan, {p.x, p.gate, p.gain}, {y, p.rstd}, {});
      EXPECT_EQ(y.bits(), apart.y.bits());
      const Problem b(s, DType::kFloat32);
      const GuardedTensor& dx = over_x ? b.x : b.dy;
      const GuardedTensor& dgate = over_x ? b.dy : b.gate;
      gated_rmsnorm_backward(ctx, plan, {b.dy, b.x, b.gate, b.gain, apart.rstd}, {dx, dgate, {}},
                             scratch.workspace());
      EXPECT_EQ(dx.bits(), apart.dx.bits());
      EXPECT_EQ(dgate.bits(), apart.dgate.bits());
    }
  });
}

TEST(GatedRmsNorm, GainGradientIsAdded) {
  Context ctx = op_test::make_context();
  const Problem p({5, 2, 7}, DType::kFloat32);
  p.forward(ctx);
  p.backward(ctx);
  const auto once = p.dgain.get();
  p.backward(ctx);
  for (std::size_t i = 0; i < once.size(); ++i) {
    EXPECT_EQ(p.dgain.get(static_cast<std::int64_t>(i)), 2 * once[i]);
  }
}

TEST(GatedRmsNorm, SaturatedGates) {
  for_each_isa([](Context& ctx) {
    Problem p({1, 1, 4}, DType::kFloat32);
    p.x.set({1, -1, 1, -1});
    p.gate.set({-1000, 1000, -HUGE_VAL, HUGE_VAL});
    p.gain.fill(1);
    p.dy.fill(1);
    p.forward(ctx);
    EXPECT_TRUE(all_near(p.y.get(), {0, -1, 0, -1}, 1e-5));
    p.backward(ctx);
    EXPECT_EQ(p.dgate.get(), std::vector<double>(4, 0.0));
  });
}

TEST(GatedRmsNorm, RefusesWhatDoesNotFit) {
  Context ctx = op_test::make_context();
  const ErrorKind usage = ErrorKind::kUsage;
  const auto no_plan = [&](const GatedRmsNormDesc& d,
                           std::initializer_list<std::string_view> parts) {
    EXPECT_TRUE(throws_error([&] { gated_rmsnorm_plan(d); }, usage, parts));
  };
  no_plan({.rows = -1, .cols = 4}, {"gated_rmsnorm: rows -1"});
  no_plan({.rows = 1, .heads = 0, .cols = 4}, {"heads 0"});
  no_plan({.rows = 1, .cols = 0}, {"cols 0"});
  no_plan({.rows = 1, .cols = 4, .dtype = DType::kInt32}, {"int32"});
  no_plan({.rows = 1, .cols = 4, .eps = -1}, {"eps", "positive"});
  no_plan({.rows = 1, .cols = 4, .dtype = DType::kFloat64, .device = Device::kCuda},
          {"fp64 runs on the CPU only"});
  const Problem p({2, 3, 4}, DType::kBFloat16);
  const GatedRmsNormPlan plan = gated_rmsnorm_plan(p.desc);
  EXPECT_TRUE(
      throws_error([&] { gated_rmsnorm_forward(ctx, plan, {p.x, {}, p.gain}, {p.y, p.rstd}, {}); },
                   usage, {"gate_NHD is missing"}));
  EXPECT_TRUE(throws_error(
      [&] { gated_rmsnorm_forward(ctx, plan, {p.x, p.gate, p.rstd}, {p.y, p.rstd}, {}); }, usage,
      {"gain_D is fp32 [2, 3]", "expected fp32 [4]"}));
  EXPECT_TRUE(throws_error(
      [&] {
        gated_rmsnorm_backward(ctx, plan, {p.dy, p.x, p.gate, p.gain, p.rstd},
                               {p.dx, p.dgate, p.dgain}, {});
      },
      usage, {"workspace of 0 bytes"}));
}

}  // namespace
}  // namespace k25::kernels::gated_rmsnorm_test
