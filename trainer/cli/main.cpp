// The k25 program: parses the command line, builds the world, runs one command, maps errors to exit
// codes. This is the only catch.

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

#include "parallel/comm/agree.h"
#include "trainer/cli/commands.h"
#include "trainer/cli/signals.h"
#include "trainer/config/yaml_tree.h"

namespace {

using k25::Error;
using k25::ErrorKind;
using k25::parallel::AgreedError;
using k25::parallel::World;

constexpr const char* kVersion = "0.1.0";

// Known before MPI is: so that a bad command line is reported once, by rank 0.
bool is_first_process() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    if (const char* value = std::getenv(name)) return std::atoi(value) == 0;
  }
  return true;
}

// A file opened in the place of a closed standard stream would receive what is printed.
void open_standard_streams() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (fcntl(fd, F_GETFD) != -1) continue;
    if (open("/dev/null", O_RDWR) < 0) _exit(static_cast<int>(ErrorKind::kInternal));
  }
}

Error as_error(const std::exception& error) {
  const auto* system = dynamic_cast<const std::system_error*>(&error);
  if (system != nullptr && std::ferror(stdout) != 0) {
    return {ErrorKind::kCheckpoint,
            "standard output cannot be written: " + system->code().message()};
  }
  return {ErrorKind::kInternal, error.what()};
}

void print_error(const Error& error) {
  fmt::print(stderr, "k25: error: {}\n", error.what());
  if (error.kind() == ErrorKind::kInternal) {
    fmt::print(stderr, "k25: this is a bug of k25 ({}:{}), please report it\n",
               error.where().file_name(), error.where().line());
  }
}

// An error that ranks do not share may still strike several at once (all of them, when it lies in
// the model): the lowest one speaks, the others see in their turn that a peer has failed.
bool somebody_else_speaks(World& world) {
  constexpr int kMostTurns = 20;
  for (int turn = 0; turn < std::min(world.rank(), kMostTurns) && !world.peer_failed(); ++turn) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return world.peer_failed();
}

int end_with(World& world, k25::trainer::SignalWatcher& signals, const Error& error) {
  signals.leave(error.exit_code());
  if (dynamic_cast<const AgreedError*>(&error) != nullptr) {
    if (world.rank() == 0) print_error(error);
    world.finish();
    return error.exit_code();
  }
  if (!somebody_else_speaks(world)) print_error(error);
  std::fflush(nullptr);
  world.abort(error.exit_code());
  return error.exit_code();  // abort does not return
}

int run_with_world(const k25::trainer::Command& command) {
  const std::unique_ptr<World> world = World::create({});
  k25::trainer::SignalWatcher signals(world.get());
  try {
    command.run({world.get(), &signals.save_and_stop(), &signals});
    world->finish();
    return 0;
  } catch (const Error& error) {
    return end_with(*world, signals, error);
  } catch (const std::exception& error) {
    return end_with(*world, signals, as_error(error));
  }
}

int run_alone(const k25::trainer::Command& command) {
  if (!is_first_process()) return 0;  // under mpirun, one process does the work
  k25::trainer::SignalWatcher signals(nullptr);
  command.run({nullptr, &signals.save_and_stop(), &signals});
  return 0;
}

// CLI11 only says how many values it wants and how many it got.
std::string wrong_count(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_items_expected_max() == 1 && option->count() > 1) {
      return fmt::format("{} is given {} times: give it once", option->get_name(), option->count());
    }
  }
  return "";
}

// CLI11 only says that a subcommand is required when the first word is none.
std::string command_line_problem(const CLI::App& app, const CLI::ParseError& error, int argc,
                                 char** argv) {
  const CLI::App* level = &app;
  for (int i = 1; i < argc; ++i) {
    const CLI::App* next = nullptr;
    std::vector<std::string> names;
    for (const CLI::App* command : level->get_subcommands(nullptr)) {
      names.push_back(command->get_name());
      if (names.back() == argv[i]) next = command;
    }
    if (names.empty() || argv[i][0] == '-') break;
    if (next != nullptr) {
      level = next;
      continue;
    }
    const std::string near = k25::trainer::nearest(argv[i], names);
    return fmt::format("unknown command '{}'{}", argv[i],
                       near.empty() ? "" : " (did you mean '" + near + "'?)");
  }
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    if (const std::string told = wrong_count(*level); !told.empty()) return told;
  }
  return error.what();
}

int parse_and_run(int argc, char** argv) {
  CLI::App app("Trains Kimi-style language models on MPI clusters.", "k25");
  app.set_version_flag("--version", std::string("k25 ") + kVersion);
  app.require_subcommand(1);
  using namespace k25::trainer;  // NOLINT(google-build-using-namespace)
  const std::vector<Command> commands = {add_prepare(app), add_train(app),  add_eval(app),
                                         add_sample(app),  add_config(app), add_inspect(app),
                                         add_bench(app)};
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // --help, --version
      return is_first_process() ? app.exit(error) : 0;
    }
    if (is_first_process()) {
      fmt::print(stderr, "k25: error: {}; see 'k25 --help' or 'k25 COMMAND --help'\n",
                 command_line_problem(app, error, argc, argv));
    } else {  // mpirun ends the job with its first failed process: rank 0 must have spoken by then
      std::this_thread::sleep_for(std::chrono::seconds(1));
    }
    return static_cast<int>(ErrorKind::kUsage);
  }
  for (const Command& command : commands) {
    if (!command.app->parsed()) continue;
    return command.needs == Needs::kWorld ? run_with_world(command) : run_alone(command);
  }
  return static_cast<int>(ErrorKind::kUsage);
}

}  // namespace

int main(int argc, char** argv) {
  open_standard_streams();
  k25::trainer::block_signals();
  int code = static_cast<int>(ErrorKind::kInternal);
  try {
    code = parse_and_run(argc, argv);
  } catch (const Error& error) {
    print_error(error);
    code = error.exit_code();
  } catch (const std::exception& error) {
    const Error known = as_error(error);
    print_error(known);
    code = known.exit_code();
  }
  // A full disk or a closed pipe shows only when the last bytes leave.
  if (std::fflush(stdout) != 0 && code == 0) {
    fmt::print(stderr, "k25: error: standard output cannot be written: {}\n", std::strerror(errno));
    code = static_cast<int>(ErrorKind::kCheckpoint);
  }
  return code;
}
