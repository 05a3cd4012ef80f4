// What a rank needs: model state falls as 1/W, `auto` takes the least traffic that fits, and what
// does not fit is refused with the table.
#include "trainer/train/memory_plan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "tests/data/scratch_folder.h"
#include "trainer/config/parse.h"

namespace k25::trainer {
namespace {

constexpr std::int64_t kChunk = 4096;

ParsedConfig config_for(std::int64_t ranks, const std::vector<std::string>& overrides = {}) {
  const std::string text = R"(
run: {dir: run}
model: {layers: 3, hidden: 96, heads: 4, kv_heads: 2, ffn: 256, vocab: 1000}
data: {train: corpus/manifest.json, sequence: 64}
train: {steps: 1, batch: 840, micro_batch: 1}
optim: {lr: 1.0e-3}
)";
  return parse_config(text, "test.yaml", overrides, ranks);
}

struct Planned {
  explicit Planned(std::int64_t ranks, const std::vector<std::string>& overrides = {})
      : parsed(config_for(ranks, overrides)),
        model(parsed.config.model,
              {parsed.config.train.micro_batch, parsed.config.data.sequence,
               parsed.config.train.precision},
              {}, parsed.config.recompute) {}
  parallel::ZeroOptions options(Bytes budget) const {
    return resolve_zero(parsed.config, model, budget);
  }
  MemoryPlan plan(Bytes budget = {std::int64_t{1} << 50}) const {
    return plan_memory(parsed.config, model, options(budget));
  }
  ParsedConfig parsed;
  Model model;
};

std::int64_t sharded_units(const Model& model) {
  std::int64_t n = 0;
  for (const parallel::UnitSpec& unit : model.units()) {
    n += unit.placement == parallel::Placement::kSharded ? 1 : 0;
  }
  return n;
}

TEST(MemoryPlan, ModelStateFallsWithTheRankCountToOneChunkAUnit) {
  const Planned one(1);
  std::int64_t elements = 0, replicated = 0;
  for (const parallel::UnitSpec& unit : one.model.units()) {
    const bool sharded = unit.placement == parallel::Placement::kSharded;
    (sharded ? elements : replicated) += parallel::make_layout(unit, 1, DType::kFloat32).numel;
  }
  for (const std::int64_t ranks : {1, 2, 3, 4, 7, 8, 12, 60}) {
    const Planned planned(ranks);
    // Master, two moments and the gradient, in fp32.
    const double exact = 16.0 * static_cast<double>(elements) / static_cast<double>(ranks);
    const auto state = static_cast<double>(planned.plan().zero.model_state().n);
    EXPECT_GE(state, exact) << ranks;
    EXPECT_LE(state, exact + static_cast<double>(16 * kChunk * sharded_units(planned.model)))
        << ranks;
    // What every rank holds whole does not grow with the ranks.
    const auto whole = static_cast<double>(planned.plan().zero.replicated.n);
    const auto floats = static_cast<double>(replicated);
    EXPECT_GE(whole, 16 * floats) << ranks;
    EXPECT_LE(whole, 20 * (floats + kChunk + 4 * static_cast<double>(ranks))) << ranks;
  }
}

TEST(MemoryPlan, ReplicasShareNothing) {
  const Planned sharded(4, {"mesh.replicate=1"}), hybrid(4, {"mesh.replicate=2"}),
      two(2, {"mesh.replicate=1"});
  EXPECT_EQ(hybrid.plan().zero.model_state().n, two.plan().zero.model_state().n);
  EXPECT_LT(sharded.plan().zero.model_state().n, hybrid.plan().zero.model_state().n);
}

TEST(MemoryPlan, TotalIsTheSumOfItsLines) {
  const MemoryPlan plan = Planned(3).plan();
  std::int64_t sum = 0, total = -1;
  for (const std::string& line : plan.lines()) {
    const std::int64_t bytes = std::stoll(line.substr(line.find_last_of(' ') + 1));
    (line.rfind("total", 0) == 0 ? total : sum) += line.rfind("total", 0) == 0 ? bytes + 1 : bytes;
  }
  EXPECT_EQ(total, plan.total().n);
  EXPECT_EQ(sum, plan.total().n);
}

TEST(ResolveZero, AutoTakesTheLeastTrafficThatFits) {
  const Planned planned(2);
  const auto reshard = [&](std::int64_t budget) { return planned.options({budget}).reshard_after; };
  const auto needed = [&](const char* choice) {
    const Planned fixed(2, {std::string("zero.reshard_after=") + choice});
    return fixed.plan().total().n;
  };
  const std::int64_t all = needed("step"), few = needed("forward");
  ASSERT_LT(few, all);
  EXPECT_EQ(reshard(all), parallel::ReshardAfter::kStep);
  EXPECT_EQ(reshard(all - 1), parallel::ReshardAfter::kForward);
  // Nothing fits: the smallest is tried, and require_fit says so.
  EXPECT_EQ(reshard(0), parallel::ReshardAfter::kForward);
}

TEST(ResolveZero, WhatTheConfigSaysHolds) {
  const Planned planned(2, {"zero.reshard_after=forward", "zero.prefetch=0"});
  const parallel::ZeroOptions options = planned.options({std::int64_t{1} << 50});
  EXPECT_EQ(options.reshard_after, parallel::ReshardAfter::kForward);
  EXPECT_EQ(options.prefetch, 0);
  EXPECT_EQ(options.slots, 2);
  EXPECT_EQ(options.micro_batches_per_slot, 420);
}

TEST(RequireFit, NamesBothNumbersAndShowsTheTable) {
  const MemoryPlan plan = Planned(1).plan();
  require_fit(plan, plan.total(), {});
  try {
    require_fit(plan, {plan.total().n - 1}, {});
    FAIL() << "no error was thrown";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    for (const std::string& part :
         {std::to_string(plan.total().n), std::to_string(plan.total().n - 1),
          std::string("masters"), std::string("activations"), std::string("checkpoint snapshot")}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " not in: " << text;
    }
  }
}

// A GPU's offloaded state has a budget and rows of its own; on the CPU it is memory as any other.
TEST(RequireFit, OffloadedStateCountsWhereItLies) {
  MemoryPlan plan = Planned(1, {"offload.optimizer=host"}).plan();
  ASSERT_GT(plan.zero.host.total().n, 0);
  EXPECT_EQ(plan.host().n, 0);
  const Bytes both = plan.total();
  require_fit(plan, both, {});
  EXPECT_THROW(require_fit(plan, {both.n - 1}, both), Error);

  plan.device = Device::kCuda;
  const Bytes host = plan.host();
  EXPECT_EQ(plan.total().n + host.n, both.n);
  EXPECT_EQ(host.n, plan.zero.host.total().n + plan.snapshot.n);
  require_fit(plan, plan.total(), host);
  EXPECT_THROW(require_fit(plan, {plan.total().n - 1}, host), Error);
  try {
    require_fit(plan, plan.total(), {host.n - 1});
    FAIL() << "no error was thrown";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    for (const std::string& part :
         {std::to_string(host.n) + " bytes of host memory", std::to_string(host.n - 1),
          std::string("offload.resident"), std::string("masters, host"),
          std::string("moments, host"), std::string("total, host")}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " not in: " << text;
    }
  }
}

TEST(HostBudget, IsSharedByTheRanksOfAHost) {
  const std::int64_t alone = host_memory_budget(1).n;
  EXPECT_GT(alone, 0);
  EXPECT_LT(host_memory_budget(1000).n, alone);
}

}  // namespace
}  // namespace k25::trainer
