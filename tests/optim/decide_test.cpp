#include "optim/decide.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/core/check.h"

namespace k25::optim {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

OptimOptions options() {
  OptimOptions o;
  o.schedule = {.kind = ScheduleKind::kConstant, .lr = 0.5, .warmup = 4, .total = 100};
  o.beta1 = 0.75;
  o.beta2 = 0.5;
  o.eps = 1e-6;
  o.weight_decay = 0.125;
  o.clip = 1.0;
  return o;
}

/// `tokens` label tokens of `nll` nats each and a mean-loss gradient of this norm.
StepStats stats(std::int64_t tokens, double nll, double norm) {
  StepStats s;
  s.nll_fixed = static_cast<std::int64_t>(nll * 0x1p24) * tokens;
  s.label_tokens = tokens;
  const double sum_norm = norm * static_cast<double>(tokens);
  s.gradient_square_sum = sum_norm * sum_norm;
  return s;
}

StepStats bad_gradient() {
  StepStats s = stats(8, 2.0, 0.0);
  s.gradient_square_sum = kInf;
  s.gradient_finite = false;
  s.bad_parameter = "layers.3.ffn.down[17] on rank 1";
  return s;
}

StepStats bad_loss() {
  StepStats s = stats(8, 2.0, 0.5);
  s.loss_finite = false;
  return s;
}

PolicyState busy_state() {
  return {.updates = 2,
          .consecutive_skips = 1,
          .skipped = 3,
          .empty = 4,
          .beta1_product = 0.25,
          .beta2_product = 0.125};
}

TEST(Decide, AppliesAFiniteStep) {
  const StepPlan plan = decide(stats(8, 2.5, 0.5), busy_state(), options());
  EXPECT_EQ(plan.action, StepAction::kApply);
  EXPECT_EQ(plan.loss, 2.5);
  EXPECT_EQ(plan.gradient_norm, 0.5);
  EXPECT_EQ(plan.scale, 0.125);
  EXPECT_EQ(plan.lr, 0.375);  // third update of a warm-up of four
  EXPECT_EQ(plan.beta1, 0.75);
  EXPECT_EQ(plan.beta2, 0.5);
  EXPECT_EQ(plan.eps, 1e-6);
  EXPECT_EQ(plan.weight_decay, 0.125);
  const PolicyState next{.updates = 3,
                         .consecutive_skips = 0,
                         .skipped = 3,
                         .empty = 4,
                         .beta1_product = 0.1875,
                         .beta2_product = 0.0625};
  EXPECT_EQ(plan.next, next);
  EXPECT_EQ(plan.bias_correction1, 1.0 / 0.8125);
  EXPECT_EQ(plan.bias_correction2, 1.0 / 0.9375);
  EXPECT_TRUE(plan.reason.empty());
}

TEST(Decide, FirstUpdateUndoesTheBias) {
  const StepPlan plan = decide(stats(8, 2.5, 0.5), {}, options());
  EXPECT_EQ(plan.bias_correction1, 4.0);  // 1 / (1 - 0.75)
  EXPECT_EQ(plan.bias_correction2, 2.0);
}

TEST(Decide, ClipsAboveTheThresholdOnly) {
  const auto scale = [](double norm) { return decide(stats(8, 2.0, norm), {}, options()).scale; };
  EXPECT_EQ(scale(0.0), 0.125);
  EXPECT_EQ(scale(0.999), 0.125);
  EXPECT_EQ(scale(1.0), 0.125);  // exactly at it
  EXPECT_EQ(scale(10.0), 0.125 * (1.0 / (10.0 + 1e-6)));
  EXPECT_LT(scale(std::nextafter(1.0, 2.0)), 0.125);

  const StepPlan plan = decide(stats(8, 2.0, 10.0), {}, options());
  EXPECT_EQ(plan.gradient_norm, 10.0);  // before clipping
  OptimOptions off = options();
  off.clip = 0.0;
  EXPECT_EQ(decide(stats(8, 2.0, 1e20), {}, off).scale, 0.125);
}

TEST(Decide, ScaleIsTheReciprocalOfTheTokens) {
  for (const std::int64_t tokens : {1, 3, 7, 1000003}) {
    EXPECT_EQ(decide(stats(tokens, 2.0, 0.0), {}, options()).scale,
              1.0 / static_cast<double>(tokens));
  }
}

void expect_unchanged_but_counters(const StepPlan& plan, const PolicyState& before) {
  EXPECT_EQ(plan.next.updates, before.updates);
  EXPECT_EQ(plan.next.beta1_product, before.beta1_product);
  EXPECT_EQ(plan.next.beta2_product, before.beta2_product);
}

TEST(Decide, SkipsANonFiniteGradientAndNamesIt) {
  const PolicyState before = busy_state();
  const StepPlan plan = decide(bad_gradient(), before, options());
  EXPECT_EQ(plan.action, StepAction::kSkipNonFinite);
  expect_unchanged_but_counters(plan, before);
  EXPECT_EQ(plan.next.skipped, 4);
  EXPECT_EQ(plan.next.consecutive_skips, 2);
  EXPECT_EQ(plan.next.empty, 4);
  EXPECT_EQ(plan.lr, 0.375);  // the schedule stands still
  EXPECT_EQ(plan.reason,
            "the gradient of layers.3.ffn.down[17] on rank 1 is not finite; step skipped, 2 in a "
            "row, the limit is 5");
}

TEST(Decide, ANonFiniteLossAloneCounts) {
  const StepPlan plan = decide(bad_loss(), {}, options());
  EXPECT_EQ(plan.action, StepAction::kSkipNonFinite);
  EXPECT_EQ(plan.next.skipped, 1);
  EXPECT_TRUE(std::isnan(plan.loss));
  EXPECT_EQ(plan.gradient_norm, 0.5);
  EXPECT_EQ(plan.reason, "the loss is not finite; step skipped, 1 in a row, the limit is 5");
  StepStats both = bad_gradient();
  both.loss_finite = false;
  EXPECT_EQ(decide(both, {}, options()).reason.substr(0, 25), "the loss and the gradient");
}

TEST(Decide, AnInfiniteNormIsNotFiniteWhateverTheFlagSays) {
  for (const double sum : {kInf, std::nan("")}) {
    StepStats s = stats(8, 2.0, 0.5);
    s.gradient_square_sum = sum;
    EXPECT_EQ(decide(s, {}, options()).action, StepAction::kSkipNonFinite);
  }
}

TEST(Decide, StopsAfterTheLimitOfSkipsInARow) {
  PolicyState state;
  for (int i = 1; i < 5; ++i) {
    const StepPlan plan = decide(i % 2 == 0 ? bad_loss() : bad_gradient(), state, options());
    EXPECT_EQ(plan.action, StepAction::kSkipNonFinite) << i;
    state = plan.next;
    EXPECT_EQ(state.consecutive_skips, i);
  }
  const StepPlan last = decide(bad_gradient(), state, options());
  EXPECT_EQ(last.action, StepAction::kStop);
  EXPECT_EQ(last.next.skipped, 5);
  expect_unchanged_but_counters(last, {});
  EXPECT_NE(last.reason.find("5 steps in a row were skipped, the limit is 5"), std::string::npos);
}

TEST(Decide, OnlyAnAppliedStepEndsARowOfSkips) {
  PolicyState state{.consecutive_skips = 4, .skipped = 4};
  state = decide(stats(0, 0.0, 0.0), state, options()).next;  // empty
  EXPECT_EQ(state.consecutive_skips, 4);
  EXPECT_EQ(decide(bad_loss(), state, options()).action, StepAction::kStop);
  state = decide(stats(8, 2.0, 0.5), state, options()).next;
  EXPECT_EQ(state.consecutive_skips, 0);
  EXPECT_EQ(decide(bad_loss(), state, options()).action, StepAction::kSkipNonFinite);
}

TEST(Decide, OnNanStopStopsAtOnce) {
  OptimOptions o = options();
  o.on_nan = OnNan::kStop;
  for (const StepStats& s : {bad_gradient(), bad_loss()}) {
    const StepPlan plan = decide(s, {}, o);
    EXPECT_EQ(plan.action, StepAction::kStop);
    EXPECT_EQ(plan.next.skipped, 1);
    EXPECT_NE(plan.reason.find("on_nan is stop"), std::string::npos) << plan.reason;
  }
}

TEST(Decide, SkipsAnEmptyStep) {
  const PolicyState before = busy_state();
  const StepPlan plan = decide(stats(0, 0.0, 0.0), before, options());
  EXPECT_EQ(plan.action, StepAction::kSkipEmpty);
  EXPECT_TRUE(std::isnan(plan.loss));
  expect_unchanged_but_counters(plan, before);
  EXPECT_EQ(plan.next.empty, 5);
  EXPECT_EQ(plan.next.skipped, 3);
  EXPECT_FALSE(plan.reason.empty());
}

TEST(Decide, MeanNll) {
  EXPECT_EQ(mean_nll(std::int64_t{3} << 24, 2), 1.5);
  EXPECT_EQ(mean_nll(1, 1), 0x1p-24);
  EXPECT_TRUE(std::isnan(mean_nll(0, 0)));
}

TEST(Decide, RefusesNegativeTokens) {
  StepStats s;
  s.label_tokens = -1;
  EXPECT_THROW(decide(s, {}, options()), Error);
}

}  // namespace
}  // namespace k25::optim
