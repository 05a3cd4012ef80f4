#include "parallel/comm/collective_log.h"

#include <fmt/format.h>

#include <algorithm>

namespace k25::parallel {
namespace {

double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace

std::string_view op_name(Op op) {
  switch (op) {
    case Op::kAllGather:
      return "all_gather";
    case Op::kAllToAll:
      return "all_to_all";
    case Op::kAllToAllV:
      return "all_to_all_v";
    case Op::kReduceScatter:
      return "reduce_scatter";
    case Op::kAllReduceSmall:
      return "all_reduce_small";
    case Op::kBroadcast:
      return "broadcast";
    case Op::kRingExchange:
      return "ring_exchange";
    case Op::kBarrier:
      return "barrier";
    case Op::kSplit:
      return "split";
  }
  return "unknown";
}

std::string CallId::describe() const {
  return fmt::format("collective #{} ({} {} on {})", sequence, op_name(op), name, comm);
}

std::int64_t CollectiveLog::add(const CallId& call) {
  const std::lock_guard lock(mutex_);
  const std::int64_t key = count_++;
  Record& record = records_[static_cast<std::size_t>(key % kCapacity)];
  record = Record{call, State::kQueued, Clock::now(), {}, {}};
  return key;
}

void CollectiveLog::mark(std::int64_t key, State state) {
  const std::lock_guard lock(mutex_);
  if (key < 0 || key < count_ - kCapacity) return;  // overwritten meanwhile
  Record& record = records_[static_cast<std::size_t>(key % kCapacity)];
  record.state = state;
  (state == State::kStarted ? record.started : record.ended) = Clock::now();
}

void CollectiveLog::started(std::int64_t key) { mark(key, State::kStarted); }
void CollectiveLog::done(std::int64_t key) { mark(key, State::kDone); }
void CollectiveLog::failed(std::int64_t key) { mark(key, State::kFailed); }

std::string CollectiveLog::dump() const {
  const std::lock_guard lock(mutex_);
  const Clock::time_point now = Clock::now();
  std::string text;
  for (std::int64_t key = std::max<std::int64_t>(0, count_ - kCapacity); key < count_; ++key) {
    const Record& r = records_[static_cast<std::size_t>(key % kCapacity)];
    fmt::format_to(std::back_inserter(text), "{:.6f} s {} #{} {} {} {} bytes ",
                   seconds(r.queued - origin_), r.call.comm, r.call.sequence, op_name(r.call.op),
                   r.call.name, r.call.bytes);
    switch (r.state) {
      case State::kQueued:
        fmt::format_to(std::back_inserter(text), "queued for {:.6f} s\n", seconds(now - r.queued));
        break;
      case State::kStarted:
        fmt::format_to(std::back_inserter(text), "started, waiting for {:.6f} s\n",
                       seconds(now - r.started));
        break;
      case State::kDone:
        fmt::format_to(std::back_inserter(text), "done in {:.6f} s\n", seconds(r.ended - r.queued));
        break;
      case State::kFailed:
        fmt::format_to(std::back_inserter(text), "failed after {:.6f} s\n",
                       seconds(r.ended - r.queued));
        break;
    }
  }
  return text;
}

}  // namespace k25::parallel
