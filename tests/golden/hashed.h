#pragma once
// The operands of golden values: a hash that scripts/golden/hashed.py evaluates too, so that only
// results are stored.

#include <cstdint>

namespace k25 {

/// Uniform in [-0.5, 0.5).
inline double hashed(std::int64_t i, std::int64_t salt) {
  auto x = static_cast<std::uint32_t>(static_cast<std::uint64_t>(i) * 2654435761ull +
                                      static_cast<std::uint64_t>(salt) * 40503ull + 12345ull);
  x ^= x >> 15;
  x *= 2246822519u;
  x ^= x >> 13;
  return static_cast<double>(x) / 4294967296.0 - 0.5;
}

}  // namespace k25
