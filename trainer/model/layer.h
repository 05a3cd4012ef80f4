#pragma once
// One layer: the residual stream h passes a mixer and a feed-forward, each behind an RMSNorm.
//   s = h + mixer(norm1(h));   out = s + ffn(norm2(s))

#include <memory>

#include "kernels/residual/residual.h"
#include "kernels/rmsnorm/rmsnorm.h"
#include "trainer/config/config.h"
#include "trainer/model/block.h"

namespace k25::trainer {

class Layer {
 public:
  Layer(const ModelConfig& model, const RunShape& shape, int index, const ConstTensor& rope_table,
        UnitBuilder& unit, UnitBuilder& replicated);

  Bytes workspace_bytes() const;
  void measure(Arena& saved, Arena& scratch);
  /// Draws its saved tensors, output included, from run.saved; returns the output [N, D].
  Tensor forward(BlockRun& run, const ParameterViews& parameters, const ConstTensor& h_ND);
  /// `d_ND` holds the gradient of the output and receives the gradient of h. h is forward's h.
  void backward(BlockRun& run, const ParameterViews& parameters, const ParameterViews& gradients,
                const ConstTensor& h_ND, const Tensor& d_ND);

 private:
  void take_saved(Arena& saved);

  RunShape shape_;
  std::int64_t hidden_;
  kernels::RmsNormPlan norm_;
  kernels::ResidualPlan residual_;
  std::unique_ptr<Sublayer> mixer_, feed_forward_;
  int norm1_index_, norm2_index_;
  struct Saved {
    Tensor y1, rstd1, sum, y2, rstd2, out;
  } saved_;
};

}  // namespace k25::trainer
