#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "trainer/cli/commands.h"
#include "trainer/cli/options.h"
#include "trainer/config/deepspeed/import.h"
#include "trainer/config/deepspeed/keys.h"
#include "trainer/config/parse.h"

namespace k25::trainer {
namespace {

struct ConfigArguments {
  std::string config;
  std::vector<std::string> overrides;
  std::int64_t ranks = 1;
  std::string deepspeed;
  bool keys = false, deepspeed_keys = false;
};

void print_keys() {
  for (const KeyInfo& key : config_keys()) {
    fmt::print("{:<32} {:<28} {:<14} {}\n", key.path, key.type,
               key.default_value.empty() ? "(required)" : key.default_value, key.help);
  }
}

void print_deepspeed_keys() {
  for (const DsKey& key : deepspeed_keys()) {
    const bool mapped = key.row->fate == DsFate::kMapped;
    fmt::print("{:<60} {:<24} {}{}\n", key.path, fate_text(*key.row),
               mapped ? std::string(key.row->detail) + ": " : "", key.row->note);
  }
}

void import_config(const std::string& path) {
  const DeepSpeedImport result = import_deepspeed(read_config_file(path, "DeepSpeed config"), path);
  fmt::print("{}{}", result.report, result.yaml);
  if (!result.problems.empty()) fail_with(result.problems);
}

void run_config(const ConfigArguments& arguments) {
  if (arguments.keys) return print_keys();
  if (arguments.deepspeed_keys) return print_deepspeed_keys();
  if (!arguments.deepspeed.empty()) return import_config(arguments.deepspeed);
  if (arguments.config.empty()) {
    fail(ErrorKind::kUsage, "k25 config needs a CONFIG, or --keys for the list of all keys");
  }
  const ParsedConfig parsed = load_config(arguments.config, arguments.overrides, arguments.ranks);
  for (const std::string& warning : parsed.warnings) {
    fmt::print(stderr, "k25: warning: {}\n", warning);
  }
  fmt::print("{}", parsed.annotated);
}

}  // namespace

Command add_config(CLI::App& root) {
  auto arguments = std::make_shared<ConfigArguments>();
  CLI::App* app =
      root.add_subcommand("config", "print the resolved config and where each value came from");
  CLI::Option* config = app->add_option("CONFIG", arguments->config, "YAML file");
  CLI::Option* set =
      app->add_option("--set", arguments->overrides, "override one key: a.b=value (repeatable)")
          ->allow_extra_args(false);
  CLI::Option* ranks = app->add_option("--ranks", arguments->ranks, "resolve for this many ranks")
                           ->transform(integer_option(1, kMaxRanks));
  CLI::Option* keys =
      app->add_flag("--keys", arguments->keys, "list every key with type, default and meaning");
  CLI::Option* deepspeed_keys = app->add_flag("--ds-keys", arguments->deepspeed_keys,
                                              "list every key of DeepSpeed's and its fate");
  keys->excludes(config, set, ranks, deepspeed_keys);
  deepspeed_keys->excludes(config, set, ranks);
  app->add_option("--import-ds-config", arguments->deepspeed,
                  "print a DeepSpeed config (JSON) as keys of a CONFIG")
      ->excludes(config, set, ranks, keys, deepspeed_keys);
  return {app, Needs::kNothing, [arguments](const CommandContext&) { run_config(*arguments); }};
}

}  // namespace k25::trainer
