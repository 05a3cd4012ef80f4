#include "trainer/doctor/places.h"

#include <utility>

#include "parallel/placement/placement.h"

namespace k25::trainer {

std::vector<Finding> describe_places(const parallel::Topology& topology,
                                     const std::vector<RankBinding>& ranks,
                                     const std::vector<std::string>& gpus) {
  parallel::PlacementRequest request;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    request.ranks.push_back(
        {.rank = ranks[i].rank, .gpu = i < gpus.size() ? gpus[i] : "", .cpus = ranks[i].cpus});
  }
  std::vector<Finding> found;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    request.local_rank = i;
    const parallel::RankPlacement placement = parallel::place(topology, request);
    found.push_back(
        {.topic = "placement", .found = parallel::placement_text(request.ranks[i], placement)});
  }
  return found;
}

}  // namespace k25::trainer
