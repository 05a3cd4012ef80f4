#pragma once
// The whole model: embedding, layers, head. A fixed list of blocks run against a ZeroStore.
//
//   h = embedding[tokens];  h = layer_i(h) for each i;  nll = cross_entropy(norm(h) Whead^T,
//   labels)
//
// The gradient that backward forms is that of the SUM of nll over label tokens; the step divides by
// the global number of label tokens once, together with clipping.

#include <memory>
#include <string>
#include <vector>

#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/embedding/embedding.h"
#include "kernels/gemm/gemm.h"
#include "kernels/rmsnorm/rmsnorm.h"
#include "parallel/zero/zero_store.h"
#include "trainer/config/config.h"
#include "trainer/model/block.h"
#include "trainer/model/flops.h"
#include "trainer/model/layer.h"

namespace k25::trainer {

/// Bytes a model needs besides its parameters, known before anything is allocated.
struct ModelMemory {
  Bytes activations;  ///< saved between forward and backward
  Bytes scratch;
  Bytes workspace;
  Bytes tables;  ///< rotary positions, load of experts
  Bytes total() const { return {activations.n + scratch.n + workspace.n + tables.n}; }
};

class Model {
 public:
  /// `freeze`: shell patterns on parameter names; one that matches nothing throws kUsage.
  Model(const ModelConfig& config, const RunShape& shape, const std::vector<std::string>& freeze,
        const RecomputeConfig& recompute);
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  /// Order of use in forward; the last one is "replicated".
  const std::vector<parallel::UnitSpec>& units() const { return units_; }
  const RunShape& shape() const { return shape_; }
  std::int64_t vocab() const { return config_.vocab; }
  ModelMemory memory() const { return memory_; }
  std::int64_t num_parameters() const;
  /// How often a training step forms a row's logits.
  LogitsFormed logits_formed() const {
    return loss_.vocab_chunk >= config_.vocab ? LogitsFormed::kOnce : LogitsFormed::kTwice;
  }

  /// Once, before the first forward.
  void allocate(const Context& context, Allocator& allocator);

  struct Output {
    Tensor nll_N;     ///< fp32 (fp64), 0 where there is no label
    Tensor argmax_N;  ///< int32
  };
  /// All ranks of the shard axis call it together. kTrain also forms the head's gradients, while
  /// its logits exist, and keeps what backward needs.
  enum class Purpose : std::uint8_t { kEvaluate, kTrain };
  Output forward(Context& context, parallel::ZeroStore& store, const BatchTensors& batch,
                 Purpose purpose);
  /// Adds the gradients of sum(nll) of the last forward, which was kTrain, to the store's
  /// accumulators.
  void backward(Context& context, parallel::ZeroStore& store, const BatchTensors& batch);
  /// Tokens that chose each expert of each layer since the last clear_expert_load, of this rank's
  /// backward passes: [layers, experts] int64 in host memory. Absent in a model without experts.
  /// The caller adds up what all data ranks have before it moves the biases.
  const Tensor& expert_load() const { return expert_load_; }
  void clear_expert_load();
  /// Between finish_gradients and end_step: the routers' correction biases follow the load
  /// (kernels/moe/correction_bias.h), equally on every rank; those that `freeze` names stay.
  void move_correction_biases(parallel::ZeroStore& store) const;
  /// After forward: logits [V] (compute dtype) of one row, for sampling.
  std::vector<float> logits(Context& context, parallel::ZeroStore& store, std::int64_t row);

 private:
  int head_unit() const { return tied_ ? 0 : static_cast<int>(units_.size()) - 2; }
  int replicated_unit() const { return static_cast<int>(units_.size()) - 1; }
  int forward_unit(std::size_t position) const;  // block position -> unit
  Bytes rope_bytes(std::int64_t head_dim) const;
  Bytes load_bytes() const;
  std::int64_t mla_table_cols() const;
  void take_head(Arena& saved);
  void run_head(BlockRun& run, parallel::ZeroStore& store, Purpose purpose);
  kernels::GemmDesc logits_gemm() const;
  void measure();
  BlockRun begin(Context& context, const BatchTensors& batch);
  void prefetch_around(parallel::ZeroStore& store, std::int64_t position, int direction) const;

  ModelConfig config_;
  RunShape shape_;
  bool tied_;
  std::vector<parallel::UnitSpec> units_;
  RopeTables rope_tables_;
  Tensor expert_load_;
  std::vector<std::unique_ptr<Layer>> layers_;
  std::vector<bool> moves_bias_;  // of each layer: not without experts, nor when frozen by name
  kernels::EmbeddingPlan embedding_;
  kernels::RmsNormPlan final_norm_;
  kernels::CrossEntropyPlan loss_;
  int final_gain_index_ = 0;

  ModelMemory memory_;
  Buffer tables_, workspace_;
  Arena saved_, scratch_;
  // Of the last forward.
  Tensor embedded_, normed_, d_normed_, rstd_, lse_;
  std::vector<ConstTensor> hidden_;  // input of each layer, then the head's
  Output output_;
};

/// Writes the initial masters of this rank's shards: a pure function of (seed, slice name, index).
void initialize_parameters(parallel::ZeroStore& store, std::uint64_t seed);

}  // namespace k25::trainer
