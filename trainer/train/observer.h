#pragma once
// Everything that looks at a run and changes nothing of it: the machine's numbers, stalls, dumps on
// request, profiles.

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trainer/checkpoint/checkpoint.h"
#include "trainer/config/config.h"
#include "trainer/train/memory_plan.h"
#include "trainer/train/step.h"
#include "trainer/train/step_profile.h"
#include "trainer/watch/control.h"
#include "trainer/watch/hardware.h"
#include "trainer/watch/stall.h"

namespace k25::trainer {

enum class MemoryReport : std::uint8_t { kNone, kWrite };

/// What the command line and signals want to see.
struct ObserveRequests {
  const std::atomic<std::int64_t>& dumps;  ///< SIGUSR2s that came
  ProfileSteps profile;
  MemoryReport memory = MemoryReport::kNone;
};

class Observer {
 public:
  /// On every rank, once the run directory is this run's.
  Observer(Runtime& runtime, const Config& config, const ObserveRequests& requests);

  /// The last sample; empty on ranks other than 0.
  HardwareValues hardware() const;
  void before_step(std::int64_t step) { profile_.before_step(step); }
  /// Between two steps, behind `stepper`'s step. `lock`: rank 0's. Returns lines for people.
  std::vector<std::string> after_step(std::int64_t step, const Stepper& stepper,
                                      const RunLock* lock);
  /// Collective, at the end.
  std::vector<std::string> finish(const MemoryPlan& plan);

 private:
  std::string watch_for_stall(std::int64_t step, const Stepper& stepper, const RunLock& lock);

  Runtime& runtime_;
  std::filesystem::path run_dir_;
  MemoryReport memory_;
  StallDetector stalls_;
  StepProfile profile_;
  ControlWatch control_;
  std::optional<HardwareSampler> hardware_;  // rank 0
};

}  // namespace k25::trainer
