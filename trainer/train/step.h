#pragma once
// One training step, as in docs/architecture.md: batches -> forward and backward of every
// micro-batch -> ordered reduction -> the one host wait -> decide -> update.

#include <cstdint>
#include <vector>

#include "data/loader/loader.h"
#include "data/sampler/sampler.h"
#include "optim/decide.h"
#include "optim/statistics.h"
#include "parallel/zero/zero_store.h"
#include "trainer/checkpoint/state.h"
#include "trainer/config/config.h"
#include "trainer/model/model.h"
#include "trainer/train/runtime.h"

namespace k25::trainer {

/// Views of a host batch; valid while the batch is unchanged.
BatchTensors batch_tensors(const data::Batch& batch);

/// Sum over rows of each sequence's nll, in units of 2^-24 nats, added as integers: independent of
/// order.
struct LossSum {
  std::int64_t nll_fixed = 0;
  bool finite = true;
};
LossSum sum_loss(const Tensor& nll_N, std::int64_t sequences, std::int64_t tokens);

struct StepResult {
  optim::StepPlan plan;
  optim::StepStats stats;
  std::vector<data::SampleRef> samples;  ///< of the whole global batch, in order
  double data_seconds = 0.0, wait_seconds = 0.0;
};

/// Throws kUsage when debug.inject names no trained element of the model.
void require_injectable(const DebugInject& inject, const Model& model);

class Stepper {
 public:
  Stepper(Runtime& runtime, const Config& config, Model& model, parallel::ZeroStore& store,
          const data::Corpus& corpus, const data::Sampler& sampler);

  /// Collective. Advances `state` (step, policy, mixture, tokens) and the parameters.
  /// `save_and_stop` is this rank's signal flag; the result's stats hold the OR over ranks.
  StepResult run(TrainState& state, bool save_and_stop);

 private:
  void accumulate_micro_batch(const StepResult& result, std::int64_t micro_batch,
                              optim::LocalStats& local, double& data_seconds);
  void inject_fault(std::int64_t step);
  std::vector<data::SampleRef> draw(TrainState& state) const;

  Runtime& runtime_;
  const Config& config_;
  Model& model_;
  parallel::ZeroStore& store_;
  const data::Corpus& corpus_;
  const data::Sampler& sampler_;
  optim::Statistics statistics_;
  data::Batch batch_;
};

}  // namespace k25::trainer
