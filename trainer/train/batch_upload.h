#pragma once
// A host batch as tensors where the model runs. On the CPU they are views of the batch; on a GPU
// copies, through pinned memory, that nothing waits for.

#include "data/loader/loader.h"
#include "parallel/mesh.h"
#include "trainer/model/model.h"

namespace k25::trainer {

/// Views of a host batch; valid while the batch is unchanged.
BatchTensors batch_tensors(const data::Batch& batch);

/// Our own kernels skip what documents hide, cuDNN does not but is about twice as fast: kOwn where
/// documents hide more than half of the pairs of tokens.
kernels::AttentionImplementation attention_for(const data::Batch& batch);

class BatchUpload {
 public:
  /// `depth`: uploads without a host wait between them.
  BatchUpload(const Model& model, std::int64_t depth, Allocator& host, Allocator& state);
  /// Nothing on the CPU.
  static Footprint plan(const RunShape& shape, std::int64_t depth);

  /// Valid until the next call. The batch may change at once. Throws kUsage for a batch that the
  /// ops would refuse on the CPU: on a GPU they cannot read it back.
  BatchTensors upload(const Context& context, const parallel::Mesh& mesh, const data::Batch& batch);

 private:
  RunShape shape_;
  std::int64_t vocab_;
  std::int64_t depth_, next_ = 0;
  Buffer pinned_, device_;
};

}  // namespace k25::trainer
