#include <fmt/format.h>

#include <fstream>
#include <memory>
#include <string>

#include "data/corpus/corpus.h"
#include "data/io/atomic_file.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/files.h"
#include "trainer/checkpoint/step_folder.h"
#include "trainer/cli/commands.h"
#include "trainer/cli/options.h"
#include "trainer/train/load_run.h"

namespace k25::trainer {
namespace {

namespace fs = std::filesystem;

struct InspectArguments {
  std::string path, which;
  bool hash = false, config = false;
};

// The options choose from a run and its checkpoints.
void refuse_options_of_runs(const InspectArguments& arguments) {
  const char* given = !arguments.which.empty() ? "--checkpoint"
                      : arguments.hash         ? "--hash"
                      : arguments.config       ? "--config"
                                               : nullptr;
  if (given == nullptr) return;
  fail(ErrorKind::kUsage, fmt::format("{}: '{}' is a corpus, and this option is for runs and "
                                      "checkpoints; leave it out",
                                      given, arguments.path));
}

// A parser of JSON has nothing to say to people about such a file.
void require_text(const fs::path& file) {
  char start[512] = {};
  std::ifstream in(file, std::ios::binary);
  in.read(start, sizeof start);
  const std::string bytes(start, static_cast<std::size_t>(in.gcount()));
  if (bytes.find('\0') == std::string::npos) return;
  const bool h5 = bytes.starts_with("\x89HDF");
  fail(ErrorKind::kData,
       fmt::format("{}: {}, and no manifest of a corpus; give the folder that it lies in",
                   file.string(), h5 ? "an HDF5 file" : "a binary file"));
}

void print_corpus(const InspectArguments& arguments, const fs::path& manifest) {
  refuse_options_of_runs(arguments);
  const data::Corpus corpus(manifest);
  const data::CorpusInfo& info = corpus.info();
  fmt::print(
      "corpus {}\n  tokens {}\n  vocabulary {}\n  documents {}\n  spans {}\n  clauses {}\n"
      "  digest {}\n",
      manifest.string(), info.tokens, info.vocab, corpus.documents().size(), corpus.spans().size(),
      corpus.clauses().size(), info.digest);
  for (std::size_t d = 0; d < info.domains.size(); ++d) {
    std::int64_t documents = 0, tokens = 0;
    for (const data::Document& document : corpus.documents()) {
      if (document.domain != static_cast<std::int32_t>(d)) continue;
      ++documents;
      tokens += document.token_end - document.token_begin;
    }
    fmt::print("  domain {}: {} documents, {} tokens\n", info.domains[d], documents, tokens);
  }
}

std::string describe_checkpoint(const fs::path& folder, const InspectArguments& arguments) {
  verify_checkpoint(folder);
  const CheckpointInfo info = read_checkpoint_info(folder);
  const TrainState& s = info.state;
  std::string text = fmt::format(
      "checkpoint {} (verified)\n  step {}\n  updates {}\n  label tokens {}\n  samples {}\n"
      "  skipped {}  empty {}\n  files {}\n  parameters {}\n  bytes {}\n  best step {}{}\n"
      "  seed {}  reduce.slots {}\n  corpus {}\n  fingerprint {}\n",
      folder.string(), s.step, s.policy.updates, s.label_tokens, s.mixture.next_sample,
      s.policy.skipped, s.policy.empty, info.ranks, info.parameters, info.bytes,
      s.best_step < 0 ? "none" : std::to_string(s.best_step),
      s.best_step < 0 ? "" : fmt::format(" (validation loss {:.4f})", s.best_loss), s.seed, s.slots,
      s.corpus_digest, s.fingerprint);
  if (arguments.hash) text += fmt::format("  hash {}\n", state_digest_of_files(folder));
  if (arguments.config) {
    stored_config(info);  // or it is no configuration
    text += info.config;
  }
  return text;
}

bool is_gone(const fs::path& folder) {
  std::error_code error;
  return !fs::exists(folder, error);
}

// A run that goes on may remove the checkpoint while it is read: then the one that replaced it is
// shown.
void print_checkpoint(const fs::path& path, const InspectArguments& arguments) {
  constexpr int kTries = 20;
  for (int i = 1;; ++i) {
    const fs::path folder = find_checkpoint(path, arguments.which, "latest");
    try {
      fmt::print("{}", describe_checkpoint(folder, arguments));
      return;
    } catch (const Error& error) {
      if (!is_gone(folder)) {
        fail(error.kind(), error.what() + other_steps_text(folder, "--checkpoint"));
      }
      if (i == kTries) throw;
    }
  }
}

void print_run(const fs::path& run_dir) {
  for (const StepFolder& step : step_folders(run_dir)) {
    std::string verdict = "valid";
    try {
      verify_checkpoint(step.path);
    } catch (const Error& error) {
      if (is_gone(step.path)) continue;
      verdict = std::string("broken: ") + error.what();
    }
    fmt::print("  step {}: {}\n", step.step, verdict);
  }
}

// By the files beside the manifest, or what it says of itself: a damaged corpus is reported as one.
bool is_corpus(const fs::path& folder) {
  const fs::path manifest = folder / "manifest.json";
  const bool single = type_at(manifest) == fs::file_type::regular;
  if (!single && is_there(folder / "checkpoints")) return false;
  if (is_there(folder / "tokenizer.model") || is_there(folder / "tokens-00000.h5")) return true;
  return single &&
         data::read_file(manifest, ErrorKind::kData).find("\"k25-corpus\"") != std::string::npos;
}

void run_inspect(const InspectArguments& arguments) {
  const fs::path path = arguments.path;
  require_path(arguments.path);
  if (is_step_name(path.filename().string())) require_checkpoint_folder(path);
  if (type_at(path) == fs::file_type::regular) {
    require_text(path);
    return print_corpus(arguments, path);
  }
  if (is_corpus(path)) return print_corpus(arguments, path / "manifest.json");
  print_checkpoint(path, arguments);
  if (is_folder(path / "checkpoints")) print_run(path);
}

}  // namespace

Command add_inspect(CLI::App& root) {
  auto arguments = std::make_shared<InspectArguments>();
  CLI::App* app =
      root.add_subcommand("inspect", "what a corpus, a run or a checkpoint holds; verifies it");
  app->add_option("PATH", arguments->path, "corpus, run directory or checkpoint folder")
      ->required();
  app->add_option("--checkpoint", arguments->which, "of a run: latest | best | step:N")
      ->default_str("latest");
  app->add_flag("--hash", arguments->hash,
                "digest of parameters and moments, the same for every rank count");
  app->add_flag("--config", arguments->config, "print the configuration stored in the checkpoint");
  return {app, Needs::kNothing, [arguments](const CommandContext&) { run_inspect(*arguments); }};
}

}  // namespace k25::trainer
