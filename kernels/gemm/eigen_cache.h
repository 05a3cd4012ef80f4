#pragma once
// What the product on the CPU tells Eigen of the caches: set, not detected, because it decides an
// order of sums. Part of what a run records of its machine.

#include <cstdint>

namespace k25::kernels {

inline constexpr std::int64_t kEigenL1CacheBytes = 32 * 1024;

}  // namespace k25::kernels
