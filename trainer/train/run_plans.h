#pragma once
// RUN/plans.json between starts of a run: see plans.h.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "trainer/checkpoint/checkpoint.h"
#include "trainer/train/runtime.h"

namespace k25::trainer {

/// Collective, before the first op. The kernels that the run of `checkpoint` (absent: a new run)
/// was computed with become the runtime's on every rank, from rank 0's file. A run without the file
/// chooses anew. One warning when they were chosen for another GPU or library and cannot be used,
/// and one when the ranks' own machines are not alike. Throws AgreedError (kCheckpoint) for a
/// damaged file.
void load_plans(Runtime& runtime, const std::optional<std::filesystem::path>& checkpoint,
                std::vector<std::string>& warnings);

/// Before a checkpoint is saved: RUN/plans.json (rank 0, which holds `lock`) and the state's
/// fingerprint say what has been used so far. A file that cannot be written is a warning: the
/// checkpoint's own fate decides whether the run goes on.
void keep_plans(Runtime& runtime, const std::filesystem::path& run_dir, const RunLock* lock,
                TrainState& state);

}  // namespace k25::trainer
