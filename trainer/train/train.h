#pragma once
// `k25 train`: from a config to a run directory.

#include <atomic>
#include <string>
#include <vector>

#include "parallel/comm/world.h"
#include "trainer/config/parse.h"
#include "trainer/train/observer.h"

namespace k25::trainer {

/// Collective. Returns when all steps are done, or after a clean save-and-stop (`save_and_stop` is
/// set by SIGUSR1). Throws Error otherwise; AgreedError when every rank knows it.
void train(parallel::World& world, const ParsedConfig& parsed,
           const std::atomic<bool>& save_and_stop, const ObserveRequests& requests);

}  // namespace k25::trainer
