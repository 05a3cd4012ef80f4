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

/// The configuration of a checkpoint, as one rank with batch 1 resolves it: of the model it tells
/// all. Throws kCheckpoint when this k25 does not understand it.
ParsedConfig stored_config(const CheckpointInfo& info);

/// A model with weights from a checkpoint, for forward passes only.
struct LoadedRun {
  ParsedConfig parsed;
  CheckpointInfo info;
  std::unique_ptr<Runtime> runtime;
  std::unique_ptr<Model> model;
  std::unique_ptr<parallel::ZeroStore> store;
};

/// Collective. `which`: best, when it is "". `batch` sequences per forward pass. The configuration
/// is the checkpoint's own, with `overrides` and the mesh of this world. Overrides of model.* are
/// kUsage: the weights are read as what they are.
LoadedRun load_run(parallel::World& world, const std::filesystem::path& path,
                   const std::string& which, const std::vector<std::string>& overrides,
                   std::int64_t batch);

/// Collective. The weights that train.init_from names become the store's; what the config has that
/// the checkpoint had not is a warning, or kCheckpoint (see require_same_layout()); another
/// tokenizer than `tokenizer` (a digest) is kData.
void load_initial_weights(Runtime& runtime, const Config& config, const std::string& tokenizer,
                          parallel::ZeroStore& store, std::vector<std::string>& warnings);

}  // namespace k25::trainer
