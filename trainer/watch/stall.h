#pragma once
// Steps that took much longer than usual, and whose fault it was.
//
// A step's period runs from the statistics of the step before, where all ranks are together, to its
// own statistics, which carry every rank's seconds by phase (optim::Statistics): so it costs no
// message, and clocks need not agree. Evaluation is no part of it.
//
// A rank's own time is its period without waiting: the rank with the most of it came last. On a GPU
// the host only enqueues; what is slow on the device alone shows as waiting on every rank, with a
// spread near 0.

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "optim/statistics.h"

namespace k25::trainer {

/// What a step's time goes to. kUpdate and kSave are those of the step before.
enum class StepPhase : std::uint8_t {
  kData,
  kForward,
  kBackward,
  kWait,  ///< for other ranks and, at the end of backward, for the device; the reduction's sums too
  kUpdate,
  kSave,
};
inline constexpr std::size_t kNumPhases = std::tuple_size_v<optim::PhaseSeconds>;
std::string_view phase_name(StepPhase phase);

struct Stall {
  std::int64_t step = 0;
  double seconds = 0.0, median = 0.0;  ///< of the period
  StepPhase phase = StepPhase::kData;  ///< that grew most on `rank`
  int rank = 0;                        ///< the one that came last
  double spread = 0.0;                 ///< seconds between the first and the last
  optim::PhaseSeconds of_rank{}, usual{};
};

class StallDetector {
 public:
  static constexpr double kFactor = 3.0;          ///< above so many medians
  static constexpr std::int64_t kWindow = 64;     ///< of the last so many steps,
  static constexpr std::int64_t kLeastSteps = 8;  ///< of which there must be so many

  /// `least_seconds`: a stall is also so much longer than the median.
  explicit StallDetector(double least_seconds) : least_seconds_(least_seconds) {}

  /// Once a step, with the phases of every data rank.
  std::optional<Stall> observe(std::int64_t step, std::span<const optim::RankPhases> ranks);

 private:
  struct Period {
    double seconds = 0.0;
    optim::PhaseSeconds mean{};  ///< over ranks
  };
  template <class Value>
  double median(Value value) const;

  double least_seconds_;
  std::vector<Period> periods_;  ///< a ring of kWindow
  std::size_t next_ = 0;
};

/// One line of RUN/stalls.jsonl; `host` is that of the rank.
std::string stall_json(const Stall& stall, const std::string& host);
/// The same for people.
std::string stall_text(const Stall& stall, const std::string& host);

}  // namespace k25::trainer
