#include "trainer/train/step.h"

#include <chrono>
#include <cmath>
#include <span>

#include "optim/adamw.h"
#include "parallel/comm/agree.h"

namespace k25::trainer {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

void require_injectable(const DebugInject& inject, const Model& model) {
  if (inject.step < 0) return;
  for (const parallel::UnitSpec& unit : model.units()) {
    for (const parallel::ParameterSpec& p : unit.parameters) {
      if (p.name != inject.tensor) continue;
      if (inject.index < p.numel() && !p.frozen) return;
      fail(ErrorKind::kUsage, "debug.inject.index: " + std::to_string(inject.index) + " in '" +
                                  p.name + "', which has " +
                                  std::to_string(p.frozen ? 0 : p.numel()) +
                                  " elements that are trained");
    }
  }
  fail(ErrorKind::kUsage,
       "debug.inject.tensor: '" + inject.tensor + "' is no parameter of this model");
}

BatchTensors batch_tensors(const data::Batch& b) {
  const std::int64_t rows = b.sequences * b.tokens_per_sequence;
  const auto flat = [&](const std::vector<std::int32_t>& v) {
    return ConstTensor(v.data(), DType::kInt32, {rows});
  };
  const auto grid = [&](const std::vector<std::int32_t>& v) {
    return ConstTensor(v.data(), DType::kInt32, {b.sequences, b.tokens_per_sequence});
  };
  return {flat(b.tokens), flat(b.labels), flat(b.position), grid(b.doc_begin), grid(b.doc_end)};
}

LossSum sum_loss(const Tensor& nll_N, std::int64_t sequences, std::int64_t tokens) {
  LossSum sum;
  const float* nll = nll_N.data<float>();
  for (std::int64_t b = 0; b < sequences; ++b) {
    double sequence = 0.0;
    for (std::int64_t t = 0; t < tokens; ++t) sequence += static_cast<double>(nll[b * tokens + t]);
    if (!std::isfinite(sequence)) {
      sum.finite = false;
    } else {
      sum.nll_fixed += std::llround(sequence * 0x1p24);
    }
  }
  return sum;
}

Stepper::Stepper(Runtime& runtime, const Config& config, Model& model, parallel::ZeroStore& store,
                 const data::Corpus& corpus, const data::Sampler& sampler)
    : runtime_(runtime),
      config_(config),
      model_(model),
      store_(store),
      corpus_(corpus),
      sampler_(sampler),
      statistics_(runtime.mesh(), store, runtime.allocator()) {
  batch_.resize(config.train.micro_batch, config.data.sequence);
}

void Stepper::accumulate_micro_batch(const StepResult& result, std::int64_t micro_batch,
                                     optim::LocalStats& local, double& data_seconds) {
  const auto start = std::chrono::steady_clock::now();
  const std::int64_t size = config_.train.micro_batch;
  data::load_samples(
      corpus_, sampler_,
      std::span(result.samples)
          .subspan(static_cast<std::size_t>(micro_batch * size), static_cast<std::size_t>(size)),
      batch_);
  data_seconds += seconds_since(start);

  const BatchTensors tensors = batch_tensors(batch_);
  const Model::Output output = model_.forward(runtime_.context(), store_, tensors);
  const LossSum loss = sum_loss(output.nll_N, size, config_.data.sequence);
  local.nll_fixed += loss.nll_fixed;
  local.loss_finite = local.loss_finite && loss.finite;
  local.label_tokens += batch_.label_tokens;
  model_.backward(runtime_.context(), store_, tensors);
  store_.end_micro_batch();
}

void Stepper::inject_fault(std::int64_t step) {
  const DebugInject& inject = config_.inject;
  if (inject.step < 0 || (inject.step != 0 && inject.step != step)) return;
  for (int u = 0; u < store_.num_units(); ++u) {
    const parallel::UnitLayout& layout = store_.layout(u);
    for (std::size_t p = 0; p < layout.parameters.size(); ++p) {
      if (layout.parameters[p].name != inject.tensor) continue;
      const std::int64_t at = layout.offsets[p] + inject.index - store_.shard_begin(u);
      const Tensor gradient = store_.shard_gradient(u);
      if (at >= 0 && at < gradient.numel()) {
        gradient.data<float>()[at] = static_cast<float>(inject.value);
      }
    }
  }
}

// The same on all ranks, and so is its failure (data.on_exhausted: stop).
std::vector<data::SampleRef> Stepper::draw(TrainState& state) const {
  try {
    return sampler_.draw(state.mixture, config_.train.batch);
  } catch (const Error& error) {
    throw parallel::AgreedError(error.kind(), error.what(), 0);
  }
}

StepResult Stepper::run(TrainState& state, bool save_and_stop) {
  StepResult result;
  result.samples = draw(state);

  optim::LocalStats local;
  local.save_and_stop = save_and_stop;
  const std::int64_t slots = config_.reduce.slots;
  const std::int64_t per_slot = config_.train.batch / config_.train.micro_batch / slots;
  const std::int64_t ranks = runtime_.mesh().data_ranks();
  store_.begin_step();
  for (std::int64_t round = 0; round < slots / ranks; ++round) {
    const std::int64_t slot = round * ranks + runtime_.mesh().data_rank();
    for (std::int64_t i = 0; i < per_slot; ++i) {
      accumulate_micro_batch(result, slot * per_slot + i, local, result.data_seconds);
    }
  }
  store_.finish_gradients();
  inject_fault(state.step + 1);

  result.stats = statistics_.gather(runtime_.context(), local);
  result.plan = optim::decide(result.stats, state.policy, config_.optim);
  if (result.plan.action == optim::StepAction::kApply) {
    optim::apply_adamw(runtime_.context(), store_, result.plan);
    state.label_tokens += result.stats.label_tokens;
  }
  store_.end_step();
  state.policy = result.plan.next;
  ++state.step;
  result.wait_seconds = store_.take_wait_seconds();
  return result;
}

}  // namespace k25::trainer
