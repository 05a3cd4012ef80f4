#pragma once
// AdamW over the shards of a ZeroStore, one StepPlan for all: each parameter range is updated with
// its own decay and learning-rate scale; frozen ranges, gaps and padding stay as they are.

#include <optional>

#include "optim/decide.h"
#include "parallel/zero/zero_store.h"

namespace k25::optim {

/// `guess`: what guess_adamw was given in this step.
void apply_adamw(parallel::ZeroStore& store, const StepPlan& plan,
                 const std::optional<StepPlan>& guess = std::nullopt);

/// Between the last micro-batch's forward and backward: ZeroStore::guess_update.
void guess_adamw(parallel::ZeroStore& store, const StepPlan& guess);

}  // namespace k25::optim
