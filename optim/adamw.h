#pragma once
// AdamW over the shards of a ZeroStore, one StepPlan for all: each parameter range is updated with
// its own decay and learning-rate scale; frozen ranges, gaps and padding stay as they are.

#include "optim/decide.h"
#include "parallel/zero/zero_store.h"

namespace k25::optim {

void apply_adamw(parallel::ZeroStore& store, const StepPlan& plan);

}  // namespace k25::optim
