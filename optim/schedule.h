#pragma once
// Learning-rate schedules, pure functions of the number of applied updates.
//
// Legend  u: updates applied before this one (0 for the first); warmup: w updates; total: n
// updates.
//   warm-up   lr (u + 1) / w                                         for u < w
//   constant  lr
//   cosine    min + (lr - min) (1 + cos(pi (u - w) / (n - w))) / 2     min = lr * min_ratio
//   wsd       lr until n - decay, then linear to min over the last `decay` updates
// beyond n the last value holds.

#include <cstdint>

namespace k25::optim {

enum class ScheduleKind : std::uint8_t { kConstant, kCosine, kWsd };

struct Schedule {
  ScheduleKind kind = ScheduleKind::kCosine;
  double lr = 1e-3;
  double min_ratio = 0.1;
  std::int64_t warmup = 0;
  std::int64_t total = 1;
  std::int64_t decay = 0;  ///< wsd: updates in the final decay
};

double learning_rate(const Schedule& schedule, std::int64_t update);

}  // namespace k25::optim
