#pragma once
// The gated feed-forward:  out = swiglu(x Wgate_up^T) Wdown^T

#include <string>

#include "kernels/swiglu/swiglu.h"
#include "trainer/config/config.h"
#include "trainer/model/block.h"

namespace k25::trainer {

class SwigluFeedForward : public Sublayer {
 public:
  struct Part {
    std::string name;      ///< of its parameters: "layers.3.NAME.gate_up"
    std::int64_t ffn = 0;  ///< inner width
  };
  /// `keep`: kAll or kCostly.
  SwigluFeedForward(const ModelConfig& model, const RunShape& shape, int layer, const Part& part,
                    Keep keep, UnitBuilder& unit);

  Bytes workspace_bytes() const override;
  void take_saved(Arena& saved) override;
  void measure_scratch(Arena& scratch) override;
  void forward(BlockRun& run, const ParameterViews& parameters, const ConstTensor& x_ND,
               const Tensor& out_ND) override;
  void backward(BlockRun& run, const ParameterViews& parameters, const ParameterViews& gradients,
                const ConstTensor& x_ND, const ConstTensor& d_out_ND,
                const Tensor& d_x_ND) override;

 private:
  RunShape shape_;
  Keep keep_;
  Linear gate_up_, down_;
  kernels::SwigluPlan swiglu_;
  int gate_up_index_, down_index_;
  Tensor saved_gate_up_, saved_activation_;  // absent with Keep::kCostly
};

}  // namespace k25::trainer
