#pragma once
// Turns a step's result into the numbers people watch: throughput, FLOPs, epochs, ETA.

#include "data/corpus/corpus.h"
#include "data/sampler/sampler.h"
#include "trainer/config/config.h"
#include "trainer/log/metrics.h"
#include "trainer/train/step.h"
#include "trainer/watch/hardware.h"

namespace k25::trainer {

/// Model FLOPs of one trained token, forward and backward: 6 N_matmul + 12 L d_attention K, where
/// N_matmul counts matrix parameters (head included, embedding lookup not), d_attention = heads x
/// head_dim and K the mean number of visible keys of full causal attention, (T + 1) / 2. Recompute
/// is not counted.
double flops_per_token(const ModelConfig& model, std::int64_t sequence);

class Progress {
 public:
  struct Input {
    const Config& config;
    const TrainState& state;
    const StepResult& result;
    const data::Corpus& corpus;
    const data::Sampler& sampler;
    double step_seconds = 0.0, save_seconds = 0.0;
    Bytes memory;
    HardwareValues hardware;
  };
  StepRecord record(const Input& input);

 private:
  double mean_seconds_ = 0.0;  // exponential mean of step times, for the ETA
};

}  // namespace k25::trainer
