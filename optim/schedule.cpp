#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/core/check.h"

namespace k25::optim {
namespace {

double between(double from, double to, std::int64_t done, std::int64_t all) {
  return from + (to - from) * (static_cast<double>(done) / static_cast<double>(all));
}

double cosine(const Schedule& s, std::int64_t update, double lowest) {
  const std::int64_t span = s.total - s.warmup;
  const std::int64_t done = update - s.warmup;
  if (done >= span) return lowest;
  const double angle = std::numbers::pi * static_cast<double>(done) / static_cast<double>(span);
  return lowest + (s.lr - lowest) * (1.0 + std::cos(angle)) / 2.0;
}

double wsd(const Schedule& s, std::int64_t update, double lowest) {
  const std::int64_t decay = std::min(s.decay, s.total - s.warmup);
  if (decay <= 0) return s.lr;
  if (update >= s.total) return lowest;
  const std::int64_t begin = s.total - decay;
  return update < begin ? s.lr : between(s.lr, lowest, update - begin, decay);
}

}  // namespace

double learning_rate(const Schedule& schedule, std::int64_t update) {
  K25_CHECK(update >= 0, "updates are counted from 0");
  if (update < schedule.warmup) {
    return schedule.lr * static_cast<double>(update + 1) / static_cast<double>(schedule.warmup);
  }
  const double lowest = schedule.lr * schedule.min_ratio;
  switch (schedule.kind) {
    case ScheduleKind::kConstant:
      return schedule.lr;
    case ScheduleKind::kCosine:
      return cosine(schedule, update, lowest);
    case ScheduleKind::kWsd:
      return wsd(schedule, update, lowest);
  }
  fail(ErrorKind::kInternal, "unknown schedule kind");
}

}  // namespace k25::optim
