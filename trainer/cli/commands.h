#pragma once
// The subcommands of k25. Each declares its options on a CLI11 subcommand and returns what to run;
// main runs it with a world when it communicates, without one otherwise.

#include <CLI/CLI.hpp>
#include <atomic>
#include <functional>

#include "parallel/comm/world.h"
#include "trainer/cli/signals.h"

namespace k25::trainer {

struct CommandContext {
  parallel::World* world = nullptr;  ///< null for commands that do not communicate
  const std::atomic<bool>* save_and_stop = nullptr;
  SignalWatcher* signals = nullptr;
};

enum class Needs : std::uint8_t { kNothing, kWorld };

struct Command {
  CLI::App* app = nullptr;  ///< parsed() tells whether it was chosen
  Needs needs = Needs::kNothing;
  std::function<void(const CommandContext&)> run;  ///< throws Error
};

Command add_prepare(CLI::App& root);
Command add_train(CLI::App& root);
Command add_eval(CLI::App& root);
Command add_sample(CLI::App& root);
Command add_config(CLI::App& root);
Command add_inspect(CLI::App& root);
Command add_bench(CLI::App& root);
Command add_plan(CLI::App& root);
Command add_doctor(CLI::App& root);
Command add_ctl(CLI::App& root);

}  // namespace k25::trainer
