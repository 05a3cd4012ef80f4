#pragma once
// `k25 bench comm`: the collectives of the communicator a run uses, by size.

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/plan/ceilings.h"
#include "trainer/train/runtime.h"

namespace k25::trainer {

struct CommSizes {
  std::vector<std::string> ops;                               ///< of bench_comm_ops(); empty: all
  std::int64_t least = 4096, most = std::int64_t{256} << 20;  ///< bytes; each four times the last
};

std::vector<std::string> bench_comm_ops();

/// Collective. Prints one line a collective and size: bytes, time on the slowest rank, GB/s a rank
/// by the convention of nccl-tests ("bus bandwidth": what an ideal ring moves over the wire; bytes
/// are the whole buffer, so that all_gather, all_to_all and reduce_scatter count (n - 1) / n of
/// them, all_reduce_small 2 (n - 1) / n, broadcast all), and where `ceilings` know the wire's
/// sustained rate, floor and floor / time.
void run_bench_comm(Runtime& runtime, const CommSizes& sizes, const Ceilings& ceilings);

}  // namespace k25::trainer
