#pragma once
// Private to parallel/comm: the inside of the communication thread, in three files: comm_thread.cpp
// (queue and life), comm_progress.cpp (messages), comm_watchdog.cpp (failure).

#include "parallel/comm/comm_thread.h"

namespace k25::parallel {

class CommThread::Impl {
 public:
  explicit Impl(std::unique_ptr<Transport> transport) : transport_(std::move(transport)) {}

  /// The thread.
  void main_loop(std::chrono::milliseconds start_limit);

  // comm_thread.cpp, any thread
  void enqueue(std::vector<std::unique_ptr<Operation>> operations);
  enum class After : std::uint8_t { kGoOn, kLeave };
  void enqueue_task(std::shared_ptr<CallState> state, std::function<void(Transport&)> task,
                    After after);
  void drain();
  void stop();
  bool exited_within(std::chrono::milliseconds patience);
  void request_abort(int exit_code);

  // comm_watchdog.cpp, any thread
  std::string waiting_for() const;
  std::string missing_in(const CallState* state) const;

  // Written before the thread's start-up state completes, constant afterwards.
  int rank = 0;
  std::vector<Peer> peers;
  const std::shared_ptr<Pulse> pulse = std::make_shared<Pulse>();
  const std::shared_ptr<CallState> started = std::make_shared<CallState>(pulse, "MPI start-up");
  const std::shared_ptr<CollectiveLog> log = std::make_shared<CollectiveLog>();
  std::atomic<bool> peer_failed{false};
  std::atomic<bool> aborting{false};  // this rank has said why; it waits for nobody any more

 private:
  struct Task {
    std::shared_ptr<CallState> state;
    std::function<void(Transport&)> run;
    After after = After::kGoOn;
  };
  /// A message under way.
  struct Slot {
    enum class Kind : std::uint8_t { kSend, kReceive, kReduce };
    Operation* operation = nullptr;
    Kind kind = Kind::kSend;
    int peer = 0;
    std::int64_t bytes = 0;
  };
  struct Verdict {
    Fault fault;
    Clock::time_point due;
  };
  class StepPoster;

  // comm_thread.cpp
  bool take_queued();
  void run_task(Task& task);
  void pause(bool worked);
  void leave();

  // comm_progress.cpp
  void begin(std::unique_ptr<Operation> operation);
  bool progress();
  void settle(const Completion& completion);
  bool advance_ready();
  bool may_step(const Operation& operation) const;
  void run_step(Operation& operation);
  void finish_operation(std::size_t index);
  Ticket new_ticket(const Slot& slot);

  // comm_watchdog.cpp
  void watch();
  void listen();
  /// The world fails with `fault`, unless a peer speaks first (see comm_thread.h).
  void decide(Fault fault);
  void enact(const Fault& fault);
  void obey_abort(int exit_code);
  void announce();
  std::string timeout_message() const;
  std::string missing_text(const Operation& operation) const;
  std::string peer_text(int world_rank) const;

  std::unique_ptr<Transport> transport_;

  mutable std::mutex mutex_;  // guards what callers and the thread share
  std::condition_variable wake_, drained_, gone_;
  std::deque<std::unique_ptr<Operation>> queue_;
  std::deque<Task> tasks_;
  std::int64_t pending_ = 0;  // operations queued or in flight
  bool stop_ = false;
  bool exited_ = false;
  std::optional<int> abort_code_;
  std::optional<Fault> fault_;

  // Changed by the thread alone, under this mutex, because waiting_for() reads it.
  mutable std::mutex active_mutex_;
  std::vector<std::unique_ptr<Operation>> active_;  // in the order they were started
  std::string last_waiting_;                        // waiting_for() at the moment of the fault

  // The thread's own.
  std::vector<std::unique_ptr<Operation>> abandoned_;  // what they own, MPI may still know
  std::vector<Slot> slots_;
  std::vector<Ticket> free_slots_;
  std::vector<Completion> completions_;
  std::optional<Verdict> verdict_;
  bool left_ = false;  // the transport is finalized
  std::int64_t idle_polls_ = 0;
  Clock::time_point now_, last_loop_, last_progress_, last_listen_;
};

}  // namespace k25::parallel
