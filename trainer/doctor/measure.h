#pragma once
// The ceilings of this machine, measured on all ranks at once, as a run uses it.

#include <string>

#include "trainer/plan/ceilings.h"
#include "trainer/train/runtime.h"

namespace k25::trainer {

/// Collective; takes some seconds. The rate of the slowest rank; transfers between ranks when there
/// are several. In bf16 on GPUs, in fp32 on the CPU.
CeilingsFile measure_ceilings(Runtime& runtime);

/// Threads that a rank may have when the ranks of its host share its CPUs fairly.
std::int64_t fair_threads(const parallel::World& world);

}  // namespace k25::trainer
