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
#include "trainer/config/parse.h"
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

std::string suggest(const std::string& near) {
  return near.empty() ? "" : " (did you mean '" + near + "'?)";
}

// Goes through the words as CLI11 does, which tells what it cannot place from behind, all at once,
// and only that a subcommand is required when the first word is none.
class CommandLine {
 public:
  explicit CommandLine(const CLI::App& app) : level_(&app) {}

  /// What the first word that belongs nowhere is; "" when all have a place.
  std::string problem_of(Arguments arguments) {
    bool options_end = false;
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const std::string word = arguments[i];
      std::string told;
      if (word == "--") {
        options_end = true;
      } else if (!options_end && word.size() > 1 && word.starts_with('-')) {
        const std::size_t equals = word.find('=');
        const std::string name = word.substr(0, equals);
        const CLI::Option* option = level_->get_option_no_throw(name);
        if (option == nullptr) {
          told = fmt::format("unknown option '{}' of {}{}", printable_start(name), command(),
                             suggestion(name));
        } else if (equals == std::string::npos && option->get_items_expected_min() > 0) {
          ++i;  // its value, whatever it looks like
          while (option->get_allow_extra_args() && i + 1 < arguments.size() &&
                 arguments[i + 1][0] != '-') {
            ++i;
          }
        }
      } else {
        told = problem_of_word(word);
      }
      if (!told.empty()) return told;
    }
    return "";
  }
  const CLI::App& level() const { return *level_; }

 private:
  std::string command() const {
    std::string text = level_->get_name();
    for (const CLI::App* app = level_->get_parent(); app != nullptr; app = app->get_parent()) {
      text = app->get_name() + " " + text;
    }
    return text;
  }
  bool takes_settings() const { return level_->get_option_no_throw("--set") != nullptr; }

  std::string suggestion(const std::string& option) const {
    const std::string word = option.substr(std::min(option.find_first_not_of('-'), option.size()));
    if (takes_settings()) {
      for (const KeyInfo& key : config_keys()) {
        const std::vector<std::string> parts = split_path(key.path);
        if (key.path != word && parts.back() != word) continue;
        return fmt::format(" (did you mean '--set {}=...'?)", key.path);
      }
    }
    std::vector<std::string> names;
    for (const CLI::Option* known : level_->get_options()) {
      names.insert(names.end(), known->get_lnames().begin(), known->get_lnames().end());
    }
    const std::string near = nearest(word, names);
    return suggest(near.empty() ? near : "--" + near);
  }

  std::string problem_of_word(const std::string& word) {
    std::vector<std::string> names;
    for (const CLI::App* sub : level_->get_subcommands(nullptr)) {
      names.push_back(sub->get_name());
      if (names.back() != word) continue;
      level_ = sub;
      return "";
    }
    if (!names.empty()) {
      return fmt::format("unknown command '{}'{}", word, suggest(nearest(word, names)));
    }
    std::int64_t places = 0;
    for (const CLI::Option* option : level_->get_options()) {
      if (option->get_positional()) places += option->get_items_expected_max();
    }
    if (++words_ <= places) return "";
    const bool setting = takes_settings() && word.find('=') != std::string::npos;
    return fmt::format("'{}' is one argument more than {} takes{}", printable_start(word),
                       command(), setting ? "; write --set " + printable_start(word) : "");
  }

  const CLI::App* level_;
  std::int64_t words_ = 0;  // without options, of this level
};

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

std::string command_line_problem(const CLI::App& app, const CLI::ParseError& error,
                                 Arguments arguments) {
  CommandLine line(app);
  if (std::string told = line.problem_of(arguments); !told.empty()) return told;
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    if (std::string told = wrong_count(line.level()); !told.empty()) return told;
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
