#include <fmt/format.h>

#include <memory>

#include "data/corpus/corpus.h"
#include "parallel/comm/agree.h"
#include "trainer/cli/commands.h"
#include "trainer/cli/options.h"
#include "trainer/sample/sample.h"
#include "trainer/train/load_run.h"

namespace k25::trainer {
namespace {

struct SampleArguments {
  std::string path, which = "best", tokenizer;
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

void run_sample(const SampleArguments& arguments, const CommandContext& context) {
  parallel::World& world = *context.world;
  require_path(world.comm(), arguments.path);
  if (!arguments.tokenizer.empty()) require_path(world.comm(), arguments.tokenizer);
  LoadedRun run = load_run(world, arguments.path, arguments.which, {}, 1);
  std::unique_ptr<data::Tokenizer> tokenizer;
  parallel::collectively(world.comm(), "tokenizer", [&] {
    const std::filesystem::path model =
        arguments.tokenizer.empty()
            ? std::filesystem::path(run.parsed.config.data.train).parent_path() / "tokenizer.model"
            : std::filesystem::path(arguments.tokenizer);
    tokenizer = open_tokenizer(model);
    if (tokenizer->vocab() > run.parsed.config.model.vocab) {
      fail(ErrorKind::kData, fmt::format("{}: a vocabulary of {}, the model has {}", model.string(),
                                         tokenizer->vocab(), run.parsed.config.model.vocab));
    }
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
  app->add_option("--checkpoint", arguments->which, "best | latest | step:N")
      ->capture_default_str();
  app->add_option("--prompt", options.prompt, "text to go on from");
  app->add_option("--tokens", options.tokens, "tokens to add")
      ->check(integer_option(0, 1'000'000'000))
      ->capture_default_str();
  app->add_option("--temperature", options.temperature, "0: the most probable token")
      ->check(number_option({}))
      ->capture_default_str();
  app->add_option("--top-k", options.top_k, "draw among this many; 0: all")
      ->check(integer_option(0))
      ->capture_default_str();
  app->add_option("--seed", options.seed, "seed")->check(integer_option(0))->capture_default_str();
  app->add_option("--tokenizer", arguments->tokenizer, "instead of the corpus's own");
  return {app, Needs::kWorld,
          [arguments](const CommandContext& context) { run_sample(*arguments, context); }};
}

}  // namespace k25::trainer
