#include "trainer/watch/stall.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "trainer/watch/clock_text.h"

namespace k25::trainer {
namespace {

using Json = nlohmann::ordered_json;

double total(const optim::PhaseSeconds& phases) {
  return std::accumulate(phases.begin(), phases.end(), 0.0);
}

double own(const optim::PhaseSeconds& phases) {
  return total(phases) - phases[static_cast<std::size_t>(StepPhase::kWait)];
}

Json by_phase(const optim::PhaseSeconds& phases) {
  Json json;
  for (std::size_t p = 0; p < kNumPhases; ++p) {
    json[std::string(phase_name(static_cast<StepPhase>(p)))] = phases[p];
  }
  return json;
}

}  // namespace

std::string_view phase_name(StepPhase phase) {
  switch (phase) {
    case StepPhase::kData:
      return "data";
    case StepPhase::kForward:
      return "forward";
    case StepPhase::kBackward:
      return "backward";
    case StepPhase::kWait:
      return "wait";
    case StepPhase::kUpdate:
      return "update";
    case StepPhase::kSave:
      return "save";
  }
  return "unknown";
}

template <class Value>
double StallDetector::median(Value value) const {
  std::array<double, kWindow> values;
  std::ranges::transform(periods_, values.begin(), value);
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(periods_.size() / 2);
  std::nth_element(values.begin(), middle,
                   values.begin() + static_cast<std::ptrdiff_t>(periods_.size()));
  return *middle;
}

std::optional<Stall> StallDetector::observe(std::int64_t step,
                                            std::span<const optim::RankPhases> ranks) {
  Period period;
  Stall stall{.step = step};
  double first = 0.0, last = -1.0;
  for (const optim::RankPhases& r : ranks) {
    period.seconds = std::max(period.seconds, total(r.seconds));
    for (std::size_t p = 0; p < kNumPhases; ++p) {
      period.mean[p] += r.seconds[p] / static_cast<double>(ranks.size());
    }
    const double mine = own(r.seconds);
    first = last < 0.0 ? mine : std::min(first, mine);
    if (mine <= last) continue;
    last = mine;
    stall.rank = r.rank;
    stall.of_rank = r.seconds;
  }
  stall.seconds = period.seconds;
  stall.spread = last - first;
  bool stalled = false;
  if (static_cast<std::int64_t>(periods_.size()) >= kLeastSteps) {
    stall.median = median([](const Period& p) { return p.seconds; });
    stalled =
        stall.seconds > kFactor * stall.median && stall.seconds - stall.median > least_seconds_;
  }
  if (stalled) {
    double most = 0.0;
    for (std::size_t p = 0; p < kNumPhases; ++p) {
      stall.usual[p] = median([p](const Period& each) { return each.mean[p]; });
      const double growth = stall.of_rank[p] - stall.usual[p];
      if (growth <= most) continue;
      most = growth;
      stall.phase = static_cast<StepPhase>(p);
    }
  }
  if (static_cast<std::int64_t>(periods_.size()) < kWindow) {
    periods_.push_back(period);
  } else {
    periods_[next_] = period;
    next_ = (next_ + 1) % periods_.size();
  }
  return stalled ? std::optional(stall) : std::nullopt;
}

std::string stall_json(const Stall& stall, const std::string& host) {
  const Json json = {{"step", stall.step},
                     {"seconds", stall.seconds},
                     {"median_s", stall.median},
                     {"phase", phase_name(stall.phase)},
                     {"rank", stall.rank},
                     {"host", host},
                     {"spread_s", stall.spread},
                     {"rank_s", by_phase(stall.of_rank)},
                     {"usual_s", by_phase(stall.usual)},
                     {"time", clock_text()}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string stall_text(const Stall& stall, const std::string& host) {
  return fmt::format(
      "stall: step {} took {:.3f} s, the median is {:.3f} s; rank {} (host {}) came last, {:.3f} s "
      "after the first; {} grew most, from {:.3f} to {:.3f} s",
      stall.step, stall.seconds, stall.median, stall.rank, host, stall.spread,
      phase_name(stall.phase), stall.usual[static_cast<std::size_t>(stall.phase)],
      stall.of_rank[static_cast<std::size_t>(stall.phase)]);
}

}  // namespace k25::trainer
