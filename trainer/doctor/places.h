#pragma once
// Where the ranks of a host would run.

#include <string>
#include <vector>

#include "parallel/placement/topology.h"
#include "trainer/doctor/binding.h"
#include "trainer/doctor/finding.h"

namespace k25::trainer {

/// A line for each rank: GPU, NUMA node, network card, and the CPUs of an update on the host.
/// `ranks`: all of one host, the n-th takes the n-th of `gpus`, PCI addresses. What is wrong with
/// the binding, check_binding and check_gpus say.
std::vector<Finding> describe_places(const parallel::Topology& topology,
                                     const std::vector<RankBinding>& ranks,
                                     const std::vector<std::string>& gpus);

}  // namespace k25::trainer
