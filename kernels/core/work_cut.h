#pragma once
// The work of an op whose every piece needs scratch: `units` equal pieces, cut into runs.

#include <algorithm>
#include <cstdint>

#include "kernels/core/buffer.h"

namespace k25 {

/// Runs of `grain` units, each with `slot_bytes` of scratch. It follows from the plan alone, never
/// from the number of threads.
struct WorkCut {
  std::int64_t units = 0, grain = 1, slots = 0, slot_bytes = 0;

  Bytes bytes() const { return Bytes{slots * slot_bytes}; }
  /// Scratch of the run that begins with unit `begin`, in what bytes() says.
  template <class A>
  A* slot(void* scratch, std::int64_t begin) const {
    return reinterpret_cast<A*>(static_cast<char*>(scratch) + begin / grain * slot_bytes);
  }
};

/// At most `most` runs; `scratch` bytes for one are rounded up to whole cache lines.
inline WorkCut cut_work(std::int64_t units, std::int64_t most, std::int64_t scratch) {
  WorkCut cut;
  cut.units = units;
  cut.grain = std::max<std::int64_t>(1, (units + most - 1) / most);
  cut.slots = (units + cut.grain - 1) / cut.grain;
  cut.slot_bytes = align_up(scratch);
  return cut;
}

}  // namespace k25
