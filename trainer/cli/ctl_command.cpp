// `k25 ctl RUN COMMAND`: what a live run is asked to do from outside. A command is a row of
// kCommands: its name, its help, and what to do with a run directory.

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "data/io/atomic_file.h"
#include "trainer/checkpoint/files.h"
#include "trainer/cli/commands.h"
#include "trainer/cli/options.h"
#include "trainer/watch/control.h"

namespace k25::trainer {
namespace {

namespace fs = std::filesystem;

struct CtlArguments {
  std::string run, command;
  double timeout = 10.0;
};

// The file says "pid P on host H since ..."; what is not on this host cannot be looked at.
void require_live(const fs::path& run) {
  if (!is_folder(run) || !is_there(run / "lock")) {
    fail(ErrorKind::kCheckpoint, run.string() + ": no run directory (it holds no lock file)");
  }
  const std::string owner = data::read_file(run / "lock", ErrorKind::kCheckpoint, Bytes{4096});
  long pid = 0;
  char host[128] = "", here[128] = "";
  if (std::sscanf(owner.c_str(), "pid %ld on host %127s", &pid, &host[0]) != 2) return;
  gethostname(&here[0], sizeof here - 1);
  if (std::string(&host[0]) != &here[0]) return;
  if (kill(static_cast<pid_t>(pid), 0) == 0 || errno != ESRCH) return;
  fail(ErrorKind::kCheckpoint,
       fmt::format("{}: no run is alive there; the last one was {}", run.string(), owner));
}

std::string missing_ranks(const DumpAnswers& answers) {
  std::string text;
  for (int rank = 0; rank < answers.ranks; ++rank) {
    if (std::ranges::binary_search(answers.answered, rank)) continue;
    text += (text.empty() ? "" : ", ") + std::to_string(rank);
  }
  return text;
}

void dump(const CtlArguments& arguments, SignalWatcher& signals) {
  const fs::path run = arguments.run;
  const std::string id = post_command(run, "dump");
  signals.on_stop([run, id] { remove_command(run, id); });
  const Stopwatch watch;
  DumpAnswers answers;
  do {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    answers = dump_answers(run, id);
  } while ((answers.ranks == 0 || static_cast<int>(answers.answered.size()) < answers.ranks) &&
           watch.seconds() < arguments.timeout);
  signals.on_stop({});
  remove_command(run, id);
  if (answers.ranks == 0) {
    fail(ErrorKind::kCommunication,
         fmt::format("{}: no rank answered within {} s; the run is over, it has not begun, or its "
                     "processes are stopped (--timeout waits longer)",
                     run.string(), arguments.timeout));
  }
  fmt::print("{} of {} ranks wrote their last collectives: {}\n", answers.answered.size(),
             answers.ranks, (run / "dumps").string());
  if (const std::string missing = missing_ranks(answers); !missing.empty()) {
    fmt::print("no answer within {} s from rank {}: stopped, lost, or cut off from the directory\n",
               arguments.timeout, missing);
  }
}

struct CtlCommand {
  const char* name;
  const char* help;
  void (*run)(const CtlArguments&, SignalWatcher&);
};
constexpr CtlCommand kCommands[] = {
    {"dump", "every rank writes its last collectives, also while the run hangs", dump},
};

std::string names_and_help() {
  std::string text;
  for (const CtlCommand& command : kCommands) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", command.name, command.help);
  }
  return text;
}

std::string problem_of_command(const std::string& name) {
  std::string names;
  for (const CtlCommand& command : kCommands) {
    if (name == command.name) return "";
    names += (names.empty() ? "" : ", ") + std::string(command.name);
  }
  return "unknown command '" + name + "'; there is " + names;
}

}  // namespace

Command add_ctl(CLI::App& root) {
  auto arguments = std::make_shared<CtlArguments>();
  CLI::App* app = root.add_subcommand("ctl", "asks a live run for something");
  app->add_option("RUN", arguments->run, "run directory")->required();
  app->add_option("COMMAND", arguments->command, names_and_help())
      ->required()
      ->check(CLI::Validator([](std::string& name) { return problem_of_command(name); }, ""));
  app->add_option("--timeout", arguments->timeout, "seconds to wait for answers")
      ->check(number_option({0.1, 1e6}))
      ->capture_default_str();
  return {app, Needs::kNothing, [arguments](const CommandContext& context) {
            require_path(arguments->run);
            require_live(arguments->run);
            for (const CtlCommand& command : kCommands) {
              if (arguments->command == command.name) command.run(*arguments, *context.signals);
            }
          }};
}

}  // namespace k25::trainer
