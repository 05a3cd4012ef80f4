#pragma once
// Counts operator new of the whole program: the code of an op has no other way to the heap (Eigen
// calls malloc; tests/kernels/gemm counts that). Link allocation_counter.cpp, which replaces it.

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <string>

#include "tests/kernels/op_test.h"

namespace k25::op_test {

inline std::atomic<long> allocations{0};

/// Runs `op` for each context.
inline void expect_no_allocation(const std::function<void(Context&)>& op) {
  for_each_context([&](Context& ctx) {
    const long before = allocations;
    op(ctx);
    EXPECT_EQ(allocations - before, 0);
  });
}

inline void expect_counted_allocation() {
  const long before = allocations;
  const std::string text(100, 'x');  // made by libstdc++, not by this program's own code
  EXPECT_GE(allocations - before, 1) << text;
}

}  // namespace k25::op_test
