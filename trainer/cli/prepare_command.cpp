#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <system_error>
#include <utility>

#include "data/prepare/prepare.h"
#include "data/tokenizer/tokenizer.h"
#include "kernels/core/check.h"
#include "trainer/cli/commands.h"
#include "trainer/cli/options.h"

namespace k25::trainer {
namespace {

void require_vocab(const std::filesystem::path& tokenizer, std::int64_t wanted) {
  const std::int64_t vocab = data::Tokenizer(tokenizer).vocab();
  if (vocab == wanted) return;
  fail(
      ErrorKind::kUsage,
      fmt::format("--vocab {}: --tokenizer {} has {}; --vocab is for a new tokenizer, leave it out",
                  wanted, tokenizer.string(), vocab));
}

void print_report(const data::PrepareOptions& options, const data::PrepareReport& report) {
  for (const std::string& line : report.warnings) fmt::print(stderr, "k25: warning: {}\n", line);
  fmt::print(
      "prepared {}: {} files, {} links and {} hidden names skipped, {} documents, {} exact "
      "duplicates, {} near-duplicates, {} dropped, {} bytes of text, {} tokens\n",
      options.out.string(), report.files, report.links_skipped, report.hidden_skipped,
      report.documents, report.exact_duplicates, report.near_duplicates, report.dropped,
      report.bytes, report.tokens);
  for (const std::string& line : report.notes) fmt::print("  {}\n", line);
}

void run_prepare(const data::PrepareOptions& arguments, SignalWatcher& signals) {
  data::PrepareOptions options = arguments;
  options.when_stopped = [&](std::function<void()> discard) {
    signals.on_stop(std::move(discard));
  };
  const data::PrepareReport report = data::prepare(options);
  try {
    print_report(options, report);
    if (std::fflush(stdout) == 0) return;
  } catch (const std::system_error&) {  // of fmt::print
  }
  fail(ErrorKind::kCheckpoint, fmt::format("standard output cannot be written: {}; the corpus {} "
                                           "is made and complete, only the report is lost",
                                           std::strerror(errno), options.out.string()));
}

}  // namespace

Command add_prepare(CLI::App& root) {
  auto options = std::make_shared<data::PrepareOptions>();
  CLI::App* app = root.add_subcommand("prepare", "documents -> corpus; each DIR is a domain");
  app->add_option("DIR", options->folders, "folders of text, Markdown and JSON lines")->required();
  app->add_option("--out", options->out, "corpus folder to create")->required();
  const CLI::Option* vocab =
      app->add_option("--vocab", options->vocab, "vocabulary of a new tokenizer")
          ->transform(integer_option(258, std::numeric_limits<std::int32_t>::max()))
          ->capture_default_str();
  app->add_option("--tokenizer", options->tokenizer, "reuse this tokenizer model");
  app->add_option("--containment", options->containment,
                  "share of a document's shingles from which it is a near-duplicate")
      ->transform(number_option({0.0, 1.0, Bound::kExclusive}))
      ->capture_default_str();
  app->add_option("--max-file-tokens", options->max_file_tokens, "start a new file beyond")
      ->transform(integer_option(1))
      ->capture_default_str();
  auto* keep = app->add_flag_callback(
      "--keep-duplicates", [options] { options->duplicates = data::Duplicates::kKeep; },
      "keep exact duplicates too");
  app->add_flag_callback(
         "--drop-near-duplicates", [options] { options->duplicates = data::Duplicates::kDropNear; },
         "drop near-duplicates too")
      ->excludes(keep);
  return {app, Needs::kNothing, [options, vocab](const CommandContext& context) {
            if (vocab->count() > 0 && !options->tokenizer.empty()) {
              require_path(options->tokenizer);
              require_vocab(options->tokenizer, options->vocab);
            }
            run_prepare(*options, *context.signals);
          }};
}

}  // namespace k25::trainer
