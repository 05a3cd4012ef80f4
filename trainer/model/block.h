#pragma once
// What a model is made of: a fixed list of blocks with hand-written forward and backward.
//
// A block declares its parameters once, into its own unit (sharded) and into the replicated unit,
// and keeps their indices. It says beforehand what it saves between forward and backward:
// take_saved draws the saved tensors from an arena, and the same call on a measuring arena gives
// their bytes. The same holds for scratch. Nothing is allocated in forward or backward.
//
// Legend  B sequences, T tokens, N = B T rows, D hidden, H heads, K kv heads, E head dim, F ffn, V
// vocab.

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/core/buffer.h"
#include "kernels/core/context.h"
#include "kernels/core/tensor.h"
#include "kernels/gemm/gemm.h"
#include "parallel/zero/unit.h"

namespace k25::trainer {

/// What is fixed for a run: sizes, the dtype of activations and gathered parameters, where blocks
/// run.
struct RunShape {
  std::int64_t batch = 0, tokens = 0;
  DType compute = DType::kFloat32;
  Device device = Device::kCpu;
  std::int64_t rows() const { return batch * tokens; }
};

/// One micro-batch as tensors.
struct BatchTensors {
  ConstTensor tokens_N, labels_N, position_N, doc_begin_BT, doc_end_BT;
  /// What suits the documents, decided where they are known: kAutomatic or kOwn.
  kernels::AttentionImplementation attention = kernels::AttentionImplementation::kAutomatic;
};

/// Tables of kernels/rope for the mixers that rotate, filled by Model::allocate.
struct RopeTables {
  ConstTensor gqa, mla;
};

/// Whole parameters of a block (or their fp32 gradients): its own unit and the replicated unit.
struct ParameterViews {
  const std::vector<Tensor>& unit;
  const std::vector<Tensor>& replicated;
  /// Of gradients: what the first use of a parameter in `unit` does whose gradient_start is
  /// kWritten. All others are added to.
  kernels::Accumulate first_use = kernels::Accumulate::kAdd;
};

/// What forward and backward receive besides their operands.
struct BlockRun {
  Context& context;
  const BatchTensors& batch;
  Arena& saved;         ///< lives from a block's forward to its backward
  Arena& scratch;       ///< free again when the call returns
  Workspace workspace;  ///< of the largest op
  /// int64 in host memory, absent in a model without experts: backward of layer l adds how many
  /// tokens chose each of its experts to row l.
  Tensor expert_load_LE = {};
};

/// What a layer keeps of its forward; backward computes the rest again, to the same bits.
enum class Keep : std::uint8_t {
  kAll,
  kCostly,  ///< not the norm outputs and the SwiGLU product, which cost little to form again
  kInput,   ///< nothing but the input: backward runs the whole forward again
};

/// Collects the parameters of one unit.
class UnitBuilder {
 public:
  UnitBuilder(std::string name, parallel::Placement placement) {
    spec_.name = std::move(name);
    spec_.placement = placement;
  }
  /// Returns the index to find the parameter's view by.
  int add(parallel::ParameterSpec parameter) {
    spec_.parameters.push_back(std::move(parameter));
    return static_cast<int>(spec_.parameters.size()) - 1;
  }
  parallel::UnitSpec& spec() { return spec_; }

 private:
  parallel::UnitSpec spec_;
};

/// A mixer (attention, KDA) or a feed-forward: maps normed rows to an update of the residual
/// stream. A parameter's gradient view is absent when it is frozen.
class Sublayer {
 public:
  virtual ~Sublayer() = default;
  virtual Bytes workspace_bytes() const = 0;
  /// Draws what must survive until backward.
  virtual void take_saved(Arena& saved) = 0;
  /// Draws everything backward needs besides, on a measuring arena, and gives it back.
  virtual void measure_scratch(Arena& scratch) = 0;
  /// out = f(x); x and out are [N, D].
  virtual void forward(BlockRun& run, const ParameterViews& parameters, const ConstTensor& x_ND,
                       const Tensor& out_ND) = 0;
  /// d_x = gradient of x; parameter gradients are added, or written (ParameterViews). x is
  /// forward's x.
  virtual void backward(BlockRun& run, const ParameterViews& parameters,
                        const ParameterViews& gradients, const ConstTensor& x_ND,
                        const ConstTensor& d_out_ND, const Tensor& d_x_ND) = 0;
};

/// y[N, out] = x[N, in] weight[out, in]^T, and its two gradients. The one linear layer of the
/// project.
struct Linear {
  std::int64_t rows = 0, in = 0, out = 0;
  DType compute = DType::kFloat32;
  Device device = Device::kCpu;

  Bytes workspace_bytes() const;
  void forward(BlockRun& run, const ConstTensor& x, const ConstTensor& weight,
               const Tensor& y) const;
  void backward_input(BlockRun& run, const ConstTensor& d_y, const ConstTensor& weight,
                      const Tensor& d_x) const;
  /// Adds to d_weight (fp32), or writes it; does nothing when it is absent.
  void backward_weight(BlockRun& run, const ConstTensor& d_y, const ConstTensor& x,
                       const Tensor& d_weight,
                       kernels::Accumulate mode = kernels::Accumulate::kAdd) const;
};

/// Marks the scratch arena and gives everything back at the end of the scope.
class ScratchScope {
 public:
  explicit ScratchScope(Arena& arena) : arena_(arena), mark_(arena.mark()) {}
  ~ScratchScope() { arena_.rewind(mark_); }
  ScratchScope(const ScratchScope&) = delete;
  ScratchScope& operator=(const ScratchScope&) = delete;

 private:
  Arena& arena_;
  Arena::Mark mark_;
};

/// Of what is summed over rows or columns: fp32, for fp64 fp64.
inline DType statistic_dtype(DType compute) {
  return compute == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
}

inline Bytes larger(Bytes a, Bytes b) { return a.n > b.n ? a : b; }

}  // namespace k25::trainer
