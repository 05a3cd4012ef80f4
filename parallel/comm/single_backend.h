#pragma once
// Private to parallel/comm: a world of one process, and communicators of one rank (the MPI backend
// uses them for axes of size 1). Every call is complete when it returns.

#include <memory>

#include "parallel/comm/collective_log.h"
#include "parallel/comm/world.h"

namespace k25::parallel {

/// A communicator whose only rank is this process. `log` is shared with its world.
std::unique_ptr<Communicator> make_single_communicator(std::string name,
                                                       std::shared_ptr<CollectiveLog> log,
                                                       std::chrono::milliseconds timeout);

std::unique_ptr<World> make_single_world(const WorldOptions& options);

/// Throws kUsage when a value is out of range, naming the key.
void check_options(const WorldOptions& options);

/// "host", this machine's name.
std::string host_name();

}  // namespace k25::parallel
