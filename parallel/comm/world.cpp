#include "parallel/comm/world.h"

#include <fmt/format.h>

#include <cstdlib>
#include <string>

#include "kernels/core/check.h"
#include "parallel/comm/mpi_backend.h"
#include "parallel/comm/single_backend.h"

namespace k25::parallel {

std::chrono::milliseconds start_timeout() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"}) {
    const char* ranks = std::getenv(name);
    if (ranks != nullptr) return std::chrono::seconds(std::atoi(ranks) <= 64 ? 20 : 60);
  }
  return std::chrono::seconds(60);
}

bool launched_by_mpi() {
  // Open MPI's mpirun; any PMIx launcher (srun --mpi=pmix); PMI-1 and PMI-2 (hydra, srun
  // --mpi=pmi2).
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"}) {
    if (std::getenv(name) != nullptr) return true;
  }
  return false;
}

std::unique_ptr<World> World::create(const WorldOptions& options) {
  if (launched_by_mpi()) return make_mpi_world(options);
  // NOTE: srun without an MPI plugin starts N processes that would each train alone.
  const char* tasks = std::getenv("SLURM_STEP_NUM_TASKS");
  if (tasks != nullptr && std::atoi(tasks) > 1) {
    fail(ErrorKind::kUsage,
         fmt::format("srun started {} tasks without MPI, so they cannot find each other; "
                     "use srun --mpi=pmix",
                     tasks));
  }
  return make_single_world(options);
}

}  // namespace k25::parallel
