#include "trainer/doctor/binding.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace k25::trainer {
namespace {

std::string masks_text(const std::vector<RankBinding>& ranks) {
  constexpr std::size_t kShown = 16;
  std::string text;
  for (std::size_t i = 0; i < std::min(ranks.size(), kShown); ++i) {
    text += fmt::format("{}rank {}: cpus {}", i == 0 ? "" : "; ", ranks[i].rank,
                        cpu_list_text(ranks[i].cpus));
  }
  if (ranks.size() > kShown) text += fmt::format("; and {} more ranks", ranks.size() - kShown);
  return text;
}

bool all_equal(const std::vector<RankBinding>& ranks) {
  return std::ranges::all_of(ranks, [&](const RankBinding& r) { return r.cpus == ranks[0].cpus; });
}

/// Two ranks whose masks share CPUs without being the same, or "".
std::string partly_shared(const std::vector<RankBinding>& ranks) {
  for (std::size_t a = 0; a < ranks.size(); ++a) {
    for (std::size_t b = a + 1; b < ranks.size(); ++b) {
      std::vector<int> both;
      std::ranges::set_intersection(ranks[a].cpus, ranks[b].cpus, std::back_inserter(both));
      if (both.empty() || ranks[a].cpus == ranks[b].cpus) continue;
      return fmt::format("ranks {} and {} share cpus {}", ranks[a].rank, ranks[b].rank,
                         cpu_list_text(both));
    }
  }
  return "";
}

/// Whether a mask reaches over several NUMA nodes.
bool spans_nodes(const RankBinding& rank, const std::vector<NumaNode>& nodes) {
  int touched = 0;
  for (const NumaNode& node : nodes) {
    touched += std::ranges::any_of(
        node.cpus, [&](int cpu) { return std::ranges::find(rank.cpus, cpu) != rank.cpus.end(); });
  }
  return touched > 1;
}

std::size_t cpus_of(const std::vector<NumaNode>& nodes) {
  std::size_t n = 0;
  for (const NumaNode& node : nodes) n += node.cpus.size();
  return n;
}

}  // namespace

std::vector<Finding> check_binding(const std::vector<RankBinding>& ranks,
                                   const std::vector<NumaNode>& nodes) {
  std::set<int> used;
  for (const RankBinding& rank : ranks) used.insert(rank.cpus.begin(), rank.cpus.end());
  Finding f{.topic = "binding", .found = masks_text(ranks)};
  const std::size_t fair = std::max<std::size_t>(1, cpus_of(nodes) / ranks.size());
  const auto smallest =
      std::ranges::min(ranks, {}, [](const RankBinding& r) { return r.cpus.size(); });
  const bool one_cpu = smallest.cpus.size() == 1 && fair > 1;
  if (used.size() < ranks.size()) {
    f.severity = Severity::kWarning;
    f.consequence = fmt::format("{} ranks take turns on {} CPUs, and every wait of one delays all",
                                ranks.size(), used.size());
    f.mend = "fewer ranks on this host, or mpirun --bind-to none when other CPUs are free";
  } else if (const std::string shared = partly_shared(ranks); !shared.empty()) {
    f.severity = Severity::kWarning;
    f.found += "; " + shared;
    f.consequence = "some ranks are slower than others, and all wait for the slowest";
    f.mend = fmt::format("mpirun --map-by slot:PE={}", fair);
  } else if (one_cpu) {
    f.severity = Severity::kWarning;
    f.consequence = fmt::format(
        "all threads of rank {} (optimizer, loader, communication) share one CPU "
        "of {} on this host; mpirun binds so by default",
        smallest.rank, cpus_of(nodes));
    f.mend = fmt::format("mpirun --bind-to none, or --map-by slot:PE={}", fair);
  } else if (ranks.size() > 1 && all_equal(ranks)) {
    f.severity = Severity::kNote;
    f.consequence = "threads may move between CPUs and NUMA nodes";
    f.mend = fmt::format("on a host of one's own: mpirun --map-by slot:PE={}", fair);
  } else if (ranks.size() > 1 && spans_nodes(smallest, nodes)) {
    f.severity = Severity::kNote;
    f.consequence = fmt::format("rank {} reaches over several NUMA nodes, so its memory may be far",
                                smallest.rank);
    f.mend = "mpirun --map-by numa --bind-to numa";
  }
  return {f};
}

}  // namespace k25::trainer
