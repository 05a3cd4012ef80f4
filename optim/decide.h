#pragma once
// The one decision of a step: apply, skip or stop, and with which numbers. A pure host function for
// every backend; its input and output are audited.

#include <cstdint>
#include <string>

#include "optim/schedule.h"

namespace k25::optim {

enum class OnNan : std::uint8_t { kSkip, kStop };

struct OptimOptions {
  Schedule schedule;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.0;
  double clip = 0.0;  ///< 0: off
  OnNan on_nan = OnNan::kSkip;
  std::int64_t max_consecutive_skips = 5;
};

/// Sums over all ranks and micro-batches of a step (optim/statistics).
struct StepStats {
  std::int64_t nll_fixed = 0;  ///< sum of nll in units of 2^-24 nats
  std::int64_t label_tokens = 0;
  double loss_max = 0.0;             ///< largest mean loss of one data rank
  double gradient_square_sum = 0.0;  ///< of the unscaled sum-of-nll gradient
  bool loss_finite = true;
  bool gradient_finite = true;
  std::string bad_parameter;   ///< "layers.3.ffn.down[17] on rank 1" when not finite
  bool save_and_stop = false;  ///< SIGUSR1 reached some rank
};

/// What the decision remembers; part of every checkpoint.
struct PolicyState {
  std::int64_t updates = 0;  ///< applied so far: the schedule's u
  std::int64_t consecutive_skips = 0;
  std::int64_t skipped = 0;  ///< non-finite steps in all
  std::int64_t empty = 0;    ///< steps without a label token
  double beta1_product = 1.0, beta2_product = 1.0;
  friend bool operator==(const PolicyState&, const PolicyState&) = default;
};

enum class StepAction : std::uint8_t {
  kApply,
  kSkipNonFinite,  ///< nothing changes but the counters
  kSkipEmpty,      ///< no label token in the whole global batch: no update, no decay, loss n/a
  kStop,           ///< the numeric policy gives up: exit 5
};

struct StepPlan {
  StepAction action = StepAction::kApply;
  double loss = 0.0;           ///< mean nll per label token; NaN when empty
  double gradient_norm = 0.0;  ///< of the mean-loss gradient, before clipping
  double scale = 1.0;          ///< on raw gradients: 1 / label_tokens x clip factor
  double lr = 0.0;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.0;
  double bias_correction1 = 1.0, bias_correction2 = 1.0;
  PolicyState next;    ///< state after this step
  std::string reason;  ///< for skips and stops, one line
};

/// Mean nll per label token of a sum in units of 2^-24 nats; NaN without label tokens.
double mean_nll(std::int64_t nll_fixed, std::int64_t label_tokens);

/// Clip factor: min(1, clip / (norm + 1e-6)); exactly 1 at or below the threshold.
///
/// Not finite (loss, gradient, or their sums): kStop with on_nan = stop, or when this is the
/// max_consecutive_skips-th such step in a row, otherwise kSkipNonFinite. An applied step ends the
/// row, an empty one neither ends nor lengthens it. A step that is not applied leaves updates and
/// the beta products alone, so the schedule stands still; its lr is the one that would have been
/// used.
StepPlan decide(const StepStats& stats, const PolicyState& state, const OptimOptions& options);

/// Whether both apply the same numbers to every element: the clip factor, say, is that of both.
bool same_update(const StepPlan& a, const StepPlan& b);

}  // namespace k25::optim
