#pragma once
// Where the threads of a rank run: near its GPU, one to a physical core, apart from other ranks.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "parallel/placement/topology.h"

namespace k25::parallel {

struct HostRank {
  int rank = 0;
  std::string gpu;        ///< its PCI address; "": none
  std::vector<int> cpus;  ///< of its affinity mask
};

struct PlacementRequest {
  std::vector<HostRank> ranks;  ///< all of one host, by their local rank
  std::size_t local_rank = 0;   ///< the one that is placed
  /// Threads of its update on the host, 0: as many as there are cores. Absent: no such update.
  std::optional<int> update_threads;
};

enum class PlacementIssue : std::uint8_t {
  kNoTopology,   ///< hwloc sees no core: each CPU of the mask counts as one
  kFarFromGpu,   ///< the mask has no core of the GPU's NUMA node
  kOneCore,      ///< the mask has one core and the update wants more
  kSharedCores,  ///< the masks of two ranks overlap without room for both
};

struct PlacementWarning {
  PlacementIssue issue = PlacementIssue::kNoTopology;
  std::string text;  ///< with the mend
};

struct RankPlacement {
  int numa_node = -1;  ///< of the GPU; -1: unknown
  std::string nic;     ///< nearest to the GPU; "": none
  /// For the update on the host: one hardware thread of each core of the rank's share, near the GPU
  /// first. One core is left to the caller's thread when the share has two, and one more to
  /// communication when it has four. Never empty unless the mask is.
  std::vector<int> cpus;
  std::vector<PlacementWarning> warnings;
};

/// Each core goes to one rank: to those of its NUMA node's GPUs and those that may run nowhere
/// nearer, else to whoever may use it, in equal runs of neighbours. Ranks outnumbering their cores
/// share. All ranks of a host get answers that fit each other.
RankPlacement place(const Topology& topology, const PlacementRequest& request);

/// "rank 3: GPU 0000:9a:00.0, NUMA node 1, NIC mlx5_4, update on cpus 34-39".
std::string placement_text(const HostRank& rank, const RankPlacement& placement);

}  // namespace k25::parallel
