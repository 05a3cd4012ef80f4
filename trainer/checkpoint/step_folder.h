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

/// What may be taken in the place of RUN/checkpoints/step-N: "; other checkpoints of 'RUN': OPTION
/// step:2, step:4 (...)". "" of a folder elsewhere. Does not throw.
std::string other_steps_text(const std::filesystem::path& folder, const std::string& option);

/// Whether a checkpoint may have this name: "step-" and at most 18 digits.
bool is_step_name(const std::string& name);

/// "step-000120".
std::string step_folder_name(std::int64_t step);

}  // namespace k25::trainer
