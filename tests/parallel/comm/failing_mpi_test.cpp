// Fails on rank 1 alone; fault_test.py checks that tests/mpi_main.cpp then fails the whole run.

#include <gtest/gtest.h>

#include "tests/mpi_main.h"

namespace k25::parallel {
namespace {

TEST(OnRank1, Fails) { EXPECT_NE(test_world().rank(), 1) << "meant to fail"; }

}  // namespace
}  // namespace k25::parallel
