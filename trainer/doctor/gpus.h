#pragma once
// What the GPUs of a host mean for a run.

#include <vector>

#include "trainer/doctor/binding.h"
#include "trainer/doctor/finding.h"
#include "trainer/doctor/nvml.h"

namespace k25::trainer {

struct GpuView {
  GpuHost host;
  bool built_for_gpus = false;  ///< a CUDA build
  int visible = 0;              ///< to this process (CUDA_VISIBLE_DEVICES), in a CUDA build
};

/// `ranks`: all of this host, the n-th takes GPU n.
std::vector<Finding> check_gpus(const HostFiles& files, const GpuView& view,
                                const std::vector<RankBinding>& ranks);

}  // namespace k25::trainer
