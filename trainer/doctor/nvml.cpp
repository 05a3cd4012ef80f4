#include "trainer/doctor/nvml.h"

#include <algorithm>
#include <cctype>

#include "trainer/watch/nvml_library.h"

namespace k25::trainer {
namespace {

using nvml::Handle;

constexpr unsigned kMostLinks = 18;

/// As the kernel names the device: four digits of domain, lower case.
std::string bus_name(const char* bus) {
  std::string name(bus);
  std::ranges::transform(name, name.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const std::size_t colon = name.find(':');
  if (colon != std::string::npos && colon > 4) name.erase(0, colon - 4);
  return name;
}

GpuFacts facts_of(const NvmlLibrary& library, Handle device, int index) {
  GpuFacts gpu{.index = index};
  char name[128] = "";
  if (library.ok<int(Handle, char*, unsigned)>("nvmlDeviceGetName", device, &name[0],
                                               static_cast<unsigned>(sizeof name))) {
    gpu.name = name;
  }
  if (const auto memory = library.value<nvml::Memory>("nvmlDeviceGetMemoryInfo", device)) {
    gpu.memory = Bytes{static_cast<std::int64_t>(memory->total)};
    gpu.used = Bytes{static_cast<std::int64_t>(memory->used)};
  }
  if (const auto pci = library.value<nvml::PciInfo>("nvmlDeviceGetPciInfo_v3", device)) {
    gpu.bus = bus_name(pci->bus_id);
  }
  const auto number = [&](const char* function) -> std::optional<int> {
    const auto value = library.value<unsigned>(function, device);
    return value ? std::optional(static_cast<int>(*value)) : std::nullopt;
  };
  gpu.pcie_width = number("nvmlDeviceGetCurrPcieLinkWidth");
  gpu.pcie_max_width = number("nvmlDeviceGetMaxPcieLinkWidth");
  gpu.pcie_generation = number("nvmlDeviceGetMaxPcieLinkGeneration");
  for (unsigned link = 0; link < kMostLinks; ++link) {
    gpu.nvlinks += library.value<int>("nvmlDeviceGetNvLinkState", device, link).value_or(0);
  }
  if (const auto errors = library.value<unsigned long long>("nvmlDeviceGetTotalEccErrors", device,
                                                            nvml::kUncorrected, nvml::kSinceBoot)) {
    gpu.uncorrected_errors = static_cast<std::int64_t>(*errors);
  }
  if (const auto mode = library.value<int>("nvmlDeviceGetPersistenceMode", device)) {
    gpu.persistent = *mode != 0;
  }
  unsigned now = 0, pending = 0;
  if (library.ok<int(Handle, unsigned*, unsigned*)>("nvmlDeviceGetMigMode", device, &now,
                                                    &pending)) {
    gpu.partitioned = now != 0;
  }
  return gpu;
}

GpuPath path_of(const NvmlLibrary& library, Handle a, Handle b, bool nvlink) {
  if (nvlink) return GpuPath::kNvlink;
  const int level = library.value<int>("nvmlDeviceGetTopologyCommonAncestor", a, b).value_or(50);
  if (level <= 0) return GpuPath::kBoard;
  if (level <= 20) return GpuPath::kSwitch;
  if (level <= 30) return GpuPath::kHostBridge;
  return level <= 40 ? GpuPath::kNumaNode : GpuPath::kSockets;
}

}  // namespace

GpuHost read_gpus(const char* name) {
  GpuHost host;
  NvmlLibrary library(name);
  host.has_library = library.loaded();
  if (!host.has_library) return host;
  if (!library.start()) {
    host.problem = "the driver does not answer";
    return host;
  }
  char driver[128] = "";
  library.ok<int(char*, unsigned)>("nvmlSystemGetDriverVersion", &driver[0],
                                   static_cast<unsigned>(sizeof driver));
  host.driver = driver;
  unsigned count = 0;
  library.ok<int(unsigned*)>("nvmlDeviceGetCount_v2", &count);
  std::vector<Handle> devices;
  for (unsigned i = 0; i < count; ++i) {
    Handle device = nullptr;
    if (!library.ok<int(unsigned, Handle*)>("nvmlDeviceGetHandleByIndex_v2", i, &device)) continue;
    devices.push_back(device);
    host.gpus.push_back(facts_of(library, device, static_cast<int>(i)));
  }
  for (std::size_t a = 0; a < devices.size(); ++a) {
    for (std::size_t b = a + 1; b < devices.size(); ++b) {
      // All links of a server's GPUs lead to the same switches, or straight to each other.
      const bool nvlink = host.gpus[a].nvlinks > 0 && host.gpus[b].nvlinks > 0;
      host.pairs.push_back({host.gpus[a].index, host.gpus[b].index,
                            path_of(library, devices[a], devices[b], nvlink)});
    }
  }
  return host;
}

}  // namespace k25::trainer
