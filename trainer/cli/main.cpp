// The k25 program: parses the command line, builds the world, runs one command, maps errors to exit
// codes. This is the only catch.

#include <fcntl.h>
#include <fmt/format.h>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "kernels/core/buffer.h"
#include "parallel/comm/agree.h"
#include "trainer/cli/command_line.h"
#include "trainer/cli/commands.h"
#include "trainer/cli/signals.h"
#include "trainer/config/printable.h"

namespace {

using k25::Error;
using k25::ErrorKind;
using k25::parallel::AgreedError;
using k25::parallel::World;

constexpr const char* kVersion = "0.1.0";

// A file opened in the place of a closed standard stream would receive what is printed. To write to
// standard output stays the error that it was.
void open_standard_streams() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (fcntl(fd, F_GETFD) != -1) continue;
    const int how = fd == STDOUT_FILENO ? O_RDONLY : O_RDWR;
    if (open("/dev/null", how) < 0) _exit(static_cast<int>(ErrorKind::kInternal));
  }
}

// MPI, PMIx and HDF5 crash where the system refuses them memory, so a limit on the address space
// must leave what they need. Under a limit one heap serves all threads: each would reserve 64 MiB.
void require_room_to_start() {
  constexpr k25::Bytes kRoom{std::int64_t{64} << 20};
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  mallopt(M_ARENA_MAX, 1);
  k25::require_host_memory(kRoom);
}

Error error_of(const std::exception& error) {
  const auto* system = dynamic_cast<const std::system_error*>(&error);
  if (system != nullptr && std::ferror(stdout) != 0) {
    return {ErrorKind::kCheckpoint,
            "standard output cannot be written: " + system->code().message()};
  }
  return k25::as_error(error);
}

void print_error(const Error& error) {
  std::istringstream lines(error.what());
  std::string text;
  for (std::string line; std::getline(lines, line);) {
    text += (text.empty() ? "" : "\n") + k25::trainer::printable(line);
  }
  fmt::print(stderr, "k25: error: {}\n", text);
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
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
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

int run_with_world(const k25::trainer::Command& command, k25::trainer::Arguments arguments) {
  const std::unique_ptr<World> world = World::create({.timeout = k25::parallel::start_timeout()});
  k25::trainer::SignalWatcher signals(world.get());
  try {
    k25::trainer::require_same_command_line(world->comm(), arguments);
    command.run({world.get(), &signals.save_and_stop(), &signals});
    world->finish();
    return 0;
  } catch (const Error& error) {
    return end_with(*world, signals, error);
  } catch (const std::exception& error) {
    return end_with(*world, signals, error_of(error));
  }
}

int run_alone(const k25::trainer::Command& command) {
  if (!k25::trainer::is_first_process()) return 0;  // under mpirun, one process does the work
  k25::trainer::SignalWatcher signals(nullptr);
  command.run({nullptr, &signals.save_and_stop(), &signals});
  return 0;
}

int show(const CLI::App& app, const CLI::ParseError& help_or_version) {
  if (!k25::trainer::is_first_process()) return 0;
  std::ostringstream out, none;
  const int code = app.exit(help_or_version, out, none);
  fmt::print("{}", out.str());
  return code;
}

int parse_and_run(int argc, char** argv) {
  CLI::App app("Trains Kimi-style language models on MPI clusters.", "k25");
  app.set_version_flag("--version", std::string("k25 ") + kVersion);
  app.require_subcommand(1);
  using namespace k25::trainer;  // NOLINT(google-build-using-namespace)
  const std::vector<Command> commands = {
      add_prepare(app), add_train(app), add_eval(app), add_sample(app), add_config(app),
      add_inspect(app), add_bench(app), add_plan(app), add_doctor(app), add_ctl(app)};
  const Arguments arguments(argv + std::min(argc, 1), argv + argc);
  std::string problem = problem_of_empty_arguments(arguments);
  try {
    if (problem.empty()) app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const bool shows = error.get_exit_code() == 0;  // --help, --version
    problem = shows ? problem_of_several_programs() : command_line_problem(app, error, arguments);
    if (problem.empty()) return show(app, error);
  }
  const auto chosen =
      std::ranges::find_if(commands, [](const Command& c) { return c.app->parsed(); });
  const bool alone = chosen == commands.end() || chosen->needs == Needs::kNothing;
  if (problem.empty() && alone) problem = problem_of_several_programs();
  if (!problem.empty()) {
    tell_usage_error(problem);
    return static_cast<int>(ErrorKind::kUsage);
  }
  require_room_to_start();
  return alone ? run_alone(*chosen) : run_with_world(*chosen, arguments);
}

}  // namespace

int main(int argc, char** argv) {
  open_standard_streams();
  k25::trainer::block_signals();
  int code = static_cast<int>(ErrorKind::kInternal);
  try {
    code = parse_and_run(argc, argv);
  } catch (const std::exception& error) {
    const Error known = error_of(error);
    // Without a world, of a limit that holds on every rank (threads, memory): the launcher ends the
    // job with its first failed process, and that is to be the one that speaks.
    const bool shared = known.kind() != ErrorKind::kCommunication;
    if (shared && !k25::trainer::is_first_process()) {
      std::this_thread::sleep_for(std::chrono::seconds(3));
    }
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
