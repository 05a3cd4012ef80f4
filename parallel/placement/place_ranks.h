#pragma once
// The placement of all ranks of a job.

#include <optional>
#include <string>
#include <vector>

#include "parallel/comm/world.h"
#include "parallel/placement/placement.h"

namespace k25::parallel {

/// What one rank says of its place.
struct RankPlace {
  std::string host;
  std::string text;  ///< placement_text
  std::vector<PlacementWarning> warnings;
};

struct PlacementReport {
  std::vector<std::string> hosts;     ///< one line for each host
  std::vector<std::string> warnings;  ///< one for each kind of trouble on a host
};

/// `places` by rank.
PlacementReport report_places(const std::vector<RankPlace>& places);

struct JobPlacement {
  RankPlacement mine;
  PlacementReport report;  ///< the same on all ranks
};

/// Collective. `gpu`: this rank's PCI address, "" without. `update_threads` as in PlacementRequest,
/// the same on all ranks.
JobPlacement place_ranks(World& world, const std::string& gpu, std::optional<int> update_threads);

}  // namespace k25::parallel
