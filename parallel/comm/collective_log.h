#pragma once
// Private to parallel/comm: the last 256 collectives of this process, readable while a call hangs.

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include "parallel/comm/communicator.h"

namespace k25::parallel {

enum class Op : std::uint8_t {
  kAllGather,
  kAllToAll,
  kAllToAllV,
  kReduceScatter,
  kAllReduceSmall,
  kBroadcast,
  kRingExchange,
  kBarrier,
  kSplit,
};
std::string_view op_name(Op op);

/// What one rank calls; sequence numbers count the calls of one communicator.
struct CallId {
  std::int64_t sequence = 0;
  Op op = Op::kBarrier;
  std::string name;  ///< "layers.3"
  std::string comm;  ///< "shard"
  std::int64_t bytes = 0;

  std::string describe() const;  ///< "collective #12 (all_gather layers.3 on shard)"
};

/// All members may be called from any thread.
class CollectiveLog {
 public:
  static constexpr std::int64_t kCapacity = 256;

  /// Records a new call; returns the key for the other members.
  std::int64_t add(const CallId& call);
  void started(std::int64_t key);
  void done(std::int64_t key);
  void failed(std::int64_t key);

  /// One line a call, oldest first: time since the start of the process's world, call, state.
  std::string dump() const;

 private:
  enum class State : std::uint8_t { kQueued, kStarted, kDone, kFailed };
  struct Record {
    CallId call;
    State state = State::kQueued;
    Clock::time_point queued, started, ended;
  };
  void mark(std::int64_t key, State state);

  mutable std::mutex mutex_;
  std::array<Record, kCapacity> records_;
  std::int64_t count_ = 0;
  Clock::time_point origin_ = Clock::now();
};

}  // namespace k25::parallel
