#pragma once
// Sums over rows (gradients of gains and biases): threads form partial sums of blocks of rows, one
// thread adds them in order. The blocks follow from the shape alone, so that the bits do not depend
// on threads.

#include <algorithm>
#include <cstdint>

namespace k25 {

inline constexpr std::int64_t kRowGrain = 32;  ///< rows worth a thread's while
inline constexpr std::int64_t kMaxPartials = 32;

/// Rows of a partial sum.
inline std::int64_t partial_rows(std::int64_t rows) {
  return std::max(kRowGrain, (rows + kMaxPartials - 1) / kMaxPartials);
}

inline std::int64_t partial_count(std::int64_t rows) {
  const std::int64_t block = partial_rows(rows);
  return (rows + block - 1) / block;
}

}  // namespace k25
