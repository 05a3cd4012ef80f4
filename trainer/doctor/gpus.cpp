#include "trainer/doctor/gpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>

namespace k25::trainer {
namespace {

std::string path_text(GpuPath path) {
  switch (path) {
    case GpuPath::kNvlink:
      return "NVLink";
    case GpuPath::kBoard:
      return "one board";
    case GpuPath::kSwitch:
      return "a PCIe switch";
    case GpuPath::kHostBridge:
      return "the PCIe host bridge";
    case GpuPath::kNumaNode:
      return "the CPU of one NUMA node";
    case GpuPath::kSockets:
      return "the link between CPU sockets";
  }
  return "";
}

Finding none_found(const GpuView& view) {
  Finding f{.severity = Severity::kNote,
            .topic = "gpu",
            .consequence = "training runs on the CPU here",
            .mend = "on a machine with a GPU: install NVIDIA's driver; in a container: --gpus all"};
  f.found = !view.host.has_library
                ? "no GPU: NVIDIA's driver library (libnvidia-ml.so.1) is not here"
            : !view.host.problem.empty() ? "no GPU: " + view.host.problem
                                         : "NVIDIA's driver is here, but it shows no GPU";
  return f;
}

Finding describe(const GpuFacts& gpu) {
  std::string text = fmt::format("{} {} at {}: {} bytes ({:.3f} GiB)", gpu.index, gpu.name, gpu.bus,
                                 gpu.memory.n, static_cast<double>(gpu.memory.n) / 0x1p30);
  if (gpu.pcie_width) text += fmt::format(", PCIe x{}", *gpu.pcie_width);
  if (gpu.pcie_generation) text += fmt::format(" generation {}", *gpu.pcie_generation);
  text += fmt::format(", {} NVLinks", gpu.nvlinks);
  return {.topic = "gpu", .found = text};
}

void check_health(const GpuFacts& gpu, std::vector<Finding>& found) {
  const auto add = [&](Severity severity, const std::string& what, const std::string& consequence,
                       const std::string& mend) {
    found.push_back({.severity = severity,
                     .topic = "gpu",
                     .found = fmt::format("{} {}", gpu.index, what),
                     .consequence = consequence,
                     .mend = mend});
  };
  if (gpu.uncorrected_errors.value_or(0) > 0) {
    add(Severity::kWarning,
        fmt::format("has {} uncorrected memory errors since it was reset", *gpu.uncorrected_errors),
        "wrong numbers or a lost device in the middle of a run",
        "reset it (nvidia-smi -r, root), and replace it when they come back");
  }
  if (gpu.partitioned.value_or(false)) {
    add(Severity::kWarning, "is partitioned (MIG)",
        "a process sees one part of it, and NCCL does not connect parts",
        "nvidia-smi -mig 0 (root), or train on one part alone");
  }
  constexpr std::int64_t kIdle = std::int64_t{1} << 30;
  if (gpu.used.n > kIdle) {
    add(Severity::kWarning,
        fmt::format("has {} bytes ({:.3f} GiB) in use already", gpu.used.n,
                    static_cast<double>(gpu.used.n) / 0x1p30),
        "another process computes there or was left behind: less memory and speed",
        "nvidia-smi names the processes");
  }
  if (gpu.pcie_width && gpu.pcie_max_width && *gpu.pcie_width < *gpu.pcie_max_width) {
    add(Severity::kWarning,
        fmt::format("has a PCIe link of x{} where x{} is possible", *gpu.pcie_width,
                    *gpu.pcie_max_width),
        "copies between host and GPU take longer by that factor",
        "another slot or riser, or the firmware's lane settings");
  }
  if (!gpu.persistent.value_or(true)) {
    add(Severity::kNote, "is not in persistence mode",
        "the driver unloads between runs, so that each start takes seconds longer",
        "nvidia-smi -pm 1 (root)");
  }
}

std::vector<Finding> check_links(const GpuHost& host) {
  std::map<GpuPath, std::string> by_path;
  for (const GpuPair& pair : host.pairs) {
    std::string& list = by_path[pair.path];
    list += fmt::format("{}{}-{}", list.empty() ? "" : ", ", pair.a, pair.b);
  }
  std::vector<Finding> found;
  for (const auto& [path, list] : by_path) {
    Finding f{.topic = "links", .found = fmt::format("GPUs {} through {}", list, path_text(path))};
    if (path != GpuPath::kNvlink) {
      f.severity = path == GpuPath::kSockets ? Severity::kWarning : Severity::kNote;
      f.consequence =
          "gathers and reductions run at PCIe speed, some 20 GB/s, and may not hide behind "
          "computing";
      f.mend = "fewer ranks on this host, a larger micro_batch or more accumulation";
    }
    found.push_back(f);
  }
  return found;
}

void check_counts(const GpuView& view, std::size_t ranks, std::vector<Finding>& found) {
  const auto count = static_cast<int>(view.host.gpus.size());
  if (!view.built_for_gpus) {
    found.push_back({.severity = Severity::kWarning,
                     .topic = "gpu",
                     .found = fmt::format("{} GPUs, but this k25 was built without CUDA", count),
                     .consequence = "training runs on the CPU",
                     .mend = "configure with the preset h200 or cuda-portable"});
    return;
  }
  if (view.visible < count) {
    const char* const value = std::getenv("CUDA_VISIBLE_DEVICES");
    found.push_back(
        {.severity = Severity::kNote,
         .topic = "gpu",
         .found = fmt::format("CUDA shows {} of {} GPUs (CUDA_VISIBLE_DEVICES is {})", view.visible,
                              count, value == nullptr ? "not set" : value),
         .consequence = "the others are not used",
         .mend = "unset CUDA_VISIBLE_DEVICES, or name all that are wanted"});
  }
  if (static_cast<int>(ranks) > view.visible) {
    found.push_back({.severity = Severity::kWarning,
                     .topic = "gpu",
                     .found = fmt::format("{} ranks for {} GPUs", ranks, view.visible),
                     .consequence = "k25 train ends with code 2: one rank for each GPU",
                     .mend = fmt::format("mpirun -np {}", view.visible)});
  }
}

/// A rank that may not run near its GPU.
void check_places(const HostFiles& files, const GpuView& view,
                  const std::vector<RankBinding>& ranks, std::vector<Finding>& found) {
  const std::vector<NumaNode> nodes = numa_nodes(files);
  for (std::size_t i = 0; i < std::min(ranks.size(), view.host.gpus.size()); ++i) {
    const GpuFacts& gpu = view.host.gpus[i];
    const std::string home = files.line("sys/bus/pci/devices/" + gpu.bus + "/numa_node");
    const auto node = std::ranges::find_if(
        nodes, [&](const NumaNode& n) { return std::to_string(n.number) == home; });
    if (node == nodes.end()) continue;
    const bool near = std::ranges::any_of(node->cpus, [&](int cpu) {
      return std::ranges::find(ranks[i].cpus, cpu) != ranks[i].cpus.end();
    });
    if (near) continue;
    found.push_back(
        {.severity = Severity::kWarning,
         .topic = "binding",
         .found = fmt::format("rank {} runs on cpus {}, its GPU {} is on NUMA node {}",
                              ranks[i].rank, cpu_list_text(ranks[i].cpus), gpu.index, node->number),
         .consequence = "launches and copies cross the link between CPU sockets",
         .mend = "mpirun --bind-to none, or bind that rank to cpus " + cpu_list_text(node->cpus)});
  }
}

}  // namespace

std::vector<Finding> check_gpus(const HostFiles& files, const GpuView& view,
                                const std::vector<RankBinding>& ranks) {
  if (view.host.gpus.empty()) return {none_found(view)};
  std::vector<Finding> found;
  for (const GpuFacts& gpu : view.host.gpus) {
    found.push_back(describe(gpu));
    check_health(gpu, found);
  }
  for (Finding& f : check_links(view.host)) found.push_back(std::move(f));
  check_counts(view, ranks.size(), found);
  check_places(files, view, ranks, found);
  return found;
}

}  // namespace k25::trainer
