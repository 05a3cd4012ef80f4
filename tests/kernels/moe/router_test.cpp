#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string_view>
#include <vector>

#include "tests/kernels/moe/router_oracle.h"

namespace k25::kernels {
namespace {

using moe_test::describe;
using moe_test::naive_routing;
using moe_test::Routed;
using moe_test::router_desc;
using moe_test::router_shapes;
using moe_test::RouterProblem;
using op_test::all_near;
using op_test::GuardedTensor;
using op_test::throws_error;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(MoeRouter, HandComputed) {
  op_test::for_each_isa([](Context& ctx) {
    // Scores 1/2, 3/4, 1/4, 1/5. The bias lifts expert 3 above expert 0, and has no part in
    // weights.
    RouterProblem p(router_desc(1, 4, 2, DType::kFloat32));
    p.desc.scale = 2;
    p.logits.set({0, std::log(3.0), -std::log(3.0), -std::log(4.0)});
    p.bias.set({0, 0, 0, 0.4});
    p.forward(ctx);
    EXPECT_TRUE(all_near(p.scores.get(), {0.5, 0.75, 0.25, 0.2}, 1e-6));
    EXPECT_EQ(p.index.get(), (std::vector<double>{1, 3}));
    EXPECT_TRUE(all_near(p.weight.get(), {2 * 0.75 / 0.95, 2 * 0.2 / 0.95}, 1e-6));
    // dw = (1, 0): ds_1 = 2 * 0.2 / 0.95^2, ds_3 = -2 * 0.75 / 0.95^2, times s (1 - s).
    p.dweight.set({1, 0});
    p.dscores.set({0, 0, 1, 0});
    p.backward(ctx);
    const double square = 0.95 * 0.95;
    EXPECT_TRUE(
        all_near(p.dlogits.get(), {0, 0.4 / square * 0.1875, 0.1875, -1.5 / square * 0.16}, 1e-6));
  });
}

TEST(MoeRouter, MatchesTheDefinition) {
  op_test::for_each_context([](Context& ctx) {
    for (const MoeRouterDesc& d : router_shapes(DType::kFloat64)) {
      SCOPED_TRACE(describe(d));
      const RouterProblem p(d, {3, 1});
      p.forward(ctx);
      const Routed expected = naive_routing(p);
      EXPECT_EQ(p.index.get(), expected.index);
      EXPECT_TRUE(all_near(p.scores.get(), expected.scores, 1e-14));
      EXPECT_TRUE(all_near(p.weight.get(), expected.weight, 1e-14));
      p.backward(ctx);
      EXPECT_TRUE(p.guards_intact());
    }
  });
}

TEST(MoeRouter, Fp32) {
  op_test::for_each_context([](Context& ctx) {
    for (const MoeRouterDesc& d : router_shapes(DType::kFloat32)) {
      SCOPED_TRACE(describe(d));
      const RouterProblem p(d, {1, 3});
      p.forward(ctx);
      const Routed expected = naive_routing(p);
      EXPECT_EQ(p.index.get(), expected.index);
      EXPECT_TRUE(all_near(p.scores.get(), expected.scores, 1e-6));
      EXPECT_TRUE(all_near(p.weight.get(), expected.weight, 1e-6));
      EXPECT_TRUE(p.guards_intact());
    }
  });
}

TEST(MoeRouter, GradientsMatchFiniteDifferences) {
  op_test::for_each_isa([](Context& ctx) {
    for (const MoeRouterDesc& d : router_shapes(DType::kFloat64)) {
      if (d.tokens != 5) continue;
      SCOPED_TRACE(describe(d));
      RouterProblem p(d);
      p.forward(ctx);
      p.backward(ctx);
      const std::vector<double> wanted = p.index.get();
      const auto loss = [&] {
        p.forward(ctx);
        EXPECT_EQ(p.index.get(), wanted) << "a step changed the choice";
        return op_test::weighted_sum(p.dweight.get(), p.weight.get()) +
               op_test::weighted_sum(p.dscores.get(), p.scores.get());
      };
      EXPECT_TRUE(op_test::gradient_near(p.logits, p.dlogits.get(), loss));
    }
  });
}

TEST(MoeRouter, TiesGoToTheLowestIndex) {
  op_test::for_each_isa([](Context& ctx) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
      RouterProblem p(router_desc(2, 12, 4, dtype));
      p.bias.fill(0);
      p.logits.fill(0.25);
      p.logits.set(12 + 9, 1);
      p.logits.set(12 + 3, 1);
      p.forward(ctx);
      EXPECT_EQ(p.index.get(), (std::vector<double>{0, 1, 2, 3, 0, 1, 3, 9}));
      // Groups {0..3}, {4..7}, {8..11}: equal ones, then one that is larger.
      p.desc.groups = 3;
      p.desc.top_groups = 2;
      p.desc.top_k = 4;
      p.logits.fill(0.25);
      p.logits.set(12 + 11, 1);
      p.forward(ctx);
      EXPECT_EQ(p.index.get(), (std::vector<double>{0, 1, 2, 3, 0, 1, 2, 11}));
    }
  });
}

// Only the two best of a group count, and no expert outside the chosen groups is taken.
TEST(MoeRouter, GroupsLimitTheChoice) {
  op_test::for_each_isa([](Context& ctx) {
    RouterProblem p({.tokens = 1, .experts = 6, .top_k = 3, .groups = 2, .top_groups = 1});
    // Group 0 sums 0.9 + 0.1, group 1 sums 0.6 + 0.6: group 1, although 0.9 is the largest score.
    p.bias.fill(0);
    const auto logit = [](double s) { return std::log(s / (1 - s)); };
    p.logits.set({logit(0.9), logit(0.1), logit(0.1), logit(0.6), logit(0.05), logit(0.6)});
    p.forward(ctx);
    EXPECT_EQ(p.index.get(), (std::vector<double>{3, 4, 5}));
    // A bias of -10 makes the group's third negative, and it is chosen all the same.
    p.bias.set({0, 0, 0, 0, -10, 0});
    p.forward(ctx);
    EXPECT_EQ(p.index.get(), (std::vector<double>{3, 4, 5}));
  });
}

TEST(MoeRouter, TheBiasDecidesTheChoiceAlone) {
  op_test::for_each_isa([](Context& ctx) {
    RouterProblem p(router_desc(9, 8, 2, DType::kFloat32));
    p.bias.set({0, 0, 0, 0, 0, 100, 0, -100});
    p.forward(ctx);
    const std::vector<double> scores = p.scores.get(), weight = p.weight.get();
    const std::vector<double> index = p.index.get();
    for (std::size_t n = 0; n < 9; ++n) {
      EXPECT_TRUE(index[2 * n] == 5 || index[2 * n + 1] == 5);
      EXPECT_TRUE(index[2 * n] != 7 && index[2 * n + 1] != 7);
      const double a = scores[8 * n + static_cast<std::size_t>(index[2 * n])];
      const double b = scores[8 * n + static_cast<std::size_t>(index[2 * n + 1])];
      EXPECT_NEAR(weight[2 * n], a / (a + b), 1e-6);
    }
  });
}

TEST(MoeRouter, WithoutABiasAsWithZeros) {
  Context ctx = op_test::make_context();
  RouterProblem with(router_desc(20, 16, 4, DType::kFloat32)), without(with.desc);
  with.bias.fill(0);
  with.forward(ctx);
  moe_router_forward(
      ctx, moe_router_plan(without.desc), {.logits_NE = without.logits},
      {.scores_NE = without.scores, .weight_NK = without.weight, .index_NK = without.index}, {});
  EXPECT_EQ(without.index.bits(), with.index.bits());
  EXPECT_EQ(without.weight.bits(), with.weight.bits());
}

TEST(MoeRouter, WithoutGradientOfScoresAsWithZeros) {
  Context ctx = op_test::make_context();
  RouterProblem p(router_desc(20, 16, 4, DType::kFloat32));
  p.dscores.fill(0);
  p.forward(ctx);
  p.backward(ctx);
  const GuardedTensor dlogits(DType::kFloat32, {20, 16});
  moe_router_backward(ctx, moe_router_plan(p.desc),
                      {.dweight_NK = p.dweight, .scores_NE = p.scores, .index_NK = p.index},
                      {.dlogits_NE = dlogits}, {});
  EXPECT_EQ(dlogits.get(), p.dlogits.get());
}

TEST(MoeRouter, MayWriteInPlace) {
  op_test::for_each_context([](Context& ctx) {
    RouterProblem apart(router_desc(70, 33, 4, DType::kFloat32)), in_place(apart.desc);
    apart.forward(ctx);
    apart.backward(ctx);
    const MoeRouterPlan plan = moe_router_plan(apart.desc);
    moe_router_forward(ctx, plan, {in_place.logits, in_place.bias},
                       {in_place.logits, in_place.weight, in_place.index}, {});
    EXPECT_EQ(in_place.logits.bits(), apart.scores.bits());
    EXPECT_EQ(in_place.weight.bits(), apart.weight.bits());
    moe_router_backward(ctx, plan,
                        {in_place.dweight, in_place.logits, in_place.index, in_place.dscores},
                        {in_place.dscores}, {});
    EXPECT_EQ(in_place.dscores.bits(), apart.dlogits.bits());
  });
}

TEST(MoeRouter, ANanIsChosenAndSeenInItsTokenAlone) {
  op_test::for_each_isa([](Context& ctx) {
    for (const std::int64_t groups : {1, 4}) {
      RouterProblem clean(router_desc(3, 16, 3, DType::kFloat32));
      clean.desc.groups = groups;
      clean.desc.top_groups = groups == 1 ? 1 : 2;
      clean.forward(ctx);
      RouterProblem p(clean.desc);
      p.logits.set(16 + 13, kNan);
      p.logits.set(16 + 14, kNan);
      p.logits.set(16 + 2, kInf);
      p.forward(ctx);
      for (std::int64_t i = 0; i < 9; ++i) {
        if (i / 3 == 1) {
          EXPECT_TRUE(std::isnan(p.weight.get(i)));
        } else {
          EXPECT_EQ(p.weight.get(i), clean.weight.get(i));
          EXPECT_EQ(p.index.get(i), clean.index.get(i));
        }
      }
      const std::vector<double> index = p.index.get();
      EXPECT_EQ(index[4], 13);
      EXPECT_EQ(index[5], 14);
      EXPECT_TRUE(index[3] >= 0 && index[3] < 13);
    }
  });
}

TEST(MoeRouter, ANanWithoutNormalisationIsOneWeight) {
  Context ctx = op_test::make_context();
  RouterProblem p(router_desc(1, 6, 2, DType::kFloat32));
  p.desc.normalize = NormalizeWeights::kNo;
  p.bias.fill(0);
  p.logits.set({0, kNan, 2, 0, 0, 0});
  p.forward(ctx);
  EXPECT_EQ(p.index.get(), (std::vector<double>{1, 2}));
  EXPECT_TRUE(std::isnan(p.weight.get(0)));
  EXPECT_NEAR(p.weight.get(1), 1 / (1 + std::exp(-2.0)), 1e-6);
}

TEST(MoeRouter, ANanBiasIsSeenInEveryToken) {
  Context ctx = op_test::make_context();
  RouterProblem p(router_desc(40, 6, 2, DType::kFloat32));
  p.bias.set(4, kNan);
  p.forward(ctx);
  for (std::int64_t n = 0; n < 40; ++n) {
    EXPECT_TRUE(std::isnan(p.weight.get(2 * n)) || std::isnan(p.weight.get(2 * n + 1)));
    EXPECT_TRUE(p.index.get(2 * n) == 4 || p.index.get(2 * n + 1) == 4);
  }
}

TEST(MoeRouter, ScoresOfZeroAndOneGiveFiniteWeights) {
  op_test::for_each_isa([](Context& ctx) {
    RouterProblem p(router_desc(2, 3, 2, DType::kFloat32));
    p.bias.fill(0);
    p.logits.set({-kInf, -200, -1000, kInf, 200, -kInf});
    p.forward(ctx);
    EXPECT_EQ(p.scores.get(), (std::vector<double>{0, 0, 0, 1, 1, 0}));
    EXPECT_EQ(p.index.get(), (std::vector<double>{0, 1, 0, 1}));
    EXPECT_EQ(p.weight.get(), (std::vector<double>{0, 0, 0.5, 0.5}));
    p.backward(ctx);
    EXPECT_EQ(p.dlogits.get(), std::vector<double>(6, 0.0));
  });
}

TEST(MoeRouter, BitsDoNotDependOnThreadsAlignmentOrInstructionSet) {
  ThreadPool pool(3);
  RouterProblem first(router_desc(200, 33, 4, DType::kFloat32));
  Context base = op_test::make_context(CpuIsa::kV1);
  first.forward(base);
  first.backward(base);
  op_test::for_each_isa([&](Context& ctx) {
    const RouterProblem other(first.desc, {3, 5});
    Context threaded = op_test::make_context(ctx.isa, &pool);
    other.forward(threaded);
    other.backward(threaded);
    EXPECT_EQ(other.scores.bits(), first.scores.bits());
    EXPECT_EQ(other.index.bits(), first.index.bits());
    EXPECT_EQ(other.weight.bits(), first.weight.bits());
    EXPECT_EQ(other.dlogits.bits(), first.dlogits.bits());
  });
}

TEST(MoeRouter, RefusesPlansThatDoNotFit) {
  const auto refused = [](const MoeRouterDesc& d, std::string_view part) {
    return throws_error([&] { moe_router_plan(d); }, ErrorKind::kUsage, {"moe_router", part});
  };
  EXPECT_TRUE(refused(router_desc(-1, 4, 2), "tokens is -1"));
  EXPECT_TRUE(refused(router_desc(1, 0, 1), "experts 0"));
  EXPECT_TRUE(refused(router_desc(1, 4, 5), "top_k is 5, it must be from 1 to the 4 experts"));
  EXPECT_TRUE(refused(router_desc(1, 4, 0), "top_k is 0"));
  MoeRouterDesc d = router_desc(1, 12, 4);
  d.groups = 5;
  EXPECT_TRUE(refused(d, "12 experts cannot be cut into 5 groups"));
  d.groups = 0;
  EXPECT_TRUE(refused(d, "into 0 groups"));
  d.experts = 130;
  d.groups = 65;
  EXPECT_TRUE(refused(d, "from 1 to 64"));
  d.experts = 12;
  d.groups = 4;
  d.top_groups = 5;
  EXPECT_TRUE(refused(d, "top_groups is 5"));
  d.top_groups = 1;
  EXPECT_TRUE(refused(d, "top_k is 4, it must be from 1 to the 3 experts of 1 of 4 groups"));
  d = router_desc(1, 4, 2);
  for (const double scale : {0.0, -1.0, kNan, kInf}) {
    d.scale = scale;
    EXPECT_TRUE(refused(d, "scale is"));
  }
  EXPECT_TRUE(refused(router_desc(1, 4, 2, DType::kBFloat16), "dtype is bf16"));
  d = router_desc(1, 4, 2, DType::kFloat32);
  d.device = Device::kCuda;
  EXPECT_TRUE(refused(d, "planned for the GPU"));
}

TEST(MoeRouter, RefusesOperandsThatDoNotFit) {
  Context ctx = op_test::make_context();
  RouterProblem p(router_desc(3, 4, 2, DType::kFloat32));
  p.forward(ctx);
  const MoeRouterPlan plan = moe_router_plan(p.desc);
  const GuardedTensor narrow(DType::kFloat32, {3, 3});
  EXPECT_TRUE(throws_error(
      [&] { moe_router_forward(ctx, plan, {narrow}, {p.scores, p.weight, p.index}, {}); },
      ErrorKind::kUsage, {"logits_NE is fp32 [3, 3]", "expected fp32 [3, 4]"}));
  EXPECT_TRUE(throws_error(
      [&] { moe_router_forward(ctx, plan, {p.logits}, {p.scores, p.weight, p.weight}, {}); },
      ErrorKind::kUsage, {"index_NK is fp32"}));
  for (const double bad : {-1.0, 4.0}) {
    p.index.set(5, bad);
    p.dlogits.fill(7);
    EXPECT_TRUE(throws_error([&] { p.backward(ctx); }, ErrorKind::kUsage,
                             {"choice 1 of token 2 is expert", "0 to 3"}));
    EXPECT_EQ(p.dlogits.get(), std::vector<double>(12, 7.0));
  }
}

}  // namespace
}  // namespace k25::kernels
