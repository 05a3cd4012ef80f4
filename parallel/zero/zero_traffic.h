#pragma once
// How often a step gathers and reduces, and what that moves, known before anything is allocated.
// The rules are those of Gatherer and Reducer; tests hold them against the calls that a run makes.

#include <cstdint>
#include <vector>

#include "parallel/zero/zero_store.h"

namespace k25::parallel {

/// One call of a micro-batch on the store, in the order in which the model makes them.
struct UnitUse {
  enum class Kind : std::uint8_t { kAcquire, kPrefetch, kReleaseForward, kReleaseBackward };
  Kind kind = Kind::kAcquire;
  int unit = 0;
};

/// Of one rank in one step.
struct ZeroTraffic {
  std::int64_t gathers = 0;     ///< all-gathers of parameters
  std::int64_t reductions = 0;  ///< of units, over all data ranks
  /// Bytes of the whole gathered units, and what this rank gets of them from others.
  Bytes gathered, gather_wire;
  /// Bytes of the whole reduced gradients, what this rank sends of them to others, and what it
  /// reads and writes to add them up.
  Bytes reduced, reduce_wire, reduce_local;
  /// Of offloaded units: gradients and masters down, parameters and masters up.
  Bytes device_to_host, host_to_device;
  Bytes nvme;    ///< moments read from a file, and as much is written back
  Bytes formed;  ///< read and written where this rank's part of what is gathered is formed
};

ZeroTraffic plan_traffic(const std::vector<UnitSpec>& units, const MeshShape& mesh,
                         const ZeroOptions& options, const std::vector<UnitUse>& micro_batch);

}  // namespace k25::parallel
