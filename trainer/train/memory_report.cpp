#include "trainer/train/memory_report.h"

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "data/io/atomic_file.h"

namespace k25::trainer {
namespace {

using Json = nlohmann::ordered_json;

struct Place {
  const char* name;
  Allocator* allocator;
};

std::vector<Place> places(Runtime& runtime) {
  if (runtime.device() == Device::kCpu) return {{"host", &runtime.allocator()}};
  return {{"device", &runtime.allocator()}, {"pinned", &runtime.host_allocator()}};
}

// The most that this process ever had resident, libraries and files mapped included.
std::int64_t peak_resident() {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("VmHWM:")) return 1024 * std::strtoll(line.c_str() + 6, nullptr, 10);
  }
  return 0;
}

}  // namespace

std::string memory_json(Runtime& runtime, const MemoryPlan& plan) {
  std::map<std::pair<std::string, Allocator*>, std::int64_t> taken;
  Json allocations = Json::array(), peaks;
  for (const Place& place : places(runtime)) {
    for (const Allocation& a : place.allocator->allocations()) {
      const std::string name = *a.name == '\0' ? "other" : a.name;
      taken[{name, place.allocator}] += a.size.n;
      allocations.push_back({{"category", name}, {"bytes", a.size.n}, {"where", place.name}});
    }
    peaks[place.name] = place.allocator->peak().n;
  }
  Json categories = Json::array();
  for (const MemoryRow& row : plan.rows()) {
    Json line = {{"category", row.name},
                 {"planned_bytes", row.device.n},
                 {"allocated_bytes", taken[{row.name, &runtime.allocator()}]}};
    if (runtime.device() == Device::kCuda) {
      line["planned_host_bytes"] = row.host.n;
      line["allocated_host_bytes"] = taken[{row.name, &runtime.host_allocator()}];
    }
    categories.push_back(std::move(line));
  }
  Json json = {{"format", "k25 memory 1"},
               {"rank", runtime.world().rank()},
               {"ranks", runtime.world().size()},
               {"device", runtime.device_name()},
               {"planned_peak_bytes", plan.total().n},
               {"measured_peak_bytes", runtime.allocator().peak().n}};
  if (const auto total = runtime.device_memory()) {
    // Other processes, the CUDA context and what libraries took for themselves included.
    json["device_in_use_bytes"] = total->n - runtime.memory_budget().n;
  }
  json["peak_resident_bytes"] = peak_resident();
  json["peak_bytes"] = peaks;
  json["categories"] = categories;
  json["allocations"] = allocations;
  return json.dump(1) + "\n";
}

void write_memory_report(Runtime& runtime, const MemoryPlan& plan,
                         const std::filesystem::path& run_dir) {
  data::write_file_atomically(run_dir / "memory.json", memory_json(runtime, plan),
                              ErrorKind::kCheckpoint);
}

}  // namespace k25::trainer
