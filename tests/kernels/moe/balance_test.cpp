#include "kernels/moe/balance.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/kernels/op_test.h"

namespace k25::kernels {
namespace {

using op_test::all_near;
using op_test::GuardedTensor;
using op_test::random_tensor;
using op_test::Scratch;
using op_test::throws_error;

struct Problem {
  Problem(std::int64_t tokens, std::int64_t experts, std::int64_t top_k,
          const std::vector<double>& starts, DType dtype, double coefficient = 0.5,
          op_test::Layout layout = {})
      : plan(moe_balance_plan({.tokens = tokens,
                               .experts = experts,
                               .top_k = top_k,
                               .sequences = static_cast<std::int64_t>(starts.size()) - 1,
                               .coefficient = coefficient,
                               .dtype = dtype})),
        index(DType::kInt32, {tokens, top_k}, layout),
        start(DType::kInt64, {static_cast<std::int64_t>(starts.size())}, starts),
        scores(random_tensor("scores", dtype, {tokens, experts}, layout, 0, 1)),
        fraction(dtype, {static_cast<std::int64_t>(starts.size()) - 1, experts}, layout),
        loss(dtype, {tokens}),
        dscores(dtype, {tokens, experts}, layout) {
    for (std::int64_t i = 0; i < tokens * top_k; ++i) {  // distinct within a token, skewed over all
      index.set(i, static_cast<double>((i % top_k + i / top_k * (i / top_k) % 3) % experts));
    }
  }
  void fractions(Context& ctx) const {
    const Scratch scratch(plan.workspace_bytes);
    moe_fractions(ctx, plan, {index, start}, {fraction}, scratch.workspace());
  }
  void forward(Context& ctx) const {
    moe_balance_forward(ctx, plan, {scores, fraction, start}, {loss}, {});
  }
  void backward(Context& ctx) const {
    moe_balance_backward(ctx, plan, {scores, fraction, start}, {dscores}, {});
  }
  void run(Context& ctx) const {
    fractions(ctx);
    forward(ctx);
    backward(ctx);
  }

  MoeBalancePlan plan;
  GuardedTensor index, start, scores, fraction, loss, dscores;
};

TEST(MoeBalance, HandComputed) {
  op_test::for_each_isa([](Context& ctx) {
    // Two sequences of two tokens and one, two experts, one choice each.
    Problem p(3, 2, 1, {0, 2, 3}, DType::kFloat32, 10);
    p.index.set({0, 0, 1});
    p.scores.set({0.5, 0.5, 0.75, 0.25, 0.25, 0.25});
    p.run(ctx);
    EXPECT_EQ(p.fraction.get(), (std::vector<double>{2, 0, 0, 2}));
    EXPECT_TRUE(all_near(p.loss.get(), {10, 15, 10}, 1e-6));
    // c (f_i - sum f p) / sum s: (2 - 1, 0 - 1) / 1, (2 - 1.5, 0 - 1.5) / 1, (0 - 1, 2 - 1) / 0.5.
    EXPECT_TRUE(all_near(p.dscores.get(), {10, -10, 5, -15, -20, 20}, 1e-5));
  });
}

// The loss of the source, T c sum_i f_i P_i with P the mean share of the sequence, from its
// formula.
TEST(MoeBalance, MatchesTheDefinition) {
  op_test::for_each_context([](Context& ctx) {
    for (const std::int64_t experts : {1, 5, 16, 33}) {
      for (const auto& starts :
           std::vector<std::vector<double>>{{0, 70}, {0, 1, 70}, {0, 0, 30, 30, 70, 70}}) {
        const std::int64_t top_k = experts == 1 ? 1 : 3;
        const Problem p(70, experts, top_k, starts, DType::kFloat64, 0.25, {3, 1});
        p.run(ctx);
        const auto scores = p.scores.get(), index = p.index.get(), loss = p.loss.get();
        for (std::size_t q = 0; q + 1 < starts.size(); ++q) {
          const auto begin = static_cast<std::size_t>(starts[q]);
          const auto end = static_cast<std::size_t>(starts[q + 1]);
          double expected = 0, ours = 0;
          for (std::size_t i = 0; i < static_cast<std::size_t>(experts); ++i) {
            double f = 0, share = 0;
            for (std::size_t n = begin; n < end; ++n) {
              double sum = 0;
              for (std::size_t j = 0; j < static_cast<std::size_t>(experts); ++j) {
                sum += scores[n * static_cast<std::size_t>(experts) + j];
              }
              share += scores[n * static_cast<std::size_t>(experts) + i] / sum;
              for (std::size_t k = 0; k < static_cast<std::size_t>(top_k); ++k) {
                f += index[n * static_cast<std::size_t>(top_k) + k] == static_cast<double>(i);
              }
            }
            if (end == begin) continue;
            const auto tokens = static_cast<double>(end - begin);
            f *= static_cast<double>(experts) / (static_cast<double>(top_k) * tokens);
            expected += tokens * 0.25 * f * (share / tokens);
          }
          for (std::size_t n = begin; n < end; ++n) ours += loss[n];
          EXPECT_NEAR(ours, expected, 1e-12 * std::max(1.0, expected));
        }
        EXPECT_TRUE(p.fraction.guards_intact() && p.loss.guards_intact() &&
                    p.dscores.guards_intact());
      }
    }
  });
}

TEST(MoeBalance, GradientMatchesFiniteDifferences) {
  op_test::for_each_isa([](Context& ctx) {
    Problem p(9, 5, 2, {0, 4, 4, 9}, DType::kFloat64);
    p.run(ctx);
    EXPECT_TRUE(op_test::gradient_near(p.scores, p.dscores.get(), [&] {
      p.forward(ctx);
      return op_test::weighted_sum(std::vector<double>(9, 1.0), p.loss.get());
    }));
  });
}

// Even choices and scores: the coefficient for each token, and no gradient.
TEST(MoeBalance, EvenLoadIsTheMinimum) {
  Context ctx = op_test::make_context();
  Problem p(8, 4, 1, {0, 8}, DType::kFloat32, 3);
  p.index.set({0, 1, 2, 3, 0, 1, 2, 3});
  p.scores.fill(0.5);
  p.run(ctx);
  EXPECT_EQ(p.loss.get(), std::vector<double>(8, 3.0));
  EXPECT_EQ(p.dscores.get(), std::vector<double>(32, 0.0));
}

TEST(MoeBalance, ScoresOfZeroGiveFiniteNumbers) {
  Context ctx = op_test::make_context();
  Problem p(2, 3, 1, {0, 2}, DType::kFloat32);
  p.scores.fill(0);
  p.run(ctx);
  EXPECT_EQ(p.loss.get(), std::vector<double>(2, 0.0));
  for (const double d : p.dscores.get()) EXPECT_TRUE(std::isfinite(d));
}

TEST(MoeBalance, GradientMayOverwriteTheScores) {
  op_test::for_each_context([](Context& ctx) {
    Problem apart(70, 17, 2, {0, 30, 70}, DType::kFloat32),
        in_place(70, 17, 2, {0, 30, 70}, DType::kFloat32);
    apart.run(ctx);
    in_place.fractions(ctx);
    moe_balance_backward(ctx, in_place.plan, {in_place.scores, in_place.fraction, in_place.start},
                         {in_place.scores}, {});
    EXPECT_EQ(in_place.scores.bits(), apart.dscores.bits());
  });
}

TEST(MoeBalance, BitsDoNotDependOnThreadsAlignmentOrInstructionSet) {
  ThreadPool pool(3);
  const std::vector<double> starts{0, 130, 200};
  const Problem first(200, 33, 4, starts, DType::kFloat32);
  Context base = op_test::make_context(CpuIsa::kV1);
  first.run(base);
  op_test::for_each_isa([&](Context& ctx) {
    const Problem other(200, 33, 4, starts, DType::kFloat32, 0.5, {3, 5});
    Context threaded = op_test::make_context(ctx.isa, &pool);
    other.run(threaded);
    EXPECT_EQ(other.fraction.bits(), first.fraction.bits());
    EXPECT_EQ(other.loss.bits(), first.loss.bits());
    EXPECT_EQ(other.dscores.bits(), first.dscores.bits());
  });
}

TEST(MoeBalance, RefusesWhatDoesNotFit) {
  Context ctx = op_test::make_context();
  const ErrorKind usage = ErrorKind::kUsage;
  EXPECT_TRUE(throws_error([] { moe_balance_plan({.tokens = 1, .experts = 2, .top_k = 3}); }, usage,
                           {"moe_balance", "top_k 3 from 1 to experts"}));
  for (const double c : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_TRUE(throws_error(
        [&] { moe_balance_plan({.tokens = 1, .experts = 2, .top_k = 1, .coefficient = c}); }, usage,
        {"coefficient is"}));
  }
  EXPECT_TRUE(throws_error(
      [] { moe_balance_plan({.tokens = 1, .experts = 2, .top_k = 1, .dtype = DType::kBFloat16}); },
      usage, {"dtype is bf16"}));
  for (const auto& starts : std::vector<std::vector<double>>{
           {0, 5, 4, 9}, {1, 4, 5, 9}, {0, 4, 5, 8}, {0, 4, 12, 9}, {0, -1, 5, 9}}) {
    const Problem p(9, 5, 2, starts, DType::kFloat32);
    EXPECT_TRUE(throws_error([&] { p.fractions(ctx); }, usage, {"start_S puts sequence"}));
    EXPECT_TRUE(throws_error([&] { p.forward(ctx); }, usage, {"starts must ascend from 0 to 9"}));
    EXPECT_TRUE(throws_error([&] { p.backward(ctx); }, usage, {"start_S puts sequence"}));
  }
  Problem p(9, 5, 2, {0, 9}, DType::kFloat32);
  p.index.set(7, 5);
  EXPECT_TRUE(throws_error([&] { p.fractions(ctx); }, usage,
                           {"choice 1 of token 3 is expert 5, there are 5"}));
}

}  // namespace
}  // namespace k25::kernels
