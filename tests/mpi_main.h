#pragma once
// For MPI tests: the world that tests/mpi_main.cpp built. Started without a launcher it has one
// rank.

#include "parallel/comm/world.h"

namespace k25::parallel {

World& test_world();

}  // namespace k25::parallel
