#include "parallel/placement/topology.h"

#include <fmt/format.h>
#include <hwloc.h>

#include <algorithm>
#include <cstdio>

namespace k25::parallel {
namespace {

class Hwloc {
 public:
  Hwloc() { hwloc_topology_init(&topology_); }
  ~Hwloc() { hwloc_topology_destroy(topology_); }
  Hwloc(const Hwloc&) = delete;
  Hwloc& operator=(const Hwloc&) = delete;
  hwloc_topology_t get() const { return topology_; }

 private:
  hwloc_topology_t topology_ = nullptr;
};

bool load(hwloc_topology_t topology, TopologySource source, const std::string& text) {
  // Components that would open a context on every GPU; PCI says enough.
  for (const char* name : {"cuda", "nvml", "opencl", "rsmi", "levelzero", "gl"}) {
    hwloc_topology_set_components(topology, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, name);
  }
  hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  int refused = 0;
  if (source == TopologySource::kSynthetic) {
    refused = hwloc_topology_set_synthetic(topology, text.c_str());
  } else if (source == TopologySource::kXml) {
    refused =
        hwloc_topology_set_xmlbuffer(topology, text.c_str(), static_cast<int>(text.size()) + 1);
  }
  return refused == 0 && hwloc_topology_load(topology) == 0;
}

/// The only node of a set, else -1.
int node_of(hwloc_const_nodeset_t nodes) {
  return nodes != nullptr && hwloc_bitmap_weight(nodes) == 1 ? hwloc_bitmap_first(nodes) : -1;
}

std::vector<TopologyCore> cores_of(hwloc_topology_t topology) {
  // Some virtual machines show hardware threads alone.
  const bool has_cores = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE) > 0;
  const hwloc_obj_type_t type = has_cores ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
  std::vector<TopologyCore> cores;
  for (hwloc_obj_t obj = nullptr;
       (obj = hwloc_get_next_obj_by_type(topology, type, obj)) != nullptr;) {
    // Beside two kinds of memory a core has two nodes; the first is the common one.
    TopologyCore core{.numa_node = hwloc_bitmap_first(obj->nodeset)};
    for (int cpu = hwloc_bitmap_first(obj->cpuset); cpu >= 0;
         cpu = hwloc_bitmap_next(obj->cpuset, cpu)) {
      core.cpus.push_back(cpu);
    }
    if (!core.cpus.empty()) cores.push_back(std::move(core));
  }
  return cores;
}

TopologyDevice describe(hwloc_topology_t topology, hwloc_obj_t obj, std::string name) {
  TopologyDevice device{.name = std::move(name)};
  const hwloc_obj_t place = hwloc_get_non_io_ancestor_obj(topology, obj);
  if (place != nullptr) device.numa_node = node_of(place->nodeset);
  for (hwloc_obj_t up = obj->parent; up != nullptr; up = up->parent) {
    if (up->type == HWLOC_OBJ_BRIDGE) device.bridges.push_back(up->gp_index);
  }
  std::ranges::reverse(device.bridges);
  return device;
}

std::string bus_text(hwloc_obj_t obj) {
  const auto& pci = obj->attr->pcidev;
  return fmt::format("{:04x}:{:02x}:{:02x}.{:x}", static_cast<unsigned>(pci.domain),
                     static_cast<unsigned>(pci.bus), static_cast<unsigned>(pci.dev),
                     static_cast<unsigned>(pci.func));
}

std::vector<TopologyDevice> gpus_of(hwloc_topology_t topology) {
  constexpr int kDisplayClass = 0x03;
  std::vector<TopologyDevice> gpus;
  for (hwloc_obj_t obj = nullptr; (obj = hwloc_get_next_pcidev(topology, obj)) != nullptr;) {
    if (obj->attr->pcidev.class_id >> 8 == kDisplayClass) {
      gpus.push_back(describe(topology, obj, bus_text(obj)));
    }
  }
  return gpus;
}

/// InfiniBand devices, and only without any the others: a card may show both faces.
std::vector<TopologyDevice> nics_of(hwloc_topology_t topology) {
  for (const hwloc_obj_osdev_type_t type : {HWLOC_OBJ_OSDEV_OPENFABRICS, HWLOC_OBJ_OSDEV_NETWORK}) {
    std::vector<TopologyDevice> nics;
    for (hwloc_obj_t obj = nullptr; (obj = hwloc_get_next_osdev(topology, obj)) != nullptr;) {
      const bool on_pci = obj->parent != nullptr && obj->parent->type == HWLOC_OBJ_PCI_DEVICE;
      if (obj->attr->osdev.type == type && on_pci && obj->name != nullptr) {
        nics.push_back(describe(topology, obj, obj->name));
      }
    }
    if (!nics.empty()) return nics;
  }
  return {};
}

}  // namespace

Topology read_topology(TopologySource source, const std::string& text) {
  const Hwloc hwloc;
  if (!load(hwloc.get(), source, text)) return {};
  return {
      .cores = cores_of(hwloc.get()), .gpus = gpus_of(hwloc.get()), .nics = nics_of(hwloc.get())};
}

std::string normal_bus(const std::string& bus) {
  unsigned domain = 0, number = 0, device = 0, function = 0;
  int end = 0;
  const int found =
      std::sscanf(bus.c_str(), "%x:%x:%x.%x%n", &domain, &number, &device, &function, &end);
  if (found != 4 || static_cast<std::size_t>(end) != bus.size()) return bus;
  return fmt::format("{:04x}:{:02x}:{:02x}.{:x}", domain, number, device, function);
}

}  // namespace k25::parallel
