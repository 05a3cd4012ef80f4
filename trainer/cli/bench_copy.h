#pragma once
// `k25 bench copy`: copies within and between the memories of a rank, by size.

#include <cstdint>

#include "trainer/plan/ceilings.h"
#include "trainer/train/runtime.h"

namespace k25::trainer {

struct CopySizes {
  std::int64_t least = std::int64_t{1} << 20, most = std::int64_t{256} << 20;
};

/// Collective: all ranks copy at once, as a run does. Prints one line a copy and size: bytes, time
/// on the slowest rank, GB/s, and where `ceilings` know a sustained rate, floor and floor / time.
/// GB/s counts what is read and written within one memory, and what crosses between two ("both at
/// once": both directions together).
void run_bench_copy(Runtime& runtime, const CopySizes& sizes, const Ceilings& ceilings);

}  // namespace k25::trainer
