#pragma once
// Times what all ranks do together.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/core/stopwatch.h"
#include "trainer/train/runtime.h"

namespace k25::trainer {

class BenchTimer {
 public:
  explicit BenchTimer(Runtime& runtime) : runtime_(runtime) {}

  /// Collective. Seconds of one call on the slowest rank, the median of some rounds of at least 20
  /// ms; `wait` blocks until what the calls enqueued is done. All ranks make as many calls. What
  /// the first call does once (allocate, connect) does not count.
  double seconds(const std::function<void()>& call, const std::function<void()>& wait) {
    constexpr int kRounds = 5;
    const auto round = [&](std::int64_t calls) {
      const Stopwatch watch;
      for (std::int64_t i = 0; i < calls; ++i) call();
      wait();
      return watch.seconds() / static_cast<double>(calls);
    };
    round(1);
    const double once = std::max(slowest(round(1)), 1e-7);
    const auto calls = std::clamp<std::int64_t>(static_cast<std::int64_t>(0.02 / once), 1, 2000);
    std::vector<double> rounds;
    for (int i = 0; i < kRounds; ++i) rounds.push_back(slowest(round(calls)));
    std::nth_element(rounds.begin(), rounds.begin() + kRounds / 2, rounds.end());
    return rounds[kRounds / 2];
  }

 private:
  double slowest(double seconds) {
    runtime_.comm()
        .all_reduce_small({.name = "bench"},
                          {.values = &seconds, .count = 1, .op = parallel::ReduceOp::kMax})
        .wait();
    return seconds;
  }

  Runtime& runtime_;
};

}  // namespace k25::trainer
