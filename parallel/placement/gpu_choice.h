#pragma once
// Which GPU each rank takes, and what is wrong with the GPUs that the ranks see.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"

namespace k25::parallel {

/// What one rank sees.
struct VisibleGpus {
  std::string host;
  std::optional<std::string> variable;  ///< CUDA_VISIBLE_DEVICES; absent: not set
  std::vector<std::string> ids;         ///< one name for each GPU, the same on every rank
  bool has_driver = true;               ///< of NVIDIA
};

enum class GpuDemand : std::uint8_t {
  kRequired,    ///< every rank needs one
  kIfThereAre,  ///< all ranks have one, or no rank does
};

/// The index, among the GPUs that it sees, of each rank's; empty: the job runs without GPUs.
/// Ranks of a host that see the same GPUs take them in order. A function of its arguments alone, so
/// that all ranks come to one answer.
/// Errors  kUsage, naming rank, host, value and the mend: CUDA_VISIBLE_DEVICES names a GPU twice or
/// one that is not there, a rank sees none, more ranks than GPUs, two ranks with one GPU.
std::vector<int> choose_gpus(const std::vector<VisibleGpus>& ranks, GpuDemand demand);

/// Collective: what every rank sees, by rank.
std::vector<VisibleGpus> gather_visible_gpus(Communicator& comm, const VisibleGpus& mine);

}  // namespace k25::parallel
