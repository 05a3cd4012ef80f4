#pragma once
// SIGUSR1 = save and stop; SIGUSR2 = dump the last collectives; SIGTERM, SIGINT and SIGHUP = stop
// now, the last checkpoint stands.

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

#include "parallel/comm/world.h"

namespace k25::trainer {

/// Blocks these signals for this thread and all threads it starts later; call first in main. A
/// SIGHUP that is ignored (nohup) stays so.
/// SIGXFSZ and SIGPIPE are ignored, so that a full disk and a closed pipe are errors with a
/// message.
void block_signals();

/// Waits for signals on a thread of its own.
class SignalWatcher {
 public:
  /// `world` may be null (commands that do not communicate).
  explicit SignalWatcher(parallel::World* world);
  ~SignalWatcher();
  SignalWatcher(const SignalWatcher&) = delete;
  SignalWatcher& operator=(const SignalWatcher&) = delete;

  const std::atomic<bool>& save_and_stop() const { return save_and_stop_; }
  /// SIGUSR2s so far.
  const std::atomic<std::int64_t>& dumps() const { return dumps_; }
  /// From here on the process is leaving with `exit_code`: mpirun's SIGTERM, which follows the
  /// first rank that is gone, ends it without a word.
  void leave(int exit_code) { leaving_with_ = exit_code; }
  /// `clean` runs on the thread of signals before a signal ends the process; an empty function
  /// takes the earlier one back. While a clean-up runs, this does not return.
  void on_stop(std::function<void()> clean);

 private:
  void watch();
  [[noreturn]] void stop_now(int signal);

  parallel::World* world_;
  std::atomic<bool> save_and_stop_{false};
  std::atomic<std::int64_t> dumps_{0};
  std::atomic<bool> quit_{false};
  std::atomic<int> leaving_with_{-1};
  std::mutex clean_mutex_;
  std::function<void()> clean_;
  std::thread thread_;
};

}  // namespace k25::trainer
