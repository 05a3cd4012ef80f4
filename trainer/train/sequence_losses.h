#pragma once
// The loss of each sequence of several micro-batches. On a GPU the sums stay there until fetch,
// which copies them all at once, so that the step waits once.

#include <cstdint>
#include <span>

#include "kernels/core/buffer.h"
#include "kernels/core/context.h"
#include "trainer/model/block.h"

namespace k25::trainer {

class SequenceLosses {
 public:
  /// Room for `micro_batches` between two calls of clear.
  SequenceLosses(const RunShape& shape, std::int64_t micro_batches, Allocator& host,
                 Allocator& state);
  static Footprint plan(const RunShape& shape, std::int64_t micro_batches);

  void clear() { used_ = 0; }
  /// Enqueues the sums of one forward's nll_N.
  void add(Context& context, const Tensor& nll_N);
  /// Enqueues the copy to the host.
  void fetch(const Context& context);
  /// After fetch and a host wait: nats of each sequence, micro-batch by micro-batch.
  std::span<const double> values() const;

 private:
  RunShape shape_;
  std::int64_t used_ = 0;
  Buffer sums_, host_;
};

}  // namespace k25::trainer
