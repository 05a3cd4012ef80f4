#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "parallel/comm/agree.h"
#include "trainer/cli/commands.h"
#include "trainer/config/parse.h"
#include "trainer/config/read_values.h"
#include "trainer/train/train.h"

namespace k25::trainer {
namespace {

struct TrainArguments {
  std::string config;
  std::vector<std::string> overrides;
  std::string resume, log_format;
};

void run_train(const TrainArguments& arguments, const CommandContext& context) {
  parallel::World& world = *context.world;
  std::vector<std::string> overrides = arguments.overrides;
  // Quoted: what YAML would read as more than text, such as "runs/a #1", is a path here.
  const auto override_text = [&](const std::string& key, const char* option,
                                 const std::string& value) {
    if (value.empty()) return;
    for (const std::string& text : arguments.overrides) {
      if (!text.starts_with(key + "=")) continue;
      fail(ErrorKind::kUsage,
           fmt::format("{} {} and --set {} say the same key; give one", option, value, text));
    }
    overrides.push_back(key + "=" + yaml_text(value));
  };
  override_text("train.resume", "--resume", arguments.resume);
  override_text("log.format", "--log-format", arguments.log_format);
  // Rank 0 reads the file, so that all ranks train the same configuration.
  const std::string text = parallel::from_rank0(world.comm(), "config",
                                                [&] { return read_config_file(arguments.config); });
  ParsedConfig parsed;
  parallel::collectively(world.comm(), "config", [&] {
    parsed = parse_config(text, arguments.config, overrides, world.size());
  });
  world.configure(parsed.config.comm);
  train(world, parsed, *context.save_and_stop);
}

}  // namespace

Command add_train(CLI::App& root) {
  auto arguments = std::make_shared<TrainArguments>();
  CLI::App* app = root.add_subcommand("train", "train from a config into a run directory");
  app->add_option("CONFIG", arguments->config, "YAML file")->required();
  app->add_option("--set", arguments->overrides, "override one key: a.b=value (repeatable)")
      ->take_all()
      ->allow_extra_args(false);
  app->add_option("--resume", arguments->resume, "auto | none | PATH | step:N");
  app->add_option("--log-format", arguments->log_format, "text | json");
  return {app, Needs::kWorld,
          [arguments](const CommandContext& context) { run_train(*arguments, context); }};
}

}  // namespace k25::trainer
