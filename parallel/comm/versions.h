#pragma once
// The versions of the transports, for reports.

#include <string>

namespace k25::parallel {

/// The first line of what the MPI library says of itself. Before MPI starts too.
std::string mpi_version();

/// "2.27.3". Only in a CUDA build.
std::string nccl_version();

}  // namespace k25::parallel
