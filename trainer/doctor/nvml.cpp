#include "trainer/doctor/nvml.h"

#include <dlfcn.h>

#include <algorithm>
#include <cctype>
#include <memory>
#include <type_traits>

namespace k25::trainer {
namespace {

// The library's C interface, as far as it is used here.
using Handle = void*;
struct Memory {
  unsigned long long total, free, used;
};
struct PciInfo {
  char legacy_bus[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};

constexpr unsigned kMostLinks = 18;
constexpr int kUncorrected = 1, kSinceBoot = 0;

/// The library for the time of one reading.
class Nvml {
 public:
  explicit Nvml(const char* library) : handle_(dlopen(library, RTLD_NOW | RTLD_LOCAL), close) {}
  ~Nvml() {
    if (ready_) call<int()>("nvmlShutdown");
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  bool loaded() const { return handle_ != nullptr; }
  bool start() { return ready_ = ok<int()>("nvmlInit_v2"); }

  /// Whether the function exists and succeeds.
  template <class Signature, class... Arguments>
  bool ok(const char* name, Arguments... arguments) const {
    return call<Signature>(name, arguments...) == 0;
  }
  template <class Value, class... Arguments>
  std::optional<Value> value(const char* name, Handle device, Arguments... arguments) const {
    Value value{};
    if (!ok<int(Handle, std::type_identity_t<Arguments>..., Value*)>(name, device, arguments...,
                                                                     &value)) {
      return std::nullopt;
    }
    return value;
  }

 private:
  static void close(void* handle) {
    if (handle != nullptr) dlclose(handle);
  }
  template <class Signature, class... Arguments>
  int call(const char* name, Arguments... arguments) const {
    auto* const function = reinterpret_cast<Signature*>(dlsym(handle_.get(), name));
    return function == nullptr ? -1 : function(arguments...);
  }

  std::unique_ptr<void, void (*)(void*)> handle_;
  bool ready_ = false;
};

/// As the kernel names the device: four digits of domain, lower case.
std::string bus_name(const char* bus) {
  std::string name(bus);
  std::ranges::transform(name, name.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const std::size_t colon = name.find(':');
  if (colon != std::string::npos && colon > 4) name.erase(0, colon - 4);
  return name;
}

GpuFacts facts_of(const Nvml& nvml, Handle device, int index) {
  GpuFacts gpu{.index = index};
  char name[128] = "";
  if (nvml.ok<int(Handle, char*, unsigned)>("nvmlDeviceGetName", device, &name[0],
                                            static_cast<unsigned>(sizeof name))) {
    gpu.name = name;
  }
  if (const auto memory = nvml.value<Memory>("nvmlDeviceGetMemoryInfo", device)) {
    gpu.memory = Bytes{static_cast<std::int64_t>(memory->total)};
    gpu.used = Bytes{static_cast<std::int64_t>(memory->used)};
  }
  if (const auto pci = nvml.value<PciInfo>("nvmlDeviceGetPciInfo_v3", device)) {
    gpu.bus = bus_name(pci->bus_id);
  }
  const auto number = [&](const char* function) -> std::optional<int> {
    const auto value = nvml.value<unsigned>(function, device);
    return value ? std::optional(static_cast<int>(*value)) : std::nullopt;
  };
  gpu.pcie_width = number("nvmlDeviceGetCurrPcieLinkWidth");
  gpu.pcie_max_width = number("nvmlDeviceGetMaxPcieLinkWidth");
  gpu.pcie_generation = number("nvmlDeviceGetMaxPcieLinkGeneration");
  for (unsigned link = 0; link < kMostLinks; ++link) {
    gpu.nvlinks += nvml.value<int>("nvmlDeviceGetNvLinkState", device, link).value_or(0);
  }
  if (const auto errors = nvml.value<unsigned long long>("nvmlDeviceGetTotalEccErrors", device,
                                                         kUncorrected, kSinceBoot)) {
    gpu.uncorrected_errors = static_cast<std::int64_t>(*errors);
  }
  if (const auto mode = nvml.value<int>("nvmlDeviceGetPersistenceMode", device)) {
    gpu.persistent = *mode != 0;
  }
  unsigned now = 0, pending = 0;
  if (nvml.ok<int(Handle, unsigned*, unsigned*)>("nvmlDeviceGetMigMode", device, &now, &pending)) {
    gpu.partitioned = now != 0;
  }
  return gpu;
}

GpuPath path_of(const Nvml& nvml, Handle a, Handle b, bool nvlink) {
  if (nvlink) return GpuPath::kNvlink;
  const int level = nvml.value<int>("nvmlDeviceGetTopologyCommonAncestor", a, b).value_or(50);
  if (level <= 0) return GpuPath::kBoard;
  if (level <= 20) return GpuPath::kSwitch;
  if (level <= 30) return GpuPath::kHostBridge;
  return level <= 40 ? GpuPath::kNumaNode : GpuPath::kSockets;
}

}  // namespace

GpuHost read_gpus(const char* library) {
  GpuHost host;
  Nvml nvml(library);
  host.has_library = nvml.loaded();
  if (!host.has_library) return host;
  if (!nvml.start()) {
    host.problem = "the driver does not answer";
    return host;
  }
  char driver[128] = "";
  nvml.ok<int(char*, unsigned)>("nvmlSystemGetDriverVersion", &driver[0],
                                static_cast<unsigned>(sizeof driver));
  host.driver = driver;
  unsigned count = 0;
  nvml.ok<int(unsigned*)>("nvmlDeviceGetCount_v2", &count);
  std::vector<Handle> devices;
  for (unsigned i = 0; i < count; ++i) {
    Handle device = nullptr;
    if (!nvml.ok<int(unsigned, Handle*)>("nvmlDeviceGetHandleByIndex_v2", i, &device)) continue;
    devices.push_back(device);
    host.gpus.push_back(facts_of(nvml, device, static_cast<int>(i)));
  }
  for (std::size_t a = 0; a < devices.size(); ++a) {
    for (std::size_t b = a + 1; b < devices.size(); ++b) {
      // All links of a server's GPUs lead to the same switches, or straight to each other.
      const bool nvlink = host.gpus[a].nvlinks > 0 && host.gpus[b].nvlinks > 0;
      host.pairs.push_back(
          {host.gpus[a].index, host.gpus[b].index, path_of(nvml, devices[a], devices[b], nvlink)});
    }
  }
  return host;
}

}  // namespace k25::trainer
