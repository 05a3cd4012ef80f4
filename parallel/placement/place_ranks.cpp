#include "parallel/placement/place_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <utility>

#include "parallel/placement/cpu_list.h"
#include "parallel/placement/gather_texts.h"

namespace k25::parallel {
namespace {

/// Of this rank's host, by local rank.
std::vector<HostRank> gather_host(World& world, const std::string& gpu) {
  const std::string& host = world.peer(world.rank()).host;
  const std::string mine = gpu + "\n" + cpu_list_text(cpus_of_process());
  const std::vector<std::string> texts = gather_texts(world.comm(), "affinity", mine);
  std::vector<HostRank> ranks;
  for (int r = 0; r < world.size(); ++r) {
    if (world.peer(r).host != host) continue;
    const std::string& text = texts[static_cast<std::size_t>(r)];
    const std::size_t end = text.find('\n');
    ranks.push_back(
        {.rank = r, .gpu = text.substr(0, end), .cpus = cpu_list(text.substr(end + 1))});
  }
  return ranks;
}

std::string to_text(const RankPlace& place) {
  std::string text = place.host + "\n" + place.text + "\n";
  for (const PlacementWarning& warning : place.warnings) {
    text += fmt::format("{} {}\n", static_cast<int>(warning.issue), warning.text);
  }
  return text;
}

RankPlace from_text(const std::string& text) {
  RankPlace place;
  std::istringstream in(text);
  std::getline(in, place.host);
  std::getline(in, place.text);
  int issue = 0;
  for (std::string warning; in >> issue && std::getline(in.ignore(), warning);) {
    place.warnings.push_back({static_cast<PlacementIssue>(issue), warning});
  }
  return place;
}

}  // namespace

PlacementReport report_places(const std::vector<RankPlace>& places) {
  PlacementReport report;
  std::vector<std::string> hosts;  // in the order of their lowest ranks
  std::map<std::string, std::string> lines;
  std::vector<std::pair<std::string, PlacementIssue>> issues;
  std::map<std::pair<std::string, PlacementIssue>, std::pair<std::string, int>> first_and_count;
  for (const RankPlace& place : places) {
    std::string& line = lines[place.host];
    if (line.empty()) hosts.push_back(place.host);
    line += (line.empty() ? "" : "; ") + place.text;
    for (const PlacementWarning& warning : place.warnings) {
      const std::pair key(place.host, warning.issue);
      const auto [at, is_new] = first_and_count.try_emplace(key, warning.text, 0);
      if (is_new) issues.push_back(key);
      ++at->second.second;
    }
  }
  for (const std::string& host : hosts) {
    report.hosts.push_back(fmt::format("placement on {}: {}", host, lines[host]));
  }
  for (const auto& key : issues) {
    const auto& [text, count] = first_and_count[key];
    std::string warning = fmt::format("host {}: {}", key.first, text);
    if (count > 1) warning += fmt::format(" (the same on {} more ranks of this host)", count - 1);
    report.warnings.push_back(std::move(warning));
  }
  return report;
}

JobPlacement place_ranks(World& world, const std::string& gpu, std::optional<int> update_threads) {
  PlacementRequest request{.ranks = gather_host(world, gpu), .update_threads = update_threads};
  const auto me = std::ranges::find(request.ranks, world.rank(), &HostRank::rank);
  request.local_rank = static_cast<std::size_t>(me - request.ranks.begin());
  JobPlacement job{.mine = place(read_topology(), request)};
  const RankPlace mine{.host = world.peer(world.rank()).host,
                       .text = placement_text(*me, job.mine),
                       .warnings = job.mine.warnings};
  std::vector<RankPlace> places;
  for (const std::string& text : gather_texts(world.comm(), "placement", to_text(mine))) {
    places.push_back(from_text(text));
  }
  job.report = report_places(places);
  return job;
}

}  // namespace k25::parallel
