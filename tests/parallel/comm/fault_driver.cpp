// A small program with the error handling of a real one, and faults on demand. Run under mpirun by
// fault_test.py:  fault_driver SCENARIO

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/core/check.h"
#include "parallel/comm/agree.h"
#include "parallel/comm/world.h"

namespace k25::parallel {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

void gather(Communicator& comm, const std::string& name) {
  std::vector<int> buffer(static_cast<std::size_t>(comm.size() * 1000));
  comm.all_gather({name}, {buffer.data(), Bytes{4000}}).wait();
}

void work_on(World& world) {
  for (int layer = 0; layer < 5; ++layer) gather(world.comm(), "layers." + std::to_string(layer));
}

void be_impatient(World& world) {
  WorldOptions options;
  options.timeout = seconds(2);
  world.configure(options);
}

/// Rank 1 gets `signal` after some work, the others wait for it.
void stricken(World& world, int signal) {
  work_on(world);
  if (signal == SIGSTOP) be_impatient(world);
  if (world.rank() == 1) {
    raise(signal);
    std::this_thread::sleep_for(seconds(60));
  }
  gather(world.comm(), "layers.7");
}

void fails_with_data_error(World& world) {
  work_on(world);
  if (world.rank() == 1) fail(ErrorKind::kData, "corpus.h5: token 70001 at offset 12");
  gather(world.comm(), "layers.7");
}

/// As above, but the others compute for ever and do not look.
void fails_while_others_compute(World& world) {
  work_on(world);
  if (world.rank() == 1) fail(ErrorKind::kData, "corpus.h5: token 70001 at offset 12");
  std::this_thread::sleep_for(seconds(60));
}

void leaves_early(World& world) {
  work_on(world);
  if (world.rank() == 1) {
    std::fprintf(stderr, "rank 1 leaves\n");
    std::exit(0);
  }
  gather(world.comm(), "layers.7");
}

void computes_too_long(World& world) {
  work_on(world);
  be_impatient(world);
  if (world.rank() == 1) std::this_thread::sleep_for(seconds(30));
  gather(world.comm(), "layers.7");
}

void calls_differ(World& world) {
  WorldOptions options;
  options.timeout = seconds(20);
  options.check = true;
  world.configure(options);
  work_on(world);
  std::vector<char> a(4096 * 8), b(4096 * 8);
  if (world.rank() == 1) {
    world.comm().all_to_all({"layers.3"}, {a.data(), b.data(), Bytes{4096}}).wait();
  } else {
    world.comm().all_gather({"layers.3"}, {a.data(), Bytes{4096}}).wait();
  }
}

/// Rank 1 expects 24 bytes and gets `bytes`: it must find them neither in its buffer nor behind it.
void sizes_differ(World& world, std::int64_t bytes) {
  std::vector<char> a(static_cast<std::size_t>(2 * bytes), 'a');
  const Bytes size{world.rank() == 1 ? 24 : bytes};
  if (world.rank() == 0) std::fill(a.begin(), a.end(), 'b');
  // Both orders: the receive is posted before the message comes, and after.
  if (world.rank() == static_cast<int>(bytes / 16384 % 2)) {
    std::this_thread::sleep_for(milliseconds(100));
  }
  try {
    world.comm().all_gather({"layers.3"}, {a.data(), size}).wait();
  } catch (const Error&) {
    if (world.rank() == 1 && std::ranges::count(a, 'b') > 0) {
      std::fprintf(stderr, "error: the buffer of rank 1 was written to\n");
    }
    throw;
  }
}

void one_rank_cannot_open(World& world) {
  work_on(world);
  collectively(world.comm(), "open", [&] {
    if (world.rank() == 1) fail(ErrorKind::kCheckpoint, "/node/shard-1.h5: no such file");
  });
}

/// Rank 1 is stopped for longer than its own timeout; the others are patient.
void is_stopped_and_continued(World& world) {
  WorldOptions options;
  options.timeout = world.rank() == 1 ? milliseconds(1000) : milliseconds(60000);
  world.configure(options);
  work_on(world);
  if (world.rank() == 1) {
    const pid_t me = getpid();
    if (fork() == 0) {
      usleep(2500000);
      kill(me, SIGCONT);
      _exit(0);
    }
    Work pending;
    std::vector<int> buffer(static_cast<std::size_t>(world.size()));
    pending = world.comm().all_gather({"layers.7"}, {buffer.data(), Bytes{4}});
    raise(SIGSTOP);
    pending.wait();
  } else {
    std::this_thread::sleep_for(milliseconds(500));
    std::vector<int> buffer(static_cast<std::size_t>(world.size()));
    world.comm().all_gather({"layers.7"}, {buffer.data(), Bytes{4}}).wait();
  }
  work_on(world);
}

void forgets_to_finish(World& world) {
  work_on(world);
  if (world.rank() == 0) std::fprintf(stderr, "rank 0 is done\n");
}

const std::map<std::string, std::function<void(World&)>>& scenarios() {
  static const std::map<std::string, std::function<void(World&)>> kAll = {
      {"fine", work_on},
      {"killed", [](World& world) { stricken(world, SIGKILL); }},
      {"stopped", [](World& world) { stricken(world, SIGSTOP); }},
      {"data_error", fails_with_data_error},
      {"data_error_unseen", fails_while_others_compute},
      {"leaves_early", leaves_early},
      {"never_joins", work_on},
      {"too_long", computes_too_long},
      {"calls_differ", calls_differ},
      {"size_1000", [](World& world) { sizes_differ(world, 1000); }},
      {"size_16384", [](World& world) { sizes_differ(world, 16384); }},
      {"size_1000000", [](World& world) { sizes_differ(world, 1000000); }},
      {"cannot_open", one_rank_cannot_open},
      {"continued", is_stopped_and_continued},
      {"forgets", forgets_to_finish},
  };
  return kAll;
}

/// SIGTERM says that the job ends (mpirun sends it when a rank was killed): tell who was missing.
void say_goodbye_on_sigterm(const World& world) {
  sigset_t term;
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  std::thread([term, &world] {
    int got = 0;
    sigwait(&term, &got);
    // A rank that was stopped until now first hears why the job ends.
    std::this_thread::sleep_for(milliseconds(200));
    const std::string waiting = world.waiting_for();
    if (!world.peer_failed() && !waiting.empty()) {
      std::fprintf(stderr, "terminated: rank %d waits for %s\n", world.rank(), waiting.c_str());
    }
    std::_Exit(6);
  }).detach();
}

int run(const std::string& name) {
  sigset_t term;
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &term, nullptr);
  WorldOptions options;
  options.timeout = seconds(20);
  if (name == "never_joins") {
    const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
    if (rank != nullptr && std::string(rank) == "1") return 0;
    options.timeout = seconds(3);
  }
  const std::unique_ptr<World> world = World::create(options);
  say_goodbye_on_sigterm(*world);
  int code = 1;
  try {
    scenarios().at(name)(*world);
    if (name != "forgets") world->finish();
    return 0;
  } catch (const AgreedError& e) {
    if (world->rank() == 0) std::fprintf(stderr, "error: %s\n", e.what());
    world->finish();
    return e.exit_code();
  } catch (const Error& e) {
    if (!world->peer_failed()) std::fprintf(stderr, "error: %s\n", e.what());
    code = e.exit_code();
  }
  world->abort(code);
  return code;  // not reached; GCC does not see [[noreturn]] through a virtual call
}

}  // namespace
}  // namespace k25::parallel

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    return k25::parallel::run(argv[1]);
  } catch (const k25::Error& e) {  // the world did not come to be
    std::fprintf(stderr, "error: %s\n", e.what());
    return e.exit_code();
  }
}
