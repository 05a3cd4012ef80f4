#pragma once
// `k25 train --profile-memory`: RUN/memory.json, what was planned beside what was taken.

#include <filesystem>
#include <string>

#include "trainer/train/memory_plan.h"
#include "trainer/train/runtime.h"

namespace k25::trainer {

/// Of this rank: each category of the plan with the bytes planned and those allocated for it, each
/// allocation with its category and place (device, pinned, host), and the peaks.
std::string memory_json(Runtime& runtime, const MemoryPlan& plan);

void write_memory_report(Runtime& runtime, const MemoryPlan& plan,
                         const std::filesystem::path& run_dir);

}  // namespace k25::trainer
