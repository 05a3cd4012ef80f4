#include "parallel/placement/gpu_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "kernels/core/check.h"
#include "parallel/placement/gather_texts.h"

namespace k25::parallel {
namespace {

constexpr const char* kMend =
    "look at nvidia-smi -L, and set CUDA_VISIBLE_DEVICES to GPUs of this list, each once, or unset "
    "it; train.device: cpu runs without";

std::string trimmed(const std::string& text) {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

/// The GPUs that CUDA_VISIBLE_DEVICES names. "-1" hides what follows it, as CUDA reads it.
std::vector<std::string> names_in(const std::string& variable) {
  std::vector<std::string> names;
  std::istringstream in(variable);
  for (std::string name; std::getline(in, name, ',');) {
    name = trimmed(name);
    if (name == "-1" || name == "NoDevFiles") break;
    if (!name.empty()) names.push_back(name);
  }
  return names;
}

std::string who(const std::vector<VisibleGpus>& ranks, std::size_t rank) {
  return fmt::format("rank {} on host {}", rank, ranks[rank].host);
}

std::string value_text(const VisibleGpus& rank) {
  return rank.variable ? "CUDA_VISIBLE_DEVICES=" + *rank.variable : "CUDA_VISIBLE_DEVICES not set";
}

void require_sound_variable(const std::vector<VisibleGpus>& ranks, std::size_t r,
                            GpuDemand demand) {
  const VisibleGpus& rank = ranks[r];
  if (!rank.variable) return;
  const std::vector<std::string> names = names_in(*rank.variable);
  std::set<std::string> seen;
  for (const std::string& name : names) {
    if (seen.insert(name).second) continue;
    fail(ErrorKind::kUsage, fmt::format("{}: {} names GPU {} twice; {}", who(ranks, r),
                                        value_text(rank), name, kMend));
  }
  // Without a driver the variable is of no meaning, and a run that may do without GPUs does.
  if (demand == GpuDemand::kIfThereAre && !rank.has_driver) return;
  if (names.size() > rank.ids.size()) {
    fail(ErrorKind::kUsage,
         fmt::format("{}: {} names {} GPUs, and CUDA finds {}: one of them is not there; {}",
                     who(ranks, r), value_text(rank), names.size(), rank.ids.size(), kMend));
  }
}

/// The lowest rank without a GPU, or the number of ranks.
std::size_t first_without(const std::vector<VisibleGpus>& ranks) {
  const auto found =
      std::ranges::find_if(ranks, [](const VisibleGpus& r) { return r.ids.empty(); });
  return static_cast<std::size_t>(found - ranks.begin());
}

void require_gpus(const std::vector<VisibleGpus>& ranks, GpuDemand demand) {
  const std::size_t without = first_without(ranks);
  if (without == ranks.size()) return;
  if (demand == GpuDemand::kIfThereAre) {
    const auto gpus =
        std::ranges::count_if(ranks, [](const VisibleGpus& rank) { return !rank.ids.empty(); });
    fail(ErrorKind::kUsage,
         fmt::format("train.device is auto, and only {} of {} ranks have a GPU; {} sees none ({}); "
                     "set it to cpu or cuda",
                     gpus, ranks.size(), who(ranks, without), value_text(ranks[without])));
  }
  const VisibleGpus& rank = ranks[without];
  fail(ErrorKind::kUsage,
       fmt::format("train.device is cuda, and {} sees no GPU ({}{}); {}", who(ranks, without),
                   value_text(rank), rank.has_driver ? "" : ", no NVIDIA driver", kMend));
}

std::vector<int> choose_in_order(const std::vector<VisibleGpus>& ranks) {
  std::map<std::pair<std::string, std::vector<std::string>>, std::vector<std::size_t>> alike;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    alike[{ranks[r].host, ranks[r].ids}].push_back(r);
  }
  std::vector<int> chosen(ranks.size(), 0);
  for (const auto& [sight, of_sight] : alike) {
    const std::size_t gpus = sight.second.size();
    if (of_sight.size() > gpus) {
      fail(
          ErrorKind::kUsage,
          fmt::format("host {} has {} GPU{} for {} ranks (rank {}: {}); start at most one rank for "
                      "each GPU, or set train.device: cpu",
                      sight.first, gpus, gpus == 1 ? "" : "s", of_sight.size(), of_sight[gpus],
                      value_text(ranks[of_sight[gpus]])));
    }
    for (std::size_t i = 0; i < of_sight.size(); ++i) chosen[of_sight[i]] = static_cast<int>(i);
  }
  return chosen;
}

void require_own_gpus(const std::vector<VisibleGpus>& ranks, const std::vector<int>& chosen) {
  std::map<std::pair<std::string, std::string>, std::size_t> owner;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const std::string& id = ranks[r].ids[static_cast<std::size_t>(chosen[r])];
    const auto [taken, is_new] = owner.emplace(std::pair(ranks[r].host, id), r);
    if (is_new) continue;
    const std::size_t other = taken->second;
    fail(ErrorKind::kUsage,
         fmt::format("ranks {} and {} on host {} both take GPU {} (rank {}: {}; rank {}: {}); give "
                     "each rank a GPU of its own, or all ranks the same CUDA_VISIBLE_DEVICES",
                     other, r, ranks[r].host, id, other, value_text(ranks[other]), r,
                     value_text(ranks[r])));
  }
}

}  // namespace

std::vector<int> choose_gpus(const std::vector<VisibleGpus>& ranks, GpuDemand demand) {
  for (std::size_t r = 0; r < ranks.size(); ++r) require_sound_variable(ranks, r, demand);
  const bool none =
      std::ranges::all_of(ranks, [](const VisibleGpus& rank) { return rank.ids.empty(); });
  if (none && demand == GpuDemand::kIfThereAre) return {};
  require_gpus(ranks, demand);
  std::vector<int> chosen = choose_in_order(ranks);
  require_own_gpus(ranks, chosen);
  return chosen;
}

// Lines: the host, "driver" or "none", the number of GPUs and one for each; what follows, if
// anything, is "=" and the variable.
std::vector<VisibleGpus> gather_visible_gpus(Communicator& comm, const VisibleGpus& mine) {
  std::string text = mine.host + "\n" + (mine.has_driver ? "driver\n" : "none\n") +
                     std::to_string(mine.ids.size()) + "\n";
  for (const std::string& id : mine.ids) text += id + "\n";
  if (mine.variable) text += "=" + *mine.variable;
  std::vector<VisibleGpus> ranks;
  for (const std::string& of_rank : gather_texts(comm, "visible GPUs", text)) {
    std::istringstream in(of_rank);
    VisibleGpus rank;
    std::string line;
    std::getline(in, rank.host);
    std::getline(in, line);
    rank.has_driver = line == "driver";
    std::getline(in, line);
    for (int left = std::stoi(line); left > 0; --left) {
      rank.ids.emplace_back();
      std::getline(in, rank.ids.back());
    }
    std::ostringstream rest;
    if (in.get() == '=') {
      if (in.peek() != std::istringstream::traits_type::eof()) rest << in.rdbuf();
      rank.variable = rest.str();
    }
    ranks.push_back(std::move(rank));
  }
  return ranks;
}

}  // namespace k25::parallel
