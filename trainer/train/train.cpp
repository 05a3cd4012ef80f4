#include "trainer/train/train.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cmath>
#include <memory>
#include <optional>

#include "data/io/atomic_file.h"
#include "data/io/block_digest.h"
#include "kernels/core/stopwatch.h"
#include "parallel/comm/agree.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/files.h"
#include "trainer/config/places.h"
#include "trainer/eval/evaluate.h"
#include "trainer/log/metrics.h"
#include "trainer/model/model.h"
#include "trainer/train/adopt.h"
#include "trainer/train/changes.h"
#include "trainer/train/load_run.h"
#include "trainer/train/memory_plan.h"
#include "trainer/train/observer.h"
#include "trainer/train/progress.h"
#include "trainer/train/run_plans.h"
#include "trainer/train/start_checks.h"
#include "trainer/train/start_report.h"
#include "trainer/train/step.h"

namespace k25::trainer {
namespace {

using parallel::collectively;

// Everything of one run that lives from start to end, in order of dependence.
class TrainRun {
 public:
  TrainRun(parallel::World& world, const ParsedConfig& parsed, const ObserveRequests& requests);
  void run(const std::atomic<bool>& save_and_stop);

 private:
  void open_run_directory();
  void open_data();
  void build();
  void start_state();
  bool is_done() const;
  void open_files();
  void write_config_and_open_metrics();
  void report_start();
  void evaluate();
  bool one_step(const std::atomic<bool>& save_and_stop);
  void check_policy(const StepResult& result);
  void record(const StepResult& result, double step_seconds);
  template <class Body>
  void save_with(Body body);
  template <class Record>
  void write_metrics(const Record& record);
  void maybe_kill(std::int64_t step);
  void save();
  void finish(bool stopped);
  void note(const std::string& text);

  const ParsedConfig& parsed_;
  const Config& config_;
  std::vector<std::string> warnings_;
  Runtime runtime_;
  std::unique_ptr<RunLock> lock_;  // rank 0
  std::unique_ptr<Observer> observer_;
  std::unique_ptr<data::Corpus> corpus_;
  data::Split split_;
  std::unique_ptr<data::Sampler> sampler_;
  std::unique_ptr<data::ValidationSet> validation_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<parallel::ZeroStore> store_;
  std::unique_ptr<Stepper> stepper_;
  std::unique_ptr<Evaluator> evaluator_;
  std::optional<std::filesystem::path> resume_target_;
  std::unique_ptr<CheckpointWriter> writer_;
  std::unique_ptr<Metrics> metrics_;  // rank 0
  MemoryPlan memory_;
  TrainState state_;
  Progress progress_;
  std::int64_t evaluated_at_ = -1;
};

TrainRun::TrainRun(parallel::World& world, const ParsedConfig& parsed,
                   const ObserveRequests& requests)
    : parsed_(parsed), config_(parsed.config), runtime_(world, parsed.config, warnings_) {
  open_run_directory();
  observer_ = std::make_unique<Observer>(runtime_, config_, requests);
  open_data();
  build();
  start_state();
  open_files();
  report_start();
}

void TrainRun::note(const std::string& text) {
  if (metrics_ != nullptr) metrics_->note(text);
}

void TrainRun::open_run_directory() {
  const std::string owner = parallel::from_rank0(runtime_.comm(), "run directory", [&] {
    lock_ = std::make_unique<RunLock>(config_.run.dir);
    with_file_errors([&] {
      for (const std::string& line : remove_leftovers(config_.run.dir)) warnings_.push_back(line);
    });
    return lock_->owner();
  });
  collectively(runtime_.comm(), "run directory", [&] { require_shared(config_.run.dir, owner); });
  std::vector<std::string> notes;
  resume_target_ =
      find_resume_target(runtime_.comm(), config_.run.dir, config_.train.resume, notes);
  warnings_.insert(warnings_.end(), notes.begin(), notes.end());
}

void TrainRun::open_data() {
  collectively(runtime_.comm(), "corpus", [&] {
    corpus_ = std::make_unique<data::Corpus>(config_.data.train,
                                             static_cast<int>(config_.run.cpu_threads));
    if (corpus_->info().vocab > config_.model.vocab) {
      fail(ErrorKind::kUsage,
           fmt::format("model.vocab: {} is below the vocabulary of the corpus {}, which is {}; set "
                       "model.vocab to at least {}",
                       config_.model.vocab, config_.data.train, corpus_->info().vocab,
                       corpus_->info().vocab));
    }
    split_ = data::split_documents(*corpus_, config_.data.validation);
    sampler_ = std::make_unique<data::Sampler>(
        *corpus_, split_.train,
        data::SamplerOptions{.sequence = config_.data.sequence,
                             .seed = config_.run.seed,
                             .weights = config_.data.mixture_weights,
                             .on_exhausted = config_.data.on_exhausted});
    validation_ =
        std::make_unique<data::ValidationSet>(*corpus_, split_.validation, config_.data.sequence);
  });
  for (const auto& found :
       {parsed_.warnings, settings_without_effect(parsed_, describe_data(*corpus_, split_))}) {
    warnings_.insert(warnings_.end(), found.begin(), found.end());
  }
}

void TrainRun::build() {
  parallel::ZeroOptions zero;
  collectively(runtime_.comm(), "plan", [&] {
    model_ = std::make_unique<Model>(config_.model, runtime_.shape(config_), config_.freeze,
                                     config_.recompute);
    require_injectable(config_, *model_);
    warn_of_frozen_model(*model_, parsed_, warnings_);
    warn_of_offload(config_, runtime_.device(), warnings_);
    // The budget moves with the machine's load, so ranks may differ here; they agree below.
    zero = resolve_zero(config_, *model_, runtime_.memory_budget());
  });
  std::int64_t choice[] = {static_cast<std::int64_t>(zero.reshard_after),
                           static_cast<std::int64_t>(zero.reduce_after)};
  // The choice of less memory wins everywhere (kForward and kMicroBatch are the lowest values).
  runtime_.comm()
      .all_reduce_small({.name = "plan"},
                        {.integers = choice, .count = 2, .op = parallel::ReduceOp::kMin})
      .wait();
  zero.reshard_after = static_cast<parallel::ReshardAfter>(choice[0]);
  zero.reduce_after = static_cast<parallel::ReduceAfter>(choice[1]);
  runtime_.place_update(config_, zero.offload);
  collectively(runtime_.comm(), "allocate", [&] {
    memory_ = plan_memory(config_, *model_, zero);
    require_fit(memory_, runtime_.memory_budget(), runtime_.host_budget());
    store_ = std::make_unique<parallel::ZeroStore>(runtime_.mesh(), model_->units(), zero,
                                                   runtime_.context(), runtime_.allocator(),
                                                   &runtime_.host_allocator());
    model_->allocate(runtime_.context(), runtime_.allocator());
  });
  stepper_ = std::make_unique<Stepper>(runtime_, config_, *model_, *store_, *corpus_, *sampler_);
  evaluator_ =
      std::make_unique<Evaluator>(runtime_, config_, *model_, *store_, *corpus_, *validation_);
  writer_ = std::make_unique<CheckpointWriter>(
      runtime_.mesh(), *store_, config_.run.dir, lock_.get(), config_.checkpoint, config_.kill,
      parsed_.resolved, resume_target_, runtime_.host_allocator());
}

void TrainRun::start_state() {
  load_plans(runtime_, resume_target_, warnings_);
  DataIdentity data;
  collectively(runtime_.comm(), "corpus",
               [&] { data = identify_data(config_, *corpus_, split_, *sampler_); });
  if (resume_target_) {
    CheckpointInfo source;
    collectively(runtime_.comm(), "resume", [&] {
      source = read_checkpoint_info(*resume_target_);
      require_same_function(source, config_.model);
    });
    source.state = load_checkpoint(runtime_.mesh(), *store_, *resume_target_, LoadWhat::kAll);
    state_ = adopt_state(source, config_, data, warnings_);
    if (!is_done()) {
      warn_of_changes(source, parsed_, data, runtime_.fingerprint(), warnings_);
    }
  } else {
    collectively(runtime_.comm(), "initial parameters",
                 [&] { initialize_parameters(*store_, config_.run.seed); });
    if (!config_.train.init_from.empty()) {
      load_initial_weights(runtime_, config_, data.tokenizer_digest, *store_, warnings_);
      state_.init_digest = state_digest(runtime_.mesh(), *store_);
    }
    state_.mixture = data.initial;
    state_.best_loss = 0.0;
  }
  state_.seed = config_.run.seed;
  state_.slots = config_.reduce.slots;
  state_.batch = config_.train.batch;
  state_.corpus_digest = data.corpus_digest;
  state_.order_digest = data.order_digest;
  state_.tokenizer_digest = data.tokenizer_digest;
  state_.config_digest = data::sha256_hex(parsed_.resolved);
  state_.fingerprint = runtime_.fingerprint();
}

bool TrainRun::is_done() const { return state_.step >= config_.train.steps; }

// The first that changes what stands in the run directory: everything that can refuse the start has
// had its say. A run that is done already changes nothing.
void TrainRun::open_files() {
  collectively(runtime_.comm(), "metrics", [&] {
    if (!runtime_.is_root()) return;
    LogConfig log = config_.log;
    if (is_done()) {
      require_own_checkpoint(config_, *resume_target_, state_.step);
      // The save before may have ended between the checkpoint and its pointer.
      if (config_.train.resume == "auto") point_latest_at(config_.run.dir, *resume_target_);
      log.metrics = log.tensorboard = false;
      metrics_ = std::make_unique<Metrics>(config_.run.dir, log, state_.step);
    } else {
      write_config_and_open_metrics();
    }
    if (!metrics_->warning().empty()) warnings_.push_back(metrics_->warning());
  });
}

// The config is on the disk, lacking only its name, before anything of an earlier run is renamed;
// a disk without room for it or for the metrics leaves the directory as it was.
void TrainRun::write_config_and_open_metrics() {
  const std::filesystem::path run_dir = config_.run.dir;
  std::vector<Renamed> renamed;
  try {
    data::write_file_atomically(
        run_dir / "config.yaml", parsed_.resolved, ErrorKind::kCheckpoint, [&] {
          renamed = set_aside_for(run_dir, config_.train.resume, resume_target_, warnings_);
          metrics_ = std::make_unique<Metrics>(run_dir, config_.log, state_.step);
        });
  } catch (const Error&) {
    metrics_.reset();
    put_back(renamed);
    throw;
  }
}

void TrainRun::report_start() {
  for (const std::string& warning : warnings_) {
    if (runtime_.is_root()) fmt::print(stderr, "k25: warning: {}\n", warning);
  }
  for (const std::string& line :
       start_report(runtime_, config_, *model_, *corpus_, split_, memory_, *store_)) {
    note(line);
  }
  if (resume_target_) {
    note(fmt::format("resumed from {} at step {}", resume_target_->string(), state_.step));
  }
}

void TrainRun::evaluate() {
  if (validation_->windows() == 0 || evaluated_at_ == state_.step) return;
  evaluated_at_ = state_.step;
  const EvalRecord eval = evaluator_->run(state_.step);
  const bool best =
      eval.loss && (state_.best_step < 0 || *eval.loss < state_.best_loss) && state_.step > 0;
  if (best) {
    state_.best_step = state_.step;
    state_.best_loss = *eval.loss;
  }
  if (metrics_ != nullptr) write_metrics(eval);
  if (best && config_.checkpoint.best) {
    save();
    writer_->mark_best(state_.step);
  }
}

void TrainRun::maybe_kill(std::int64_t step) {
  const DebugKill& kill = config_.kill;
  if (kill.point == "step" && kill.rank == runtime_.world().rank() && kill.step == step) {
    ::kill(getpid(), kill.signal);
  }
}

void TrainRun::check_policy(const StepResult& result) {
  const optim::StepPlan& plan = result.plan;
  if (plan.action == optim::StepAction::kApply) return;
  if (runtime_.is_root()) {
    fmt::print(stderr, "k25: warning: step {}: {}\n", state_.step, plan.reason);
  }
  if (plan.action == optim::StepAction::kStop) {
    writer_->finish();  // what is being saved counts
    throw parallel::AgreedError(
        ErrorKind::kNumeric,
        fmt::format("step {}: {}; parameters and moments are those of the last applied update, {}",
                    state_.step, plan.reason,
                    resume_target_ || writer_->saved_step() >= 0 ? "the last checkpoint stands"
                                                                 : "no checkpoint was saved yet"),
        0);
  }
}

void TrainRun::record(const StepResult& result, double step_seconds) {
  const StepRecord record = progress_.record({.config = config_,
                                              .state = state_,
                                              .result = result,
                                              .corpus = *corpus_,
                                              .sampler = *sampler_,
                                              .step_seconds = step_seconds,
                                              .save_seconds = writer_->take_seconds(),
                                              .memory = runtime_.allocator().live(),
                                              .hardware = observer_->hardware()});
  if (metrics_ == nullptr) return;
  write_metrics(record);
}

template <class Record>
void TrainRun::write_metrics(const Record& record) {
  lock_->require_held();  // else a long run would write into a directory that is gone
  try {
    metrics_->write(record);
  } catch (const Error&) {
    lock_->require_held();  // it may have gone this moment: that is the reason then
    throw;
  }
}

// What saving takes belongs to the period of the next step.
template <class Body>
void TrainRun::save_with(Body body) {
  const Stopwatch watch;
  body();
  stepper_->add_seconds(StepPhase::kSave, watch.seconds());
}

bool TrainRun::one_step(const std::atomic<bool>& save_and_stop) {
  maybe_kill(state_.step + 1);
  observer_->before_step(state_.step + 1);
  const Stopwatch watch;
  const StepResult result = stepper_->run(state_, save_and_stop.load());
  record(result, watch.seconds());
  for (const std::string& line : observer_->after_step(state_.step, *stepper_, lock_.get())) {
    note(line);
  }
  check_policy(result);
  save_with([&] { writer_->poll(); });

  const bool last = state_.step == config_.train.steps;
  const bool stop = result.stats.save_and_stop;
  const bool measure = config_.eval.every > 0 && state_.step % config_.eval.every == 0;
  if ((measure || last) && !stop) evaluate();  // before the save, which remembers the best step
  const bool due = config_.checkpoint.every > 0 && state_.step % config_.checkpoint.every == 0;
  if (due || last || stop) save_with([&] { save(); });
  return !stop;
}

void TrainRun::save() {
  keep_plans(runtime_, config_.run.dir, lock_.get(), state_);
  writer_->save(state_);
}

void TrainRun::finish(bool stopped) {
  writer_->finish();
  if (writer_->saved_step() != state_.step) {
    throw parallel::AgreedError(
        ErrorKind::kCheckpoint,
        fmt::format("the run ends at step {} and its last state could not be saved; the newest "
                    "checkpoint in {} is an earlier one",
                    state_.step, config_.run.dir),
        0);
  }
  for (const std::string& line : observer_->finish(memory_)) note(line);
  if (stopped) {
    note(fmt::format("saved and stopped at step {} (SIGUSR1); go on with --resume auto",
                     state_.step));
  } else {
    note(fmt::format("done: {} steps, {} label tokens, {} skipped, {} empty", state_.step,
                     state_.label_tokens, state_.policy.skipped, state_.policy.empty));
  }
}

void TrainRun::run(const std::atomic<bool>& save_and_stop) {
  if (is_done()) {
    note(fmt::format("nothing to do: the checkpoint is at step {}, train.steps is {}", state_.step,
                     config_.train.steps));
    return;
  }
  if (state_.step == 0) evaluate();
  bool go_on = true;
  try {
    while (go_on && state_.step < config_.train.steps) go_on = one_step(save_and_stop);
  } catch (const parallel::AgreedError& error) {
    // All ranks are here. The end of the data is no fault of the state; otherwise a save that is
    // under way is still worth having.
    if (error.kind() == ErrorKind::kData && state_.step > 0) save();
    writer_->finish();
    throw;
  }
  finish(!go_on);
}

}  // namespace

void train(parallel::World& world, const ParsedConfig& parsed,
           const std::atomic<bool>& save_and_stop, const ObserveRequests& requests) {
  with_places(parsed, [&] {
    TrainRun run(world, parsed, requests);
    run.run(save_and_stop);
  });
}

}  // namespace k25::trainer
