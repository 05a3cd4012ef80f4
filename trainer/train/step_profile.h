#pragma once
// `k25 train --profile a:b`: where the time of some steps goes, phase by phase and layer by layer.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "kernels/core/profiler.h"
#include "trainer/train/runtime.h"

namespace k25::trainer {

/// Steps first .. last, counted from 1; first 0: none.
struct ProfileSteps {
  std::int64_t first = 0, last = 0;
};

/// "a:b"; what is wrong with `text`, or "".
std::string read_profile_steps(const std::string& text, ProfileSteps& steps);

/// On every rank, so that a profiler that listens sees all of them; rank 0's table is written.
class StepProfile {
 public:
  StepProfile(Runtime& runtime, const ProfileSteps& steps, std::filesystem::path run_dir)
      : runtime_(runtime), steps_(steps), run_dir_(std::move(run_dir)) {}

  void before_step(std::int64_t step);
  /// Ends the profile behind its last step, and writes RUN/profile-a-b.json with the steps that
  /// there were; returns a line for people, or "".
  std::string after_step(std::int64_t step);
  /// The same at the end of a run that is shorter.
  std::string finish();

 private:
  std::string write(const Profiler& profiler) const;

  Runtime& runtime_;
  ProfileSteps steps_;
  std::filesystem::path run_dir_;
  std::unique_ptr<Profiler> profiler_;  // during these steps
  std::int64_t first_ = 0, last_ = 0;   // profiled
};

}  // namespace k25::trainer
