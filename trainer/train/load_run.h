#pragma once
// Opening a finished or running run for reading: its configuration, model and weights.

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "parallel/zero/zero_store.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/config/parse.h"
#include "trainer/model/model.h"
#include "trainer/train/runtime.h"

namespace k25::trainer {

/// RUN or RUN/checkpoints/step-N: the folder of the checkpoint that `which` names: best (the latest
/// when there is no best), latest, or step:N; "" (nothing was said) is `otherwise`. Throws
/// kCheckpoint with what exists, and kUsage when `which` is to choose from a single checkpoint.
std::filesystem::path find_checkpoint(const std::filesystem::path& path, const std::string& which,
                                      const std::string& otherwise);

/// A model with weights from a checkpoint, for forward passes only.
struct LoadedRun {
  ParsedConfig parsed;
  CheckpointInfo info;
  std::unique_ptr<Runtime> runtime;
  std::unique_ptr<Model> model;
  std::unique_ptr<parallel::ZeroStore> store;
};

/// Collective. `which`: best, when it is "". `batch` sequences per forward pass. The configuration
/// is the checkpoint's own, with `overrides` and the mesh of this world.
LoadedRun load_run(parallel::World& world, const std::filesystem::path& path,
                   const std::string& which, const std::vector<std::string>& overrides,
                   std::int64_t batch);

}  // namespace k25::trainer
