#include "trainer/cli/signals.h"

#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <utility>

namespace k25::trainer {
namespace {

using std::chrono::milliseconds;

// A collective that is still the same one is a real wait, not a passing one.
constexpr milliseconds kRealWait{100};
// mpirun stops reading once it has seen a rank end, and kills what is left after 1 s.
constexpr milliseconds kHearOthers{500};

sigset_t watched_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  sigaddset(&set, SIGUSR2);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  // A blocked signal reaches sigwait even when it is ignored.
  struct sigaction hang_up{};
  if (sigaction(SIGHUP, nullptr, &hang_up) == 0 && hang_up.sa_handler != SIG_IGN) {
    sigaddset(&set, SIGHUP);
  }
  return set;
}

std::string stuck_in(parallel::World& world) {
  const std::string first = world.waiting_for();
  if (first.empty()) return first;
  std::this_thread::sleep_for(kRealWait);
  const std::string second = world.waiting_for();
  return first == second ? first : std::string();
}

void tell_stop(parallel::World& world, int signal) {
  if (world.peer_failed()) return;
  const std::string stuck = stuck_in(world);
  if (!stuck.empty()) {
    fmt::print(stderr, "k25: rank {}: stopped by signal {} while waiting in {}\n", world.rank(),
               signal, stuck);
  } else if (world.rank() == 0) {
    fmt::print(stderr, "k25: stopped by signal {}; what was saved before stands\n", signal);
  }
  if (world.size() > 1) std::this_thread::sleep_for(kHearOthers);
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

void SignalWatcher::on_stop(std::function<void()> clean) {
  const std::scoped_lock lock(clean_mutex_);
  clean_ = std::move(clean);
}

void SignalWatcher::stop_now(int signal) {
  const std::scoped_lock lock(clean_mutex_);  // until the end: the cleaned thread stays away
  if (clean_) clean_();
  if (world_ != nullptr) tell_stop(*world_, signal);
  _exit(128 + signal);
}

void SignalWatcher::watch() {
  const sigset_t set = watched_signals();
  while (!quit_) {
    int signal = 0;
    if (sigwait(&set, &signal) != 0) continue;
    if (quit_) return;
    if (signal == SIGUSR1) {
      save_and_stop_ = true;
    } else if (signal == SIGUSR2) {
      ++dumps_;
    } else if (leaving_with_ >= 0) {
      _exit(leaving_with_);
    } else {
      stop_now(signal);
    }
  }
}

}  // namespace k25::trainer
