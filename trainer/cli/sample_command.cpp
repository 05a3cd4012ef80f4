#include <fmt/format.h>

#include <memory>

#include "data/corpus/corpus.h"
#include "parallel/comm/agree.h"
#include "trainer/cli/commands.h"
#include "trainer/cli/options.h"
#include "trainer/sample/sample.h"
#include "trainer/train/adopt.h"
#include "trainer/train/load_run.h"

namespace k25::trainer {
namespace {

struct SampleArguments {
  std::string path, which, tokenizer;
  SampleOptions options;
};

std::unique_ptr<data::Tokenizer> open_tokenizer(const std::filesystem::path& model) {
  try {
    return std::make_unique<data::Tokenizer>(model);
  } catch (const Error& error) {
    fail(error.kind(), std::string(error.what()) +
                           "; --tokenizer takes the tokenizer.model of the corpus that the run was "
                           "trained on");
  }
}

std::filesystem::path own_tokenizer(const LoadedRun& run) {
  return std::filesystem::path(run.parsed.config.data.train).parent_path() / "tokenizer.model";
}

// With another tokenizer than that of the training data every id means something else: the text
// would be noise. An older checkpoint has no record; then the corpus's own tokenizer tells, if it
// is still there.
void require_tokenizer_of(const LoadedRun& run, const std::filesystem::path& model,
                          const data::Tokenizer& tokenizer, ErrorKind kind) {
  std::string trained = run.info.state.tokenizer_digest;
  std::error_code error;
  if (trained.empty() && std::filesystem::exists(own_tokenizer(run), error)) {
    trained = tokenizer_digest(own_tokenizer(run));
  }
  const std::string given = tokenizer_digest(model);
  const std::int64_t vocab = run.parsed.config.model.vocab;
  if (tokenizer.vocab() <= vocab && (trained.empty() || given == trained)) return;
  fail(kind, fmt::format("{}: not the tokenizer of the run: it has a vocabulary of {}, the model "
                         "has {}; its SHA-256 is {}, the run was trained with {}; take the "
                         "tokenizer.model of the run's corpus ({})",
                         model.string(), tokenizer.vocab(), vocab, given,
                         trained.empty() ? "one that was not recorded" : trained,
                         run.parsed.config.data.train));
}

void run_sample(const SampleArguments& arguments, const CommandContext& context) {
  parallel::World& world = *context.world;
  require_path(world.comm(), arguments.path);
  if (!arguments.tokenizer.empty()) require_path(world.comm(), arguments.tokenizer);
  LoadedRun run = load_run(world, arguments.path, arguments.which, {}, 1);
  std::unique_ptr<data::Tokenizer> tokenizer;
  parallel::collectively(world.comm(), "tokenizer", [&] {
    const std::filesystem::path model = arguments.tokenizer.empty()
                                            ? own_tokenizer(run)
                                            : std::filesystem::path(arguments.tokenizer);
    tokenizer = open_tokenizer(model);
    require_tokenizer_of(run, model, *tokenizer,
                         arguments.tokenizer.empty() ? ErrorKind::kData : ErrorKind::kUsage);
    const std::int64_t invalid = data::find_invalid_utf8(arguments.options.prompt);
    if (invalid >= 0) {
      fail(ErrorKind::kUsage, fmt::format("--prompt is not UTF-8 at byte {}", invalid));
    }
    const std::int64_t reserved = data::find_reserved_character(arguments.options.prompt);
    if (reserved >= 0) {
      fail(
          ErrorKind::kUsage,
          fmt::format("--prompt holds U+2581, which the tokenizer reserves, at byte {}", reserved));
    }
  });
  const std::string text =
      sample_text(*run.runtime, *run.model, *run.store, *tokenizer, arguments.options);
  if (world.rank() == 0) fmt::print("{}\n", text);
}

}  // namespace

Command add_sample(CLI::App& root) {
  auto arguments = std::make_shared<SampleArguments>();
  SampleOptions& options = arguments->options;
  CLI::App* app = root.add_subcommand("sample", "text from a checkpoint");
  app->add_option("RUN", arguments->path, "run directory or checkpoint folder")->required();
  app->add_option("--checkpoint", arguments->which, "of a run: best | latest | step:N")
      ->default_str("best");
  app->add_option("--prompt", options.prompt, "text to go on from");
  app->add_option("--tokens", options.tokens, "tokens to add")
      ->transform(integer_option(0, 1'000'000'000))
      ->capture_default_str();
  app->add_option("--temperature", options.temperature, "0: the most probable token")
      ->transform(number_option({}))
      ->capture_default_str();
  app->add_option("--top-k", options.top_k, "draw among this many; 0: all")
      ->transform(integer_option(0))
      ->capture_default_str();
  app->add_option("--seed", options.seed, "seed")
      ->transform(integer_option(0))
      ->capture_default_str();
  app->add_option("--tokenizer", arguments->tokenizer, "instead of the corpus's own");
  return {app, Needs::kWorld,
          [arguments](const CommandContext& context) { run_sample(*arguments, context); }};
}

}  // namespace k25::trainer
