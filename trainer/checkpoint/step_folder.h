#pragma once
// The folders RUN/checkpoints/step-N. Private to this folder and to `k25 inspect`.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace k25::trainer {

struct StepFolder {
  std::int64_t step = 0;
  std::filesystem::path path;
};

/// Sorted by step; unfinished (.tmp) folders are left out. A run without checkpoints has none;
/// throws kCheckpoint when RUN/checkpoints cannot be read.
std::vector<StepFolder> step_folders(const std::filesystem::path& run_dir);

/// Whether a checkpoint may have this name: "step-" and at most 18 digits.
bool is_step_name(const std::string& name);

/// "step-000120".
std::string step_folder_name(std::int64_t step);

}  // namespace k25::trainer
