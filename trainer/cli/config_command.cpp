#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "trainer/cli/commands.h"
#include "trainer/cli/options.h"
#include "trainer/config/parse.h"

namespace k25::trainer {
namespace {

struct ConfigArguments {
  std::string config;
  std::vector<std::string> overrides;
  std::int64_t ranks = 1;
  bool keys = false;
};

void run_config(const ConfigArguments& arguments) {
  if (arguments.keys) {
    for (const KeyInfo& key : config_keys()) {
      fmt::print("{:<32} {:<28} {:<14} {}\n", key.path, key.type,
                 key.default_value.empty() ? "(required)" : key.default_value, key.help);
    }
    return;
  }
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
  app->add_option("CONFIG", arguments->config, "YAML file");
  app->add_option("--set", arguments->overrides, "override one key: a.b=value (repeatable)")
      ->allow_extra_args(false);
  app->add_option("--ranks", arguments->ranks, "resolve for this many ranks")
      ->transform(integer_option(1, kMaxRanks));
  app->add_flag("--keys", arguments->keys, "list every key with type, default and meaning");
  return {app, Needs::kNothing, [arguments](const CommandContext&) { run_config(*arguments); }};
}

}  // namespace k25::trainer
