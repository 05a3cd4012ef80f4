#include <fmt/format.h>

#include <memory>

#include "parallel/comm/agree.h"
#include "trainer/cli/commands.h"
#include "trainer/cli/options.h"
#include "trainer/config/places.h"
#include "trainer/eval/evaluate.h"
#include "trainer/train/adopt.h"
#include "trainer/train/load_run.h"

namespace k25::trainer {
namespace {

struct EvalArguments {
  std::string path, which;
  std::vector<std::string> overrides;
  std::int64_t batch = 4;
};

void print_result(const EvalRecord& eval, const UnigramBaseline& baseline, std::int64_t step) {
  if (!eval.loss) {
    fmt::print("step={} loss=n/a tokens={}\n", step, eval.tokens);
    return;
  }
  fmt::print(
      "step={} loss={:.4f} tokens={} unigram_entropy={:.4f} train_unigram_cross_entropy={}\n", step,
      *eval.loss, eval.tokens, baseline.entropy,
      baseline.cross_entropy ? fmt::format("{:.4f}", *baseline.cross_entropy) : "n/a");
  for (const auto& [domain, loss] : eval.domain_loss) {
    fmt::print("  domain={} loss={:.4f}\n", domain, loss);
  }
}

void require_tokenizer_of(const LoadedRun& run, const data::Corpus& corpus) {
  const Config& config = run.parsed.config;
  const std::string& trained = run.info.state.tokenizer_digest;  // "" in older checkpoints
  const std::string given = tokenizer_digest(corpus.tokenizer_path());
  const bool same = trained.empty() || given == trained;
  if (corpus.info().vocab <= config.model.vocab && same) return;
  fail(ErrorKind::kData,
       fmt::format(
           "{}: the corpus has a vocabulary of {}, the model has {}; its tokenizer's SHA-256 "
           "is {}, the run was trained with {}; evaluate on a corpus made with the "
           "tokenizer of the run (k25 prepare --tokenizer)",
           config.data.train, corpus.info().vocab, config.model.vocab, given,
           trained.empty() ? "one that was not recorded" : trained));
}

void run_eval(const EvalArguments& arguments, const CommandContext& context) {
  parallel::World& world = *context.world;
  require_path(world.comm(), arguments.path);
  LoadedRun run =
      load_run(world, arguments.path, arguments.which, arguments.overrides, arguments.batch);
  const Config& config = run.parsed.config;
  std::unique_ptr<data::Corpus> corpus;
  data::Split split;
  parallel::collectively(world.comm(), "corpus", [&] {
    with_places(run.parsed, [&] {
      corpus = std::make_unique<data::Corpus>(config.data.train);
      require_tokenizer_of(run, *corpus);
      split =
          data::split_documents(*corpus, config.data.validation, data::TrainingSide::kMayBeEmpty);
    });
  });
  const data::ValidationSet validation(*corpus, split.validation, config.data.sequence);
  Evaluator evaluator(*run.runtime, config, *run.model, *run.store, *corpus, validation);
  const EvalRecord eval = evaluator.run(run.info.state.step);
  if (world.rank() != 0) return;
  if (split.validation.empty())
    fmt::print(stderr, "k25: warning: no validation data (data.validation)\n");
  print_result(eval, unigram_baseline(*corpus, split), run.info.state.step);
}

}  // namespace

Command add_eval(CLI::App& root) {
  auto arguments = std::make_shared<EvalArguments>();
  CLI::App* app = root.add_subcommand("eval", "validation loss of a checkpoint, by domain");
  app->add_option("RUN", arguments->path, "run directory or checkpoint folder")->required();
  app->add_option("--checkpoint", arguments->which, "of a run: best | latest | step:N")
      ->default_str("best");
  app->add_option("--set", arguments->overrides, "override one key: a.b=value (repeatable)")
      ->allow_extra_args(false);
  app->add_option("--batch", arguments->batch, "sequences per forward pass")
      ->transform(integer_option(1, kMaxBatch))
      ->capture_default_str();
  return {app, Needs::kWorld,
          [arguments](const CommandContext& context) { run_eval(*arguments, context); }};
}

}  // namespace k25::trainer
