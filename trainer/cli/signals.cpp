#include "trainer/cli/signals.h"

#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <string>

namespace k25::trainer {
namespace {

sigset_t watched_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

// A collective that is still the same one after a moment is a real wait, not a passing one.
std::string stuck_in(parallel::World& world) {
  const std::string first = world.waiting_for();
  if (first.empty()) return first;
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const std::string second = world.waiting_for();
  return first == second ? first : std::string();
}

[[noreturn]] void stop_now(parallel::World* world, int signal) {
  if (world != nullptr && !world->peer_failed()) {
    const std::string stuck = stuck_in(*world);
    if (!stuck.empty()) {
      fmt::print(stderr, "k25: rank {}: stopped by signal {} while waiting in {}\n", world->rank(),
                 signal, stuck);
    } else if (world->rank() == 0) {
      fmt::print(stderr, "k25: stopped by signal {}; the last checkpoint stands\n", signal);
    }
  }
  _exit(128 + signal);
}

}  // namespace

void block_signals() {
  signal(SIGXFSZ, SIG_IGN);
  signal(SIGPIPE, SIG_IGN);
  const sigset_t set = watched_signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

SignalWatcher::SignalWatcher(parallel::World* world)
    : world_(world), thread_([this] { watch(); }) {}

SignalWatcher::~SignalWatcher() {
  quit_ = true;
  pthread_kill(thread_.native_handle(), SIGUSR1);
  thread_.join();
}

void SignalWatcher::watch() {
  const sigset_t set = watched_signals();
  while (!quit_) {
    int signal = 0;
    if (sigwait(&set, &signal) != 0) continue;
    if (quit_) return;
    if (signal == SIGUSR1) {
      save_and_stop_ = true;
    } else if (leaving_with_ >= 0) {
      _exit(leaving_with_);
    } else {
      stop_now(world_, signal);
    }
  }
}

}  // namespace k25::trainer
