#include "trainer/train/step.h"

#include <chrono>
#include <span>
#include <string>
#include <thread>

#include "kernels/core/host_access.h"
#include "kernels/core/profiler.h"
#include "kernels/core/stopwatch.h"
#include "optim/adamw.h"
#include "parallel/comm/agree.h"

namespace k25::trainer {
namespace {

constexpr const char* kLoss = "loss";  // in debug.inject.tensor: a row's nll instead of a gradient

bool strikes(const DebugInject& inject, std::int64_t step) {
  return inject.step >= 0 && (inject.step == 0 || inject.step == step);
}

}  // namespace

void require_injectable(const Config& config, const Model& model) {
  const DebugInject& inject = config.inject;
  if (inject.step < 0) return;
  if (inject.tensor == kLoss) {
    const std::int64_t rows = config.train.micro_batch * config.data.sequence;
    if (inject.index < rows) return;
    fail(ErrorKind::kUsage, "debug.inject.index: " + std::to_string(inject.index) +
                                " in 'loss', which has " + std::to_string(rows) +
                                " rows in a micro-batch");
  }
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
  fail(ErrorKind::kUsage, "debug.inject.tensor: '" + inject.tensor +
                              "' is no parameter of this model, and not 'loss'");
}

Stepper::Stepper(Runtime& runtime, const Config& config, Model& model, parallel::ZeroStore& store,
                 const data::Corpus& corpus, const data::Sampler& sampler)
    : runtime_(runtime),
      config_(config),
      model_(model),
      store_(store),
      corpus_(corpus),
      sampler_(sampler),
      statistics_(runtime.mesh(), store, runtime.host_allocator(), runtime.allocator()),
      upload_(model, micro_batches(config), runtime.host_allocator(), runtime.allocator()),
      losses_(model.shape(), micro_batches(config), runtime.host_allocator(), runtime.allocator()) {
  batch_.resize(config.train.micro_batch, config.data.sequence);
}

std::int64_t Stepper::micro_batches(const Config& config) {
  return config.train.batch / config.train.micro_batch /
         (config.mesh.replicate * config.mesh.shard * config.mesh.expert);
}

Footprint Stepper::plan(const Config& config, const RunShape& shape) {
  const std::int64_t depth = micro_batches(config);
  return BatchUpload::plan(shape, depth) + SequenceLosses::plan(shape, depth);
}

/// One phase of a step: a range of the profile, and seconds without those spent waiting.
class Stepper::PhaseScope {
 public:
  PhaseScope(Stepper& stepper, StepPhase phase)
      : stepper_(stepper),
        phase_(phase),
        range_(stepper.runtime_.context(), phase_name(phase).data()) {}
  ~PhaseScope() {
    const double waited = stepper_.store_.take_wait_seconds();
    stepper_.waited_ += waited;
    stepper_.add_seconds(StepPhase::kWait, waited);
    stepper_.add_seconds(phase_, watch_.seconds() - waited);
  }
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  Stepper& stepper_;
  StepPhase phase_;
  ProfileRange range_;
  Stopwatch watch_;
};

void Stepper::add_seconds(StepPhase phase, double seconds) {
  phases_[static_cast<std::size_t>(phase)] += seconds;
}

void Stepper::read_batch(const StepResult& result, std::int64_t micro_batch) {
  const DebugSlowRead& slow = config_.slow_read;
  if (slow.rank == runtime_.world().rank() && slow.step == step_ && slept_at_ != step_) {
    slept_at_ = step_;  // once, before the first micro-batch
    std::this_thread::sleep_for(std::chrono::duration<double>(slow.seconds));
  }
  const std::int64_t size = config_.train.micro_batch;
  data::load_samples(
      corpus_, sampler_,
      std::span(result.samples)
          .subspan(static_cast<std::size_t>(micro_batch * size), static_cast<std::size_t>(size)),
      batch_);
}

BatchTensors Stepper::forward(const StepResult& result, std::int64_t micro_batch,
                              optim::LocalStats& local, double& data_seconds) {
  {
    const ScopedTimer timer(data_seconds);
    const PhaseScope scope(*this, StepPhase::kData);
    read_batch(result, micro_batch);
  }
  const PhaseScope scope(*this, StepPhase::kForward);
  const BatchTensors tensors = upload_.upload(runtime_.context(), runtime_.mesh(), batch_);
  const Model::Output output =
      model_.forward(runtime_.context(), store_, tensors, Model::Purpose::kTrain);
  const DebugInject& inject = config_.inject;
  if (micro_batch == 0 && inject.tensor == kLoss && strikes(inject, step_)) {
    const auto value = static_cast<float>(inject.value);
    write_from_host(runtime_.context(), &value,
                    output.nll_N.slice(0, inject.index, inject.index + 1));
  }
  losses_.add(runtime_.context(), output.nll_N);
  local.label_tokens += batch_.label_tokens;
  return tensors;
}

// The guess: nothing clips and all is finite. Steps that clip come in rows, so behind one there is
// no guess.
void Stepper::guess_update(const optim::PolicyState& policy, std::int64_t label_tokens) {
  guess_.reset();
  if (clipped_ || !store_.can_guess()) return;
  runtime_.mesh()
      .data_comm()
      .all_reduce_small({.name = "label tokens"}, {.integers = &label_tokens, .count = 1})
      .wait();
  optim::StepPlan plan = optim::decide({.label_tokens = label_tokens}, policy, config_.optim);
  if (plan.action != optim::StepAction::kApply) return;
  optim::guess_adamw(store_, plan);
  guess_ = std::move(plan);
}

void Stepper::backward(const BatchTensors& tensors) {
  const PhaseScope scope(*this, StepPhase::kBackward);
  model_.backward(runtime_.context(), store_, tensors);
  store_.end_micro_batch();
}

void Stepper::inject_fault() {
  const DebugInject& inject = config_.inject;
  if (!strikes(inject, step_)) return;
  for (int u = 0; u < store_.num_units(); ++u) {
    const parallel::UnitLayout& layout = store_.layout(u);
    for (std::size_t p = 0; p < layout.parameters.size(); ++p) {
      if (layout.parameters[p].name != inject.tensor) continue;
      const std::int64_t at = layout.offsets[p] + inject.index - store_.shard_begin(u);
      const Tensor gradient = store_.shard_gradient(u);
      if (at < 0 || at >= gradient.numel()) continue;
      const auto value = static_cast<float>(inject.value);
      write_from_host(runtime_.context(), &value, gradient.slice(0, at, at + 1));
      store_.gradient_written(u);
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

// Up to the step's only host wait.
void Stepper::finish_backward() {
  const PhaseScope scope(*this, StepPhase::kWait);
  store_.finish_gradients();
  inject_fault();
  losses_.fetch(runtime_.context());
  statistics_.begin(runtime_.context());
  runtime_.mesh().wait(runtime_.context());
}

// The load is of all data ranks and a sum of integers, so that its order does not matter.
void Stepper::move_correction_biases() {
  const Tensor& load = model_.expert_load();
  if (!load) return;
  runtime_.mesh()
      .data_comm()
      .all_reduce_small({.name = "expert load"},
                        {.integers = load.data<std::int64_t>(), .count = load.numel()})
      .wait();
  model_.move_correction_biases(store_);
}

void Stepper::update(const optim::StepPlan& plan) {
  const PhaseScope scope(*this, StepPhase::kUpdate);
  if (plan.action == optim::StepAction::kApply) {
    optim::apply_adamw(store_, plan, guess_);
    move_correction_biases();
  }
  model_.clear_expert_load();
  store_.end_step();
}

StepResult Stepper::run(TrainState& state, bool save_and_stop) {
  const ProfileRange range(runtime_.context(), "step");
  StepResult result;
  step_ = state.step + 1;
  store_.take_wait_seconds();  // of an evaluation before
  waited_ = 0.0;
  result.samples = draw(state);

  optim::LocalStats local;
  local.save_and_stop = save_and_stop;
  const std::int64_t slots = config_.reduce.slots;
  const std::int64_t per_slot = config_.train.batch / config_.train.micro_batch / slots;
  const std::int64_t ranks = runtime_.mesh().data_ranks();
  store_.begin_step();
  losses_.clear();
  for (std::int64_t round = 0; round < slots / ranks; ++round) {
    const std::int64_t slot = round * ranks + runtime_.mesh().data_rank();
    for (std::int64_t i = 0; i < per_slot; ++i) {
      const BatchTensors tensors = forward(result, slot * per_slot + i, local, result.data_seconds);
      const bool last = round == slots / ranks - 1 && i == per_slot - 1;
      if (last) guess_update(state.policy, local.label_tokens);
      backward(tensors);
    }
  }
  finish_backward();
  for (const double nll : losses_.values()) optim::add_nll(local, nll);
  local.phases = phases_;
  result.stats = statistics_.gather(runtime_.context(), local);
  phases_ = {};
  result.plan = optim::decide(result.stats, state.policy, config_.optim);
  if (result.plan.action == optim::StepAction::kApply) {
    state.label_tokens += result.stats.label_tokens;
    clipped_ = result.plan.scale != 1.0 / static_cast<double>(result.stats.label_tokens);
  }
  update(result.plan);
  state.policy = result.plan.next;
  ++state.step;
  result.wait_seconds = waited_;
  result.offload = store_.take_offload_times();
  return result;
}

}  // namespace k25::trainer
