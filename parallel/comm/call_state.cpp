#include "parallel/comm/call_state.h"

#include <fmt/format.h>

#include <algorithm>

namespace k25::parallel {
namespace {

constexpr std::int64_t kGraceMs = 5000;

}  // namespace

void PulseWatch::slept_a_slice() {
  const std::uint64_t now = pulse_.beats.load();
  silent_ms_ = now == beats_ ? silent_ms_ + kSlice.count() : 0;
  beats_ = now;
  if (silent_ms_ > pulse_.timeout_ms.load() + kGraceMs) {
    fail(ErrorKind::kCommunication,
         fmt::format("{}: the communication thread has been stuck inside MPI for {} s",
                     waiting_for_, silent_ms_ / 1000));
  }
}

bool CallState::done() {
  const std::lock_guard lock(mutex_);
  rethrow();
  return complete_;
}

bool CallState::wait(Clock::time_point until) {
  std::unique_lock lock(mutex_);
  K25_CHECK(submitted_, description_ + " is waited for inside its group: call group_end first");
  PulseWatch watch(*pulse_, description_);
  while (!finished()) {
    const Clock::time_point slice = Clock::now() + PulseWatch::kSlice;
    const bool woken =
        changed_.wait_until(lock, std::min(until, slice), [&] { return finished(); });
    if (woken) break;
    if (Clock::now() >= until) return false;
    watch.slept_a_slice();
  }
  rethrow();
  return true;
}

void CallState::wait_on(const Queue& queue) {
  K25_CHECK(queue.is_host(), "the CPU backend has no CUDA streams: wait on Queue::host()");
  wait(Clock::time_point::max());
}

void CallState::submitted() {
  const std::lock_guard lock(mutex_);
  submitted_ = true;
}

void CallState::complete() {
  {
    const std::lock_guard lock(mutex_);
    complete_ = true;
  }
  changed_.notify_all();
}

void CallState::fail_with(const Fault& fault) {
  {
    const std::lock_guard lock(mutex_);
    if (finished()) return;
    fault_ = fault;
  }
  changed_.notify_all();
}

bool GroupState::done() {
  bool all = true;
  for (const auto& part : parts_) all = part->done() && all;
  return all;
}

bool GroupState::wait(Clock::time_point until) {
  return std::ranges::all_of(parts_, [&](const auto& part) { return part->wait(until); });
}

void GroupState::wait_on(const Queue& queue) {
  for (const auto& part : parts_) part->wait_on(queue);
}

}  // namespace k25::parallel
