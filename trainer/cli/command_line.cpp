#include "trainer/cli/command_line.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <sstream>
#include <string_view>
#include <vector>

#include "parallel/comm/agree.h"
#include "trainer/config/printable.h"
#include "trainer/config/yaml_tree.h"

namespace k25::trainer {
namespace {

// CLI11 only says how many values it wants and how many it got.
std::string wrong_count(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_items_expected_max() == 1 && option->count() > 1) {
      return fmt::format("{} is given {} times: give it once", option->get_name(), option->count());
    }
  }
  return "";
}

// Whether the launcher began to end this process before `milliseconds` were over: mpirun sends
// SIGCONT at once, then SIGTERM, which is blocked since main began, a second later.
bool is_ended_within(int milliseconds) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGCONT, SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, signal);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  const timespec patience{milliseconds / 1000, (milliseconds % 1000) * 1'000'000L};
  return sigtimedwait(&set, nullptr, &patience) > 0;
}

// From one place on, with the option that a value belongs to.
std::string rest(const std::vector<std::string>& arguments, std::size_t from) {
  if (from > 0 && arguments[from - 1].starts_with("--")) --from;
  std::string text;
  for (std::size_t i = from; i < arguments.size(); ++i) {
    text += (text.empty() ? "" : " ") + arguments[i];
  }
  return text.empty() ? "nothing more" : "'" + printable_start(text) + "'";
}

// Arguments hold no NUL, so it separates them.
std::string joined(Arguments arguments) {
  std::string text;
  for (const char* argument : arguments) (text += argument) += '\0';
  return text;
}

std::vector<std::string> separated(const std::string& text) {
  std::vector<std::string> arguments;
  std::istringstream in(text);
  for (std::string argument; std::getline(in, argument, '\0');) arguments.push_back(argument);
  return arguments;
}

}  // namespace

bool is_first_process() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    if (const char* value = std::getenv(name)) return std::atoi(value) == 0;
  }
  return true;
}

std::string problem_of_empty_arguments(Arguments arguments) {
  std::string_view before = "k25";
  for (const std::string_view argument : arguments) {
    const std::size_t equals = argument.find('=');
    if (argument.starts_with("--") && equals + 1 == argument.size()) {
      return fmt::format("{} is empty; give a value, or leave it out", argument);
    }
    if (argument.empty() && before.starts_with("--")) {
      return fmt::format("the value of {} is empty; give one, or leave the option out", before);
    }
    if (argument.empty()) return fmt::format("the argument behind '{}' is empty", before);
    before = argument;
  }
  return "";
}

// CLI11 only says that a subcommand is required when the first word is none.
std::string command_line_problem(const CLI::App& app, const CLI::ParseError& error,
                                 Arguments arguments) {
  const CLI::App* level = &app;
  for (const char* argument : arguments) {
    const CLI::App* next = nullptr;
    std::vector<std::string> names;
    for (const CLI::App* command : level->get_subcommands(nullptr)) {
      names.push_back(command->get_name());
      if (names.back() == argument) next = command;
    }
    if (names.empty() || argument[0] == '-') break;
    if (next != nullptr) {
      level = next;
      continue;
    }
    const std::string near = nearest(argument, names);
    return fmt::format("unknown command '{}'{}", argument,
                       near.empty() ? "" : " (did you mean '" + near + "'?)");
  }
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    if (const std::string told = wrong_count(*level); !told.empty()) return told;
  }
  return error.what();
}

std::string problem_of_several_programs() {
  const char* programs = std::getenv("OMPI_NUM_APP_CTX");
  if (programs == nullptr || std::atoi(programs) < 2) return "";
  return fmt::format(
      "one of the {} programs of this mpirun does not communicate, so the others would wait for it "
      "in vain; start it alone",
      programs);
}

void tell_usage_error(const std::string& message) {
  if (!is_first_process()) {
    const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
    // Other launchers need not end a job whose process failed: there all ranks would speak.
    if (rank == nullptr) return;
    // The lowest rank that has an error alone speaks; the launcher needs a moment to tell the rest.
    if (is_ended_within(2500 + 1500 * std::min(std::atoi(rank) - 1, 4))) return;
  }
  fmt::print(stderr, "k25: error: {}; see 'k25 --help' or 'k25 COMMAND --help'\n",
             printable(message));
}

void require_same_command_line(parallel::Communicator& comm, Arguments arguments) {
  const std::string mine = joined(arguments);
  const std::string first = parallel::from_rank0(comm, "command line", [&] { return mine; });
  parallel::collectively(comm, "command line", [&] {
    if (mine == first) return;
    const std::vector<std::string> here = separated(mine), there = separated(first);
    const auto [a, b] = std::ranges::mismatch(here, there);
    const auto from = static_cast<std::size_t>(a - here.begin());
    fail(ErrorKind::kUsage,
         fmt::format("its command line is not that of rank 0: {} here, {} there; start all ranks "
                     "with the same one",
                     rest(here, from), rest(there, from)));
  });
}

}  // namespace k25::trainer
