#include "kernels/kda_gate/kda_gate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/kernels/kda_gate/kda_gate_problem.h"
#include "tests/kernels/op_test.h"

namespace k25::kernels::kda_gate_test {
namespace {

using op_test::all_near;
using op_test::for_each_context;
using op_test::for_each_isa;
using op_test::throws_error;

constexpr Sizes kSizes[] = {{0, 2, 4}, {1, 1, 1}, {3, 2, 15}, {33, 3, 17}, {1030, 2, 16}};

TEST(KdaGate, ByHand) {
  for_each_isa([](Context& ctx) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
      const double tolerance = dtype == DType::kFloat64 ? 1e-15 : 1e-6;
      for (const Kind kind : kKinds) {
        Problem p(kind, {1, 2, 1}, dtype);
        p.f.set({1, 1});
        p.dt_bias.set({-1, std::log(3.0) - 1});  // X = 0 and log 3
        p.a_log.set({std::log(2.0), 0});         // a = 2 and 1
        p.dg.set({1, 10});
        p.forward(ctx);
        p.backward(ctx);
        const double rate = kind == Kind::kLowerBoundWithoutA ? 1 : 2;
        if (kind == Kind::kSoftplus) {
          EXPECT_TRUE(all_near(p.g.get(), {-2 * std::log(2.0), -std::log(4.0)}, tolerance));
          EXPECT_TRUE(all_near(p.df.get(), {-1, -7.5}, tolerance));
          EXPECT_TRUE(all_near(p.da_log.get(), {p.g.get(0), 10 * p.g.get(1)}, tolerance));
        } else {
          EXPECT_TRUE(all_near(p.g.get(), {-2.5, -3.75}, tolerance));
          const std::vector<double> df = {-5 * rate / 4, -50 * 3.0 / 16};
          EXPECT_TRUE(all_near(p.df.get(), df, tolerance));
          if (kind == Kind::kLowerBound) {
            EXPECT_TRUE(all_near(p.da_log.get(), {0, df[1] * std::log(3.0)}, tolerance));
          }
        }
        EXPECT_TRUE(all_near(p.ddt_bias.get(), p.df.get(), tolerance));
      }
    }
  });
}

TEST(KdaGate, EveryShapeAndDType) {
  for (const Kind kind : kKinds) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat64}) {
      for (const Sizes s : kSizes) {
        SCOPED_TRACE(std::to_string(s.rows) + " x " + std::to_string(s.cols));
        const Layout layout{.row_padding = 3, .shift = 1};
        const Problem low(kind, s, dtype, layout);
        Problem exact(kind, s);
        exact.f.set(low.f.get());
        exact.a_log.set(low.a_log.get());
        exact.dt_bias.set(low.dt_bias.get());
        exact.dg.set(low.dg.get());
        Context best = op_test::make_context();
        exact.backward(best);
        std::vector<std::vector<std::uint8_t>> first;
        for_each_context([&](Context& ctx) {
          const Problem p(kind, s, dtype, layout);
          p.forward(ctx);
          p.backward(ctx);
          const bool wide = dtype == DType::kFloat64;
          EXPECT_TRUE(all_near(p.g.get(), p.naive(), wide ? 1e-14 : 2e-6));
          EXPECT_TRUE(
              all_near(p.df.get(), exact.df.get(), dtype == DType::kBFloat16 ? 0x1p-8 : 4e-6));
          EXPECT_TRUE(all_near(p.da_log.get(), exact.da_log.get(), 1e-5));
          EXPECT_TRUE(all_near(p.ddt_bias.get(), exact.ddt_bias.get(), 1e-5));
          std::size_t i = 0;
          for (const GuardedTensor* t : {&p.g, &p.df, &p.da_log, &p.ddt_bias}) {
            EXPECT_TRUE(t->guards_intact());
            if (first.size() <= i) first.push_back(t->bits());
            EXPECT_EQ(t->bits(), first[i++]);
          }
        });
      }
    }
  }
}

TEST(KdaGate, FiniteDifferences) {
  for_each_isa([](Context& ctx) {
    for (const Kind kind : kKinds) {
      Problem p(kind, {3, 2, 19});
      p.backward(ctx);
      const auto loss = [&] {
        p.forward(ctx);
        return op_test::weighted_sum(p.dg.get(), p.g.get());
      };
      EXPECT_TRUE(op_test::gradient_near(p.f, p.df.get(), loss));
      EXPECT_TRUE(op_test::gradient_near(p.a_log, p.da_log.get(), loss));
      EXPECT_TRUE(op_test::gradient_near(p.dt_bias, p.ddt_bias.get(), loss));
    }
  });
}

// Relative, since a small decay is all that is left of a large negative input.
TEST(KdaGate, SoftplusKeepsItsDigits) {
  for_each_isa([](Context& ctx) {
    const std::vector<double> f = {-80, -20, -5, -1, -0.1, 0, 0.1, 1, 5, 20, 21, 80, 1e4};
    Problem p(Kind::kSoftplus, {1, 1, 13}, DType::kFloat32);
    p.f.set(f);
    p.dt_bias.fill(0);
    p.a_log.fill(0);
    p.forward(ctx);
    for (std::size_t i = 0; i < f.size(); ++i) {
      const double x = f[i], expected = std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x)));
      EXPECT_NEAR(p.g.get(static_cast<std::int64_t>(i)) / -expected, 1, 4e-7) << x;
    }
  });
}

TEST(KdaGate, NothingOverflowsToNan) {
  for_each_isa([](Context& ctx) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
      for (const Kind kind : kKinds) {
        for (const double a_log : {-1000.0, 0.0, 88.0, 1000.0}) {
          Problem p(kind, {1, 1, 7}, dtype);
          p.f.set({-1e30, -1000, -1, 0, 1, 1000, 1e30});
          p.dt_bias.fill(0);
          p.a_log.fill(a_log);
          p.dg.fill(1);
          p.forward(ctx);
          p.backward(ctx);
          for (std::int64_t i = 0; i < 7; ++i) {
            EXPECT_FALSE(std::isnan(p.g.get(i))) << a_log << " element " << i;
            EXPECT_LE(p.g.get(i), 0);
            EXPECT_FALSE(std::isnan(p.df.get(i))) << a_log << " element " << i;
          }
          if (kind != Kind::kSoftplus) {
            EXPECT_EQ(p.df.get(0), 0);
            EXPECT_EQ(p.g.get(6), kind == Kind::kLowerBound && a_log < 0 ? p.g.get(6) : -5);
          }
        }
      }
    }
  });
}

TEST(KdaGate, GradientMayOverwriteItsInput) {
  for_each_context([](Context& ctx) {
    for (const Kind kind : kKinds) {
      const Problem apart(kind, {40, 2, 33}, DType::kBFloat16);
      apart.backward(ctx);
      const Problem p(kind, {40, 2, 33}, DType::kBFloat16);
      const KdaGatePlan plan = kda_gate_plan(p.desc);
      const Scratch scratch(plan.workspace_bytes);
      kda_gate_backward(ctx, plan, {p.dg, p.f, p.rate(), p.dt_bias}, {p.f, {}, {}},
                        scratch.workspace());
      EXPECT_EQ(p.f.bits(), apart.df.bits());
    }
  });
}

TEST(KdaBeta, SigmoidAndTwiceThat) {
  for (const KdaBetaRange range : {KdaBetaRange::kOne, KdaBetaRange::kTwo}) {
    const double top = range == KdaBetaRange::kTwo ? 2 : 1;
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat64}) {
      const GuardedTensor b = random_tensor("b", dtype, {70, 5}, {.row_padding = 3}, -6, 6);
      const GuardedTensor dbeta = random_tensor("dbeta", sum_dtype(dtype), {70, 5});
      const KdaBetaPlan plan =
          kda_beta_plan({.rows = 70, .heads = 5, .range = range, .dtype = dtype});
      std::vector<std::uint8_t> first;
      for_each_context([&](Context& ctx) {
        const GuardedTensor beta(sum_dtype(dtype), {70, 5}, Layout{.row_padding = 1});
        const GuardedTensor db(dtype, {70, 5}, Layout{.row_padding = 2});
        kda_beta_forward(ctx, plan, {b}, {beta}, {});
        kda_beta_backward(ctx, plan, {dbeta, b}, {db}, {});
        EXPECT_TRUE(beta.guards_intact());
        EXPECT_TRUE(db.guards_intact());
        for (std::int64_t i = 0; i < b.count(); ++i) {
          const double s = 1 / (1 + std::exp(-b.get(i)));
          ASSERT_NEAR(beta.get(i), top * s, dtype == DType::kFloat64 ? 1e-15 : 5e-7);
          ASSERT_NEAR(db.get(i), dbeta.get(i) * top * s * (1 - s),
                      dtype == DType::kBFloat16 ? 2e-3 : 5e-7);
        }
        if (first.empty()) first = beta.bits();
        EXPECT_EQ(beta.bits(), first);
      });
    }
  }
}

TEST(KdaBeta, FiniteDifferences) {
  for_each_isa([](Context& ctx) {
    for (const KdaBetaRange range : {KdaBetaRange::kOne, KdaBetaRange::kTwo}) {
      GuardedTensor b = random_tensor("b", DType::kFloat64, {3, 5}, {}, -4, 4);
      const std::vector<double> w = op_test::random_values("w", 15);
      const GuardedTensor dbeta(DType::kFloat64, {3, 5}, w);
      const GuardedTensor beta(DType::kFloat64, {3, 5}), db(DType::kFloat64, {3, 5});
      const KdaBetaPlan plan =
          kda_beta_plan({.rows = 3, .heads = 5, .range = range, .dtype = DType::kFloat64});
      kda_beta_backward(ctx, plan, {dbeta, b}, {db}, {});
      EXPECT_TRUE(op_test::gradient_near(b, db.get(), [&] {
        kda_beta_forward(ctx, plan, {b}, {beta}, {});
        return op_test::weighted_sum(w, beta.get());
      }));
    }
  });
}

TEST(KdaGate, RefusesWhatDoesNotFit) {
  Context ctx = op_test::make_context();
  const ErrorKind usage = ErrorKind::kUsage;
  const auto no_plan = [&](const KdaGateDesc& d, std::initializer_list<std::string_view> parts) {
    EXPECT_TRUE(throws_error([&] { kda_gate_plan(d); }, usage, parts));
  };
  no_plan({.rows = -1, .cols = 4}, {"kda_gate: rows -1"});
  no_plan({.rows = 1, .heads = 0, .cols = 4}, {"heads 0"});
  no_plan({.rows = 1, .cols = 0}, {"cols 0"});
  no_plan({.rows = 1, .cols = 4, .dtype = DType::kInt32}, {"int32"});
  no_plan({.rows = 1, .cols = 4, .dtype = DType::kFloat64, .device = Device::kCuda},
          {"fp64 runs on the CPU only"});
  for (const double bound : {0.0, 5.0, std::nan(""), -HUGE_VAL}) {
    no_plan({.rows = 1, .cols = 4, .gate = KdaGate::kLowerBound, .lower_bound = bound},
            {"lower_bound", "negative and finite"});
  }
  EXPECT_TRUE(throws_error([] { kda_beta_plan({.rows = -1}); }, usage, {"kda_beta: rows -1"}));
  EXPECT_TRUE(throws_error([] { kda_beta_plan({.rows = 1, .heads = 0}); }, usage, {"heads 0"}));
  EXPECT_TRUE(throws_error(
      [] { kda_beta_plan({.rows = 1, .dtype = DType::kFloat64, .device = Device::kCuda}); }, usage,
      {"fp64 runs on the CPU only"}));

  const Problem p(Kind::kSoftplus, {2, 3, 4}, DType::kBFloat16);
  const KdaGatePlan plan = kda_gate_plan(p.desc);
  EXPECT_TRUE(throws_error([&] { kda_gate_forward(ctx, plan, {p.f, {}, p.dt_bias}, {p.g}, {}); },
                           usage, {"a_log_M is missing"}));
  EXPECT_TRUE(throws_error([&] { kda_gate_forward(ctx, plan, {p.f, p.a_log, p.a_log}, {p.g}, {}); },
                           usage, {"dt_bias_MK is fp32 [3]", "expected fp32 [3, 4]"}));
  EXPECT_TRUE(
      throws_error([&] { kda_gate_forward(ctx, plan, {p.f, p.a_log, p.dt_bias}, {p.f}, {}); },
                   usage, {"g_NMK is bf16", "expected fp32 [2, 3, 4]"}));
  EXPECT_TRUE(throws_error(
      [&] { kda_gate_backward(ctx, plan, {p.dg, p.f, p.a_log, p.dt_bias}, {p.df, {}, {}}, {}); },
      usage, {"workspace of 0 bytes"}));
  const KdaBetaPlan beta = kda_beta_plan({.rows = 2, .heads = 3});
  EXPECT_TRUE(throws_error([&] { kda_beta_forward(ctx, beta, {p.a_log}, {p.a_log}, {}); }, usage,
                           {"b_NM is fp32 [3]", "expected fp32 [2, 3]"}));
}

}  // namespace
}  // namespace k25::kernels::kda_gate_test
