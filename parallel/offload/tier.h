#pragma once
// Storage behind host memory (a local NVMe disk), addressed by bytes, with reads and writes that
// go on beside the caller.

#include <cstddef>
#include <functional>
#include <optional>
#include <span>

#include "kernels/core/check.h"
#include "kernels/core/dtype.h"

namespace k25::parallel {

class Tier {
 public:
  /// Called once, from a thread of the tier's; holds the error of what failed. It does not block,
  /// and may start the next read or write.
  using Done = std::function<void(const std::optional<Error>&)>;

  /// Waits for everything in flight.
  virtual ~Tier() = default;
  virtual Bytes size() const = 0;
  /// Offsets, sizes and addresses are multiples of this.
  virtual Bytes granule() const = 0;

  /// Bytes that were never written are zero. The memory stays the tier's until `done`. What is read
  /// and written at a time must not overlap.
  virtual void read(Bytes offset, std::span<std::byte> to, Done done) = 0;
  virtual void write(Bytes offset, std::span<const std::byte> from, Done done) = 0;
};

}  // namespace k25::parallel
