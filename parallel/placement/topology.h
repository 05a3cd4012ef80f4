#pragma once
// What a host is made of, as far as the placement of ranks asks for it.

#include <cstdint>
#include <string>
#include <vector>

namespace k25::parallel {

/// One physical core and its hardware threads, by their CPU numbers.
struct TopologyCore {
  int numa_node = -1;
  std::vector<int> cpus;
};

/// A GPU or a network card.
struct TopologyDevice {
  std::string name;                    ///< GPU: "0000:1b:00.0"; card: "mlx5_0"
  int numa_node = -1;                  ///< -1: the system does not say
  std::vector<std::uint64_t> bridges;  ///< PCI bridges above it, from the root
};

/// Cores in the order of the machine (neighbours share caches); no core: nothing is known.
struct Topology {
  std::vector<TopologyCore> cores;
  std::vector<TopologyDevice> gpus, nics;
};

enum class TopologySource : std::uint8_t { kMachine, kSynthetic, kXml };

/// By hwloc: this machine, or one that `text` describes. What cannot be read is empty.
Topology read_topology(TopologySource source = TopologySource::kMachine,
                       const std::string& text = "");

/// A PCI address as `Topology` names it: "00000000:1B:00.0" becomes "0000:1b:00.0". Text that is no
/// address stays as it is.
std::string normal_bus(const std::string& bus);

}  // namespace k25::parallel
