#include "optim/decide.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "kernels/core/check.h"

namespace k25::optim {
namespace {

double bias_correction(double beta_product) { return 1.0 / (1.0 - beta_product); }

bool all_finite(const StepStats& stats) {
  return stats.loss_finite && stats.gradient_finite && std::isfinite(stats.gradient_square_sum);
}

std::string what_is_not_finite(const StepStats& stats) {
  if (stats.gradient_finite && std::isfinite(stats.gradient_square_sum)) {
    return "the loss is not finite";
  }
  std::string gradient = "the gradient";
  if (!stats.bad_parameter.empty()) gradient += " of " + stats.bad_parameter;
  return stats.loss_finite ? gradient + " is not finite"
                           : "the loss and " + gradient + " are not finite";
}

void skip_or_stop(const StepStats& stats, const OptimOptions& options, StepPlan& plan) {
  ++plan.next.skipped;
  const std::int64_t in_a_row = ++plan.next.consecutive_skips;
  const std::string what = what_is_not_finite(stats);
  if (options.on_nan == OnNan::kStop) {
    plan.action = StepAction::kStop;
    plan.reason = what + "; on_nan is stop";
  } else if (in_a_row >= options.max_consecutive_skips) {
    plan.action = StepAction::kStop;
    plan.reason = fmt::format("{}; {} steps in a row were skipped, the limit is {}", what, in_a_row,
                              options.max_consecutive_skips);
  } else {
    plan.action = StepAction::kSkipNonFinite;
    plan.reason = fmt::format("{}; step skipped, {} in a row, the limit is {}", what, in_a_row,
                              options.max_consecutive_skips);
  }
}

double clip_factor(double norm, double clip) {
  if (clip <= 0.0 || norm <= clip) return 1.0;
  return std::min(1.0, clip / (norm + 1e-6));
}

void apply(const StepStats& stats, const OptimOptions& options, StepPlan& plan) {
  plan.action = StepAction::kApply;
  const double per_token = 1.0 / static_cast<double>(stats.label_tokens);
  const double factor = clip_factor(plan.gradient_norm, options.clip);
  plan.scale = factor == 1.0 ? per_token : per_token * factor;
  ++plan.next.updates;
  plan.next.consecutive_skips = 0;
  plan.next.beta1_product *= plan.beta1;
  plan.next.beta2_product *= plan.beta2;
  plan.bias_correction1 = bias_correction(plan.next.beta1_product);
  plan.bias_correction2 = bias_correction(plan.next.beta2_product);
}

}  // namespace

double mean_nll(std::int64_t nll_fixed, std::int64_t label_tokens) {
  if (label_tokens == 0) return std::numeric_limits<double>::quiet_NaN();
  return std::ldexp(static_cast<double>(nll_fixed), -24) / static_cast<double>(label_tokens);
}

StepPlan decide(const StepStats& stats, const PolicyState& state, const OptimOptions& options) {
  K25_CHECK(stats.label_tokens >= 0, "label tokens are counted");
  StepPlan plan;
  plan.next = state;
  plan.beta1 = options.beta1;
  plan.beta2 = options.beta2;
  plan.eps = options.eps;
  plan.weight_decay = options.weight_decay;
  plan.lr = learning_rate(options.schedule, state.updates);
  plan.scale = 0.0;
  plan.loss = stats.loss_finite ? mean_nll(stats.nll_fixed, stats.label_tokens)
                                : std::numeric_limits<double>::quiet_NaN();
  plan.gradient_norm =
      stats.gradient_finite && stats.label_tokens > 0
          ? std::sqrt(stats.gradient_square_sum) / static_cast<double>(stats.label_tokens)
          : std::numeric_limits<double>::quiet_NaN();
  if (!all_finite(stats)) {
    skip_or_stop(stats, options, plan);
  } else if (stats.label_tokens == 0) {
    plan.action = StepAction::kSkipEmpty;
    ++plan.next.empty;
    plan.reason = "the global batch has no label token; no update";
  } else {
    apply(stats, options, plan);
  }
  return plan;
}

bool same_update(const StepPlan& a, const StepPlan& b) {
  const auto numbers = [](const StepPlan& p) {
    return std::tuple(p.action, p.scale, p.lr, p.beta1, p.beta2, p.eps, p.weight_decay,
                      p.bias_correction1, p.bias_correction2);
  };
  return numbers(a) == numbers(b);
}

}  // namespace k25::optim
