#pragma once
// Private to parallel/comm: the world of an MPI job.

#include <memory>

#include "parallel/comm/transport.h"
#include "parallel/comm/world.h"

namespace k25::parallel {

/// Starts the communication thread, which initialises MPI. Throws kCommunication.
std::unique_ptr<World> make_mpi_world(const WorldOptions& options);

/// The same world over another transport (tests run all ranks in one process).
std::unique_ptr<World> make_transport_world(std::unique_ptr<Transport> transport,
                                            const WorldOptions& options);

}  // namespace k25::parallel
