#pragma once
// Private to parallel/comm: the communication thread. It makes every call of the transport; callers
// hand it operations through a queue and get call states back.
//
// Waiting costs little: the thread polls a few times, then yields, then sleeps 20 to 200 us (an
// eighth of the time since the last progress), because ranks on a CPU share cores with the compute
// threads. With nothing to do it looks for a peer's failure message every 20 ms.
//
// Watchdog: when calls are pending and no message has completed for `timeout`, the world fails: all
// pending and later calls throw. Rank r waits 250 ms x r (at most 3 s) longer, so that the first
// rank to give up can tell the others and a job prints one message. Time in which this process
// itself was stopped does not count. After that the thread makes no transport call but those of
// abort.

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "parallel/comm/operation.h"
#include "parallel/comm/transport.h"

namespace k25::parallel {

class CommThread {
 public:
  explicit CommThread(std::unique_ptr<Transport> transport);
  /// Lets the thread go without a word to the peers, unless finish() was called.
  ~CommThread();
  CommThread(const CommThread&) = delete;
  CommThread& operator=(const CommThread&) = delete;

  /// Starts the thread and the transport; blocks until all ranks have, `limit` and `patience` long.
  void start(std::chrono::milliseconds limit, std::chrono::milliseconds patience);
  void set_timeout(std::chrono::milliseconds timeout);

  int rank() const;
  const std::vector<Peer>& peers() const;
  const std::shared_ptr<CollectiveLog>& log() const;

  std::shared_ptr<CallState> new_state(const CallId& id) const;
  /// Starts the operations together.
  void submit(std::vector<std::unique_ptr<Operation>> operations);
  /// Runs `task` on the thread and waits for it.
  void run(const std::string& description, std::function<void(Transport&)> task);
  /// Waits until nothing is pending.
  void drain();

  /// Any thread. See World.
  std::string waiting_for() const;
  /// The peers whose part in the call behind `state` is missing: "rank 1 (host h, pid p)".
  std::string missing_in(const CallState* state) const;
  bool peer_failed() const;

  /// Finalizes the transport and ends the thread. Collective; nothing may be pending.
  void finish();
  [[noreturn]] void abort(int exit_code);

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;  // shared with the thread, which may outlive us when it is stuck
  std::thread thread_;
};

}  // namespace k25::parallel
