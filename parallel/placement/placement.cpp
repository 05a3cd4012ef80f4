#include "parallel/placement/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "kernels/core/check.h"
#include "parallel/placement/cpu_list.h"

namespace k25::parallel {
namespace {

bool holds(const std::vector<int>& cpus, int cpu) {
  return std::ranges::find(cpus, cpu) != cpus.end();
}

const TopologyDevice* find_gpu(const Topology& topology, const std::string& bus) {
  const auto found = std::ranges::find(topology.gpus, normal_bus(bus), &TopologyDevice::name);
  return bus.empty() || found == topology.gpus.end() ? nullptr : &*found;
}

class HostPlan {
 public:
  HostPlan(const Topology& topology, const PlacementRequest& request)
      : topology_(topology), request_(request), cores_(topology.cores) {
    if (cores_.empty()) cores_from_masks();
    for (const HostRank& rank : request.ranks) {
      const TopologyDevice* const gpu = find_gpu(topology, rank.gpu);
      homes_.push_back(gpu == nullptr ? -1 : gpu->numa_node);
    }
    for (std::size_t r = 0; r < request.ranks.size(); ++r) displaced_.push_back(is_displaced(r));
  }

  RankPlacement place() const {
    RankPlacement placement{.numa_node = homes_[mine()], .nic = nearest_nic()};
    placement.cpus = for_update(share());
    if (placement.cpus.empty() && !mask(mine()).empty()) placement.cpus = {first_usable()};
    warn(placement.warnings);
    return placement;
  }

 private:
  std::size_t mine() const { return request_.local_rank; }
  const std::vector<int>& mask(std::size_t rank) const { return request_.ranks[rank].cpus; }

  void cores_from_masks() {
    std::set<int> all;
    for (const HostRank& rank : request_.ranks) all.insert(rank.cpus.begin(), rank.cpus.end());
    for (const int cpu : all) cores_.push_back({.cpus = {cpu}});
  }

  /// The hardware thread of a core that a rank would use; -1: none.
  int seat(const TopologyCore& core, std::size_t rank) const {
    const auto found =
        std::ranges::find_if(core.cpus, [&](int cpu) { return holds(mask(rank), cpu); });
    return found == core.cpus.end() ? -1 : *found;
  }

  int usable_cores(std::size_t rank) const {
    return static_cast<int>(
        std::ranges::count_if(cores_, [&](const auto& core) { return seat(core, rank) >= 0; }));
  }

  int first_usable() const {
    for (const TopologyCore& core : cores_) {
      if (seat(core, mine()) >= 0) return seat(core, mine());
    }
    return mask(mine()).front();
  }

  /// The mask has no core of the node of the rank's GPU, which has some.
  bool is_displaced(std::size_t rank) const {
    bool node_has_cores = false;
    for (const TopologyCore& core : cores_) {
      if (homes_[rank] < 0 || core.numa_node != homes_[rank]) continue;
      node_has_cores = true;
      if (seat(core, rank) >= 0) return false;
    }
    return node_has_cores;
  }

  std::vector<std::size_t> contenders(const TopologyCore& core) const {
    std::vector<std::size_t> all, at_home;
    for (std::size_t r = 0; r < request_.ranks.size(); ++r) {
      if (seat(core, r) < 0) continue;
      all.push_back(r);
      if (homes_[r] < 0 || homes_[r] == core.numa_node || displaced_[r]) at_home.push_back(r);
    }
    return at_home.empty() ? all : at_home;
  }

  /// One hardware thread of each core of this rank, near ones first.
  std::vector<int> share() const {
    std::map<std::vector<std::size_t>, std::vector<const TopologyCore*>> groups;
    for (const TopologyCore& core : cores_) groups[contenders(core)].push_back(&core);
    std::vector<const TopologyCore*> own;
    for (const auto& [ranks, cores] : groups) {
      const auto place = std::ranges::find(ranks, mine());
      if (place == ranks.end()) continue;
      const auto i = static_cast<std::size_t>(place - ranks.begin());
      for (std::size_t c = cores.size() * i / ranks.size();
           c < cores.size() * (i + 1) / ranks.size(); ++c) {
        own.push_back(cores[c]);
      }
    }
    std::ranges::sort(own);  // addresses within cores_: the machine's order
    std::ranges::stable_partition(
        own, [&](const TopologyCore* core) { return core->numa_node == homes_[mine()]; });
    std::vector<int> cpus;
    for (const TopologyCore* core : own) cpus.push_back(seat(*core, mine()));
    return cpus;
  }

  static std::vector<int> for_update(std::vector<int> share) {
    constexpr std::size_t kForCaller = 2, kForBoth = 4;
    const std::size_t kept = share.size() >= kForBoth ? 2 : share.size() >= kForCaller ? 1 : 0;
    share.erase(share.begin(), share.begin() + static_cast<std::ptrdiff_t>(kept));
    return share;
  }

  /// How near a card is to the GPU: shared bridges, then the node.
  int nearness(const TopologyDevice& gpu, const TopologyDevice& nic) const {
    const auto parted = std::ranges::mismatch(gpu.bridges, nic.bridges);
    const auto shared = static_cast<int>(parted.in1 - gpu.bridges.begin());
    const bool same_node = gpu.numa_node >= 0 && gpu.numa_node == nic.numa_node;
    return 2 * shared + (same_node ? 1 : 0);
  }

  /// Among equally near cards, the ranks of a node take turns.
  std::string nearest_nic() const {
    const TopologyDevice* const gpu = find_gpu(topology_, request_.ranks[mine()].gpu);
    if (gpu == nullptr || topology_.nics.empty()) return "";
    int best = -1;
    std::vector<const TopologyDevice*> nearest;
    for (const TopologyDevice& nic : topology_.nics) {
      const int here = nearness(*gpu, nic);
      if (here > best) nearest.clear();
      best = std::max(best, here);
      if (here == best) nearest.push_back(&nic);
    }
    const auto turn = std::count(
        homes_.begin(), homes_.begin() + static_cast<std::ptrdiff_t>(mine()), homes_[mine()]);
    return nearest[static_cast<std::size_t>(turn) % nearest.size()]->name;
  }

  void warn(std::vector<PlacementWarning>& warnings) const {
    const HostRank& me = request_.ranks[mine()];
    if (topology_.cores.empty()) {
      warnings.push_back({PlacementIssue::kNoTopology,
                          "hwloc finds no cores on this host, so each CPU of the affinity mask "
                          "counts as one; in a container, mount /sys"});
    }
    if (displaced_[mine()]) {
      warnings.push_back(
          {PlacementIssue::kFarFromGpu,
           fmt::format("rank {} may run on cpus {} only, but its GPU {} is on NUMA node {} (cpus "
                       "{}): launches and copies cross the link between sockets; use mpirun "
                       "--bind-to none",
                       me.rank, cpu_list_text(me.cpus), normal_bus(me.gpu), homes_[mine()],
                       cpu_list_text(cpus_of_node(homes_[mine()])))});
    }
    warn_of_one_core(warnings);
    warn_of_sharing(warnings);
  }

  std::vector<int> cpus_of_node(int node) const {
    std::vector<int> cpus;
    for (const TopologyCore& core : cores_) {
      if (core.numa_node == node) cpus.insert(cpus.end(), core.cpus.begin(), core.cpus.end());
    }
    std::ranges::sort(cpus);
    return cpus;
  }

  /// A rank's part of the host when all get the same.
  int fair() const { return std::max(1, static_cast<int>(cores_.size() / request_.ranks.size())); }

  void warn_of_one_core(std::vector<PlacementWarning>& warnings) const {
    if (!request_.update_threads || usable_cores(mine()) != 1) return;
    const int wanted = *request_.update_threads > 0 ? *request_.update_threads : fair();
    if (wanted <= 1 || cores_.size() == 1) return;
    warnings.push_back(
        {PlacementIssue::kOneCore,
         fmt::format("rank {} may run on 1 core (cpus {}), and its update on the host wants {} "
                     "threads (offload.threads); use mpirun --bind-to none or --map-by slot:PE={}",
                     request_.ranks[mine()].rank, cpu_list_text(mask(mine())), wanted, wanted)});
  }

  void warn_of_sharing(std::vector<PlacementWarning>& warnings) const {
    for (std::size_t r = 0; r < request_.ranks.size(); ++r) {
      if (r == mine() || fit_beside(r)) continue;
      std::vector<int> both;
      for (const TopologyCore& core : cores_) {
        if (seat(core, r) >= 0 && seat(core, mine()) >= 0) both.push_back(seat(core, mine()));
      }
      if (both.empty()) continue;
      std::ranges::sort(both);
      const auto [low, high] = std::minmax(request_.ranks[mine()].rank, request_.ranks[r].rank);
      warnings.push_back(
          {PlacementIssue::kSharedCores,
           fmt::format("ranks {} and {} are bound to the same cores (cpus {}) and slow each other "
                       "down; use mpirun --map-by slot:PE={} or --bind-to none",
                       low, high, cpu_list_text(both), fair())});
      return;
    }
  }

  /// Ranks with one mask are no trouble while it has a core for each, or is all of the host.
  bool fit_beside(std::size_t other) const {
    if (mask(other) != mask(mine())) return false;
    const int cores = usable_cores(mine());
    const auto sharers = std::ranges::count(request_.ranks, mask(mine()), &HostRank::cpus);
    return cores == static_cast<int>(cores_.size()) || sharers <= cores;
  }

  const Topology& topology_;
  const PlacementRequest& request_;
  std::vector<TopologyCore> cores_;
  std::vector<int> homes_;       // NUMA nodes of the ranks' GPUs
  std::vector<bool> displaced_;  // of the ranks
};

}  // namespace

RankPlacement place(const Topology& topology, const PlacementRequest& request) {
  K25_CHECK(request.local_rank < request.ranks.size(),
            "place: local rank " + std::to_string(request.local_rank) + " of " +
                std::to_string(request.ranks.size()) + " ranks");
  return HostPlan(topology, request).place();
}

std::string placement_text(const HostRank& rank, const RankPlacement& placement) {
  std::string text = fmt::format("rank {}: ", rank.rank);
  if (!rank.gpu.empty()) text += fmt::format("GPU {}, ", normal_bus(rank.gpu));
  if (placement.numa_node >= 0) text += fmt::format("NUMA node {}, ", placement.numa_node);
  if (!placement.nic.empty()) text += fmt::format("NIC {}, ", placement.nic);
  return text + "update on cpus " + cpu_list_text(placement.cpus);
}

}  // namespace k25::parallel
