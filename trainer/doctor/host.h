#pragma once
// What one host offers, read from the system and never changed.

#include <filesystem>
#include <string>
#include <vector>

#include "kernels/core/dtype.h"
#include "parallel/placement/cpu_list.h"
#include "trainer/doctor/finding.h"

namespace k25::trainer {

/// Where the kernel's files are read: "/", or a copy of it in tests.
struct HostFiles {
  std::filesystem::path root = "/";
  /// The first line, "" when there is none.
  std::string line(const std::string& path) const;
  std::filesystem::path at(const std::string& path) const { return root / path; }
};

using parallel::cpu_list;
using parallel::cpu_list_text;

struct NumaNode {
  int number = 0;
  std::vector<int> cpus;
  Bytes memory;
};
std::vector<NumaNode> numa_nodes(const HostFiles& files);

/// Limits of this process and the room in /dev/shm.
struct HostLimits {
  std::int64_t memlock = 0, open_files = 0;  ///< -1: no limit
  Bytes shm_free, shm_size;
  int local_ranks = 1;
};
HostLimits host_limits(int local_ranks);

/// What k25 and its libraries take of /dev/shm for each rank of a host: Open MPI's segment and
/// NCCL's buffers between ranks without NVLink.
inline constexpr Bytes kShmOfRank{std::int64_t{32} << 20};

std::vector<Finding> check_kernel(const HostFiles& files);
std::vector<Finding> check_numa(const std::vector<NumaNode>& nodes);
std::vector<Finding> check_limits(const HostFiles& files, const HostLimits& limits);
/// Where run.dir lies or would lie; a warning where no run could begin.
std::vector<Finding> check_run_dir(const std::filesystem::path& run_dir);

}  // namespace k25::trainer
