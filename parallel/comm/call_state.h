#pragma once
// Private to parallel/comm: the state behind a Work of the communication thread.

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/check.h"
#include "parallel/comm/communicator.h"

namespace k25::parallel {

/// Beats while the communication thread is alive; a waiting caller finds a stuck one by it.
struct Pulse {
  std::atomic<std::uint64_t> beats{0};
  std::atomic<std::int64_t> timeout_ms{std::int64_t{1} << 60};  ///< no limit while MPI starts
};

/// Kept by a caller that waits in slices: throws kCommunication once the communication thread has
/// been silent for the timeout and 5 s more. Only the caller's own waking time counts, so a process
/// that was stopped and continued raises no alarm.
class PulseWatch {
 public:
  static constexpr std::chrono::milliseconds kSlice{500};

  PulseWatch(const Pulse& pulse, std::string_view waiting_for)
      : pulse_(pulse), waiting_for_(waiting_for), beats_(pulse.beats.load()) {}
  void slept_a_slice();

 private:
  const Pulse& pulse_;
  std::string_view waiting_for_;
  std::uint64_t beats_;
  std::int64_t silent_ms_ = 0;
};

/// An error on its way between threads (exceptions themselves stay on one).
struct Fault {
  ErrorKind kind = ErrorKind::kCommunication;
  std::string message;
};

class CallState final : public Work::State {
 public:
  CallState(std::shared_ptr<const Pulse> pulse, std::string description)
      : pulse_(std::move(pulse)), description_(std::move(description)) {}

  bool done() override;
  bool wait(Clock::time_point until) override;
  void wait_on(const Queue& queue) override;

  /// The call was handed to the communication thread; before, waiting for it is an error.
  void submitted();
  void complete();
  void fail_with(const Fault& fault);

 private:
  bool finished() const { return complete_ || fault_.has_value(); }
  void rethrow() const {
    if (fault_) fail(fault_->kind, fault_->message);
  }

  std::shared_ptr<const Pulse> pulse_;
  std::string description_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool submitted_ = false;
  bool complete_ = false;
  std::optional<Fault> fault_;
};

/// Done when all its parts are.
class GroupState final : public Work::State {
 public:
  explicit GroupState(std::vector<std::shared_ptr<CallState>> parts) : parts_(std::move(parts)) {}

  bool done() override;
  bool wait(Clock::time_point until) override;
  void wait_on(const Queue& queue) override;

 private:
  std::vector<std::shared_ptr<CallState>> parts_;
};

}  // namespace k25::parallel
