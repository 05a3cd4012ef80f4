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
  std::string resume, log_format, profile_text;
  ProfileSteps profile;
  bool profile_memory = false;
};

void require_within(const ProfileSteps& profile, const TrainConfig& train) {
  if (profile.last <= train.steps) return;
  fail(ErrorKind::kUsage, fmt::format("--profile {}:{}: the run has {} steps (train.steps)",
                                      profile.first, profile.last, train.steps));
}

CLI::Validator profile_option(ProfileSteps& steps) {
  return {[&steps](std::string& text) { return read_profile_steps(text, steps); }, ""};
}

void run_train(const TrainArguments& arguments, const CommandContext& context) {
  parallel::World& world = *context.world;
  std::vector<std::string> overrides = arguments.overrides;
  OptionPlaces places;
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
    places[overrides.back()] = fmt::format("{} {}", option, value);
  };
  override_text("train.resume", "--resume", arguments.resume);
  override_text("log.format", "--log-format", arguments.log_format);
  // Rank 0 reads the file, so that all ranks train the same configuration.
  const std::string text = parallel::from_rank0(world.comm(), "config",
                                                [&] { return read_config_file(arguments.config); });
  ParsedConfig parsed;
  parallel::collectively(world.comm(), "config", [&] {
    parsed = parse_config(text, arguments.config, overrides, world.size(), places);
    require_within(arguments.profile, parsed.config.train);
  });
  world.configure(parsed.config.comm);
  train(world, parsed, *context.save_and_stop,
        {.dumps = context.signals->dumps(),
         .profile = arguments.profile,
         .memory = arguments.profile_memory ? MemoryReport::kWrite : MemoryReport::kNone});
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
  app->add_option("--profile", arguments->profile_text,
                  "A:B: time steps A to B by phase and layer, into RUN/profile-A-B.json")
      ->check(profile_option(arguments->profile));
  app->add_flag("--profile-memory", arguments->profile_memory,
                "write every allocation, and the planned and measured peak, into RUN/memory.json");
  return {app, Needs::kWorld,
          [arguments](const CommandContext& context) { run_train(*arguments, context); }};
}

}  // namespace k25::trainer
