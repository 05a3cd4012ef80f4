// The whole plan: bytes by the formulas of the method, fit, and what makes a run fit.
#include "trainer/plan/planner.h"

#include <gtest/gtest.h>

#include "kernels/core/check.h"
#include "tests/trainer/plan/plan_config.h"

namespace k25::trainer {
namespace {

using plan_test::kConfig;
using plan_test::kLayer;
using plan_test::kSharded;
using plan_test::kTable;

Planner planner_for(std::int64_t ranks, const std::vector<std::string>& overrides = {}) {
  return {kConfig, "test.yaml", overrides, make_cluster(ranks, 0, 0)};
}

Card card_of(std::int64_t bytes) {
  return {.name = "small", .memory = Bytes{bytes + kReservedOnGpu.n}};
}

// fp32 master 4 P / W, moments 8 P / W, gradients 4 P / W; 2 b l (1 + prefetch) gathered.
TEST(Planner, ModelStateByTheFormula) {
  for (const std::int64_t ranks : {1, 2, 4}) {  // whole chunks, so nothing is padded
    const CardPlan plan =
        planner_for(ranks, {"zero.reshard_after=forward"}).plan(find_card("h200"));
    EXPECT_EQ(plan.memory.zero.masters.n, 4 * kSharded / ranks) << ranks;
    EXPECT_EQ(plan.memory.zero.moments.n, 8 * kSharded / ranks) << ranks;
    EXPECT_EQ(plan.memory.zero.shard_gradients.n, 4 * kSharded / ranks) << ranks;
    EXPECT_EQ(plan.memory.zero.gathered.n, 2 * kLayer * 2) << ranks;  // prefetch 1: two units
    // A checkpoint of the first rank, which writes the norms too.
    EXPECT_EQ(plan.memory.snapshot.n, 12 * (kSharded / ranks + 5 * 64)) << ranks;
  }
}

// One micro-batch of 2 sequences of 32 tokens, bf16: what is kept of each layer, in elements of a
// row, and three statistics in fp32.
TEST(Planner, ActivationsByTheFormula) {
  const auto activations = [&](const std::vector<std::string>& overrides) {
    return planner_for(1, overrides).plan(find_card("h200")).memory.model.activations.n;
  };
  const std::int64_t rows = 64, row = 64 * 2;
  // Out, two norms, sum, q|k|v, attention, gate|up, product; rstd twice, lse of two heads.
  const std::int64_t layer = rows * (4 * row + 128 * 2 + row + 384 * 2 + 192 * 2 + 4 * 4);
  // Embedded rows, normed rows and their gradient; rstd, lse, nll, argmax.
  const std::int64_t ends = rows * (3 * row + 4 * 4);
  EXPECT_EQ(activations({}), 2 * layer + ends);
  // A recomputed layer keeps its output.
  EXPECT_EQ(activations({"recompute.layers=[2]"}), layer + rows * row + ends);
  EXPECT_EQ(activations({"recompute.layers=all"}), 2 * rows * row + ends);
  EXPECT_EQ(activations({"recompute.cheap=true"}), 2 * (layer - rows * (2 * row + 192 * 2)) + ends);
}

TEST(Planner, AutoGathersLessOftenOnTheLargerCard) {
  const Planner planner = planner_for(2);
  const std::int64_t roomy = planner.plan(find_card("h200")).memory.total().n;
  EXPECT_EQ(planner.plan(card_of(roomy)).zero.reshard_after, parallel::ReshardAfter::kStep);
  const CardPlan tight = planner.plan(card_of(roomy - 1));
  EXPECT_EQ(tight.zero.reshard_after, parallel::ReshardAfter::kForward);
  EXPECT_LT(tight.memory.total().n, roomy);
  EXPECT_TRUE(tight.fits());
}

TEST(Planner, WhatWouldFitIsTriedNotGuessed) {
  const Planner planner = planner_for(2);  // micro_batch 2, accumulation 4
  const auto bytes = [&](const std::vector<std::string>& overrides, std::int64_t ranks = 2) {
    std::vector<std::string> all = {"zero.reshard_after=forward"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return planner_for(ranks, all).plan(find_card("h200")).memory.total().n;
  };
  const std::int64_t small = bytes({"train.micro_batch=1"});
  const CardPlan none = planner.plan(card_of(small));
  ASSERT_FALSE(none.fits());
  const std::vector<Variant> ways = planner.ways_to_fit(none.card);
  ASSERT_FALSE(ways.empty());
  EXPECT_EQ(ways[0].change, "--set train.micro_batch=1 --set train.accumulation=auto");
  EXPECT_EQ(ways[0].plan.memory.total().n, small);
  for (const Variant& way : ways) EXPECT_TRUE(way.plan.fits()) << way.change;

  // One byte less, and a micro_batch of 1 is no way any more.
  for (const Variant& way : planner.ways_to_fit(card_of(small - 1))) {
    EXPECT_TRUE(way.plan.fits());
    EXPECT_EQ(way.change.find("train.micro_batch=1 --set train.accumulation=auto"),
              std::string::npos)
        << way.change;
  }
  EXPECT_TRUE(planner.ways_to_fit(card_of(1)).empty());
}

TEST(Planner, MoreGpusAreLegalOnes) {
  const Planner planner = planner_for(1, {"recompute.layers=all"});
  const std::int64_t at_four =
      planner_for(4, {"recompute.layers=all", "zero.reshard_after=forward"})
          .plan(find_card("h200"))
          .memory.total()
          .n;
  bool found = false;
  for (const Variant& way : planner.ways_to_fit(card_of(at_four))) {
    if (!way.change.starts_with("--gpus")) continue;
    found = true;
    EXPECT_TRUE(way.change == "--gpus 4 --gpus-per-node 4" ||
                way.change == "--gpus 2 --gpus-per-node 2")
        << way.change;  // never 3: micro_batch 2 x 3 ranks do not divide 16
  }
  EXPECT_TRUE(found);
}

TEST(Planner, RecomputeIsMeasuredAgainstNone) {
  const Planner planner = planner_for(1);
  const std::vector<Variant> variants = planner.recompute_variants(find_card("h200"));
  ASSERT_EQ(variants.size(), 6);
  EXPECT_EQ(variants.front().change, "nothing");
  EXPECT_EQ(variants.back().change, "as configured");
  EXPECT_EQ(variants.back().plan.memory.total().n, variants.front().plan.memory.total().n);
  EXPECT_LT(variants[4].plan.memory.model.activations.n,
            variants[0].plan.memory.model.activations.n);
  EXPECT_GT(variants[4].plan.work.hardware_flops, variants[0].plan.work.hardware_flops);
  EXPECT_EQ(variants[4].plan.work.model_flops, variants[0].plan.work.model_flops);
}

TEST(Planner, ErrorsAreThoseOfTheConfig) {
  try {
    planner_for(3);
    FAIL() << "no error was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(std::string(error.what()).find("legal numbers of data ranks nearby: 2 and 4"),
              std::string::npos)
        << error.what();
  }
  EXPECT_THROW(planner_for(1, {"optim.freeze=[nothing*]"}), Error);
}

TEST(Cluster, CountsThatBelongTogether) {
  const auto check = [](std::int64_t gpus, std::int64_t nodes, std::int64_t per_node,
                        std::int64_t want_ranks, std::int64_t want_per_node) {
    const Cluster c = make_cluster(gpus, nodes, per_node);
    EXPECT_EQ(c.ranks, want_ranks);
    EXPECT_EQ(c.per_node, want_per_node);
  };
  check(8, 0, 0, 8, 8);
  check(16, 0, 0, 16, 8);
  check(12, 0, 0, 12, 6);
  check(7, 0, 0, 7, 7);
  check(13, 0, 0, 13, 1);
  check(0, 2, 4, 8, 4);
  check(8, 2, 0, 8, 4);
  check(8, 0, 2, 8, 2);
  check(8, 2, 4, 8, 4);
  for (const auto& [gpus, nodes, per_node] : std::vector<std::array<std::int64_t, 3>>{
           {0, 0, 0}, {0, 2, 0}, {0, 0, 2}, {8, 3, 0}, {8, 0, 3}, {8, 2, 8}, {0, 1 << 20, 2}}) {
    EXPECT_THROW(make_cluster(gpus, nodes, per_node), Error) << gpus << nodes << per_node;
  }
  const auto told = [](std::int64_t gpus, std::int64_t nodes,
                       std::int64_t per_node) -> std::string {
    try {
      make_cluster(gpus, nodes, per_node);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(
      told(4, 3, 0),
      "--gpus 4: --nodes 3 does not divide it, and all nodes are equal; --gpus 3 or 6 would do");
  EXPECT_EQ(told(2, 3, 0),
            "--gpus 2: --nodes 3 does not divide it, and all nodes are equal; --gpus 3 would do");
  EXPECT_EQ(told(10, 0, 4),
            "--gpus 10: --gpus-per-node 4 does not divide it, and all nodes are equal; --gpus 8 or "
            "12 would do");
  EXPECT_EQ(told(8, 2, 8),
            "--gpus 8 = --nodes 2 x --gpus-per-node 8 does not hold; leave one of them out");
}

}  // namespace
}  // namespace k25::trainer
