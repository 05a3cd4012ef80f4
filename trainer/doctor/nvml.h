#pragma once
// The GPUs of a host as NVIDIA's management library shows them. It is loaded when it is there, so
// that a build without CUDA sees them too; nothing of it is changed.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/core/dtype.h"

namespace k25::trainer {

/// What could not be read is absent.
struct GpuFacts {
  int index = 0;
  std::string name, bus;  ///< "0000:1b:00.0", as in /sys/bus/pci/devices
  Bytes memory, used;
  std::optional<int> pcie_width, pcie_max_width, pcie_generation;
  int nvlinks = 0;  ///< active
  std::optional<std::int64_t> uncorrected_errors;
  std::optional<bool> persistent, partitioned;  ///< persistence mode; MIG
};

/// How two GPUs reach each other, nearest first.
enum class GpuPath : std::uint8_t { kNvlink, kBoard, kSwitch, kHostBridge, kNumaNode, kSockets };

struct GpuPair {
  int a = 0, b = 0;
  GpuPath path = GpuPath::kSockets;
};

struct GpuHost {
  bool has_library = false;
  std::string problem;  ///< the library is there and does not answer
  std::string driver;
  std::vector<GpuFacts> gpus;
  std::vector<GpuPair> pairs;
};

/// `library`: "libnvidia-ml.so.1".
GpuHost read_gpus(const char* library);

}  // namespace k25::trainer
