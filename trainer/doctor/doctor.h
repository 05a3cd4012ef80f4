#pragma once
// What this machine offers, over all ranks of a job. It reports and changes nothing.

#include <filesystem>
#include <string>
#include <vector>

#include "parallel/comm/world.h"
#include "trainer/doctor/finding.h"

namespace k25::trainer {

/// Collective. On rank 0 the findings of all hosts and ranks, elsewhere nothing.
std::vector<Finding> examine(parallel::World& world, const std::filesystem::path& run_dir);

}  // namespace k25::trainer
