#pragma once
// Which CPUs the ranks of a host may use, and what follows from it.

#include <string>
#include <vector>

#include "trainer/doctor/finding.h"
#include "trainer/doctor/host.h"

namespace k25::trainer {

struct RankBinding {
  int rank = 0;
  std::string host;
  std::vector<int> cpus;  ///< of its affinity mask
};

using parallel::cpus_of_process;

/// `ranks`: all of one host. `nodes`: of that host.
std::vector<Finding> check_binding(const std::vector<RankBinding>& ranks,
                                   const std::vector<NumaNode>& nodes);

}  // namespace k25::trainer
