#pragma once
// The bytes of one rank, known before anything is allocated, and the choices that depend on them.

#include <string>
#include <vector>

#include "optim/statistics.h"
#include "parallel/zero/zero_store.h"
#include "trainer/config/config.h"
#include "trainer/model/model.h"

namespace k25::trainer {

/// One category, by where it lies. On the CPU everything is the device's.
struct MemoryRow {
  std::string name;
  Bytes device, host;
};

struct MemoryPlan {
  parallel::ZeroPlan zero;
  ModelMemory model;
  Footprint statistics, step;
  Bytes snapshot;  ///< for a GPU's state in host memory, and no part of total
  Device device = Device::kCpu;
  Bytes total() const;  ///< of the device
  Bytes host() const;   ///< beside a GPU; 0 on the CPU, where total counts all
  /// Every category, without the totals.
  std::vector<MemoryRow> rows() const;
  /// One line per category and one for the total.
  std::vector<std::string> lines() const;
};

/// The ZeRO options of a run; `auto` takes the least traffic whose plan fits in `budget` bytes per
/// rank.
parallel::ZeroOptions resolve_zero(const Config& config, const Model& model, Bytes budget);

MemoryPlan plan_memory(const Config& config, const Model& model,
                       const parallel::ZeroOptions& options);

/// Bytes this rank may use: the smaller of MemAvailable, the cgroup's limit and RLIMIT_AS, shared
/// by the ranks of the host.
Bytes host_memory_budget(int ranks_on_host);

/// Throws kUsage with the table when the plan does not fit: in `budget` bytes on the device, and in
/// `host_budget` beside it.
void require_fit(const MemoryPlan& plan, Bytes budget, Bytes host_budget);

}  // namespace k25::trainer
