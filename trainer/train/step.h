#pragma once
// One training step, as in docs/architecture.md: batches -> forward and backward of every
// micro-batch -> ordered reduction -> the one host wait -> decide -> update.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "data/loader/loader.h"
#include "data/sampler/sampler.h"
#include "optim/decide.h"
#include "optim/statistics.h"
#include "parallel/zero/zero_store.h"
#include "trainer/checkpoint/state.h"
#include "trainer/config/config.h"
#include "trainer/model/model.h"
#include "trainer/train/batch_upload.h"
#include "trainer/train/runtime.h"
#include "trainer/train/sequence_losses.h"
#include "trainer/watch/stall.h"

namespace k25::trainer {

struct StepResult {
  optim::StepPlan plan;
  optim::StepStats stats;
  std::vector<data::SampleRef> samples;  ///< of the whole global batch, in order
  double data_seconds = 0.0, wait_seconds = 0.0;
  parallel::OffloadTimes offload;  ///< of the update that ended during this step
};

/// Throws kUsage when debug.inject names no trained element of the model and no row of the loss
/// ("loss": the nll of that row of a step's first micro-batch; gradients stay clean).
void require_injectable(const Config& config, const Model& model);

class Stepper {
 public:
  Stepper(Runtime& runtime, const Config& config, Model& model, parallel::ZeroStore& store,
          const data::Corpus& corpus, const data::Sampler& sampler);

  /// Beside store, model and statistics.
  static Footprint plan(const Config& config, const RunShape& shape);

  /// Collective. Advances `state` (step, policy, mixture, tokens) and the parameters.
  /// `save_and_stop` is this rank's signal flag; the result's stats hold the OR over ranks.
  StepResult run(TrainState& state, bool save_and_stop);

  /// Of every data rank, up to the last step's statistics (trainer/watch/stall.h).
  const std::vector<optim::RankPhases>& rank_phases() const { return statistics_.rank_phases(); }
  /// What this rank did between two steps.
  void add_seconds(StepPhase phase, double seconds);

 private:
  class PhaseScope;
  static std::int64_t micro_batches(const Config& config);  // of this rank in a step
  BatchTensors forward(const StepResult& result, std::int64_t micro_batch, optim::LocalStats& local,
                       double& data_seconds);
  /// Before the last backward pass, with the label tokens of this rank's whole batch.
  void guess_update(const optim::PolicyState& policy, std::int64_t label_tokens);
  void backward(const BatchTensors& tensors);
  void read_batch(const StepResult& result, std::int64_t micro_batch);
  void inject_fault();
  void finish_backward();
  void move_correction_biases();
  void update(const optim::StepPlan& plan);
  std::vector<data::SampleRef> draw(TrainState& state) const;

  Runtime& runtime_;
  const Config& config_;
  Model& model_;
  parallel::ZeroStore& store_;
  const data::Corpus& corpus_;
  const data::Sampler& sampler_;
  optim::Statistics statistics_;
  data::Batch batch_;
  BatchUpload upload_;
  SequenceLosses losses_;
  std::int64_t step_ = 0;                 // the one under way, from 1
  optim::PhaseSeconds phases_{};          // since the last statistics
  double waited_ = 0.0;                   // of this step, as the store tells it
  std::int64_t slept_at_ = 0;             // debug.slow_read
  std::optional<optim::StepPlan> guess_;  // of this step
  bool clipped_ = false;                  // the last step
};

}  // namespace k25::trainer
