#pragma once
// A mixture of SwiGLU experts as a feed-forward. All experts belong to the layer's unit, sharded
// like any other parameter.
//   s = sigmoid(x Wr^T) in fp32;  the K experts of the largest s + bias, with weights from s
//   z = x, or x Wdn^T (latent);   c = sum over the chosen e of w_e swiglu(z Ug_e^T, z Uu_e^T) D_e^T
//   out = c, or rmsnorm(c) Wup^T (latent: the norm sees the whole sum);  + shared(x)
// The correction bias has no gradient and is no part of optim: backward adds what each expert was
// given, padding included, to BlockRun::expert_load_LE, and after the step
// Model::move_correction_biases moves it. The balance loss (model.moe.balance) of each row of the
// batch adds to the gradient of the scores; it is no part of the nll that a step reports. Legend  E
// experts, K choices a token, R = N K rows, W width of experts (hidden or latent), F their
//         inner width.
// Source  DeepSeek-V3 technical report, 2024, section 2.1.2 (router and bias).

#include <memory>

#include "kernels/moe/balance.h"
#include "kernels/moe/combine.h"
#include "kernels/moe/experts.h"
#include "kernels/moe/permute.h"
#include "kernels/moe/router.h"
#include "kernels/residual/residual.h"
#include "kernels/rmsnorm/rmsnorm.h"
#include "trainer/config/config.h"
#include "trainer/model/block.h"

namespace k25::trainer {

class MoeFeedForward : public Sublayer {
 public:
  /// `keep`: kAll or kCostly.
  MoeFeedForward(const ModelConfig& model, const RunShape& shape, int layer, Keep keep,
                 UnitBuilder& unit, UnitBuilder& replicated);

  /// Where the correction bias stands in the replicated unit.
  int bias_index() const { return bias_index_; }

  Bytes workspace_bytes() const override;
  void take_saved(Arena& saved) override;
  void measure_scratch(Arena& scratch) override;
  void forward(BlockRun& run, const ParameterViews& parameters, const ConstTensor& x_ND,
               const Tensor& out_ND) override;
  void backward(BlockRun& run, const ParameterViews& parameters, const ParameterViews& gradients,
                const ConstTensor& x_ND, const ConstTensor& d_out_ND,
                const Tensor& d_x_ND) override;

 private:
  bool latent() const { return latent_; }
  bool balanced() const { return balance_.desc.coefficient > 0; }
  Tensor take_rows(Arena& arena, std::int64_t width) const;  // [N, width]
  void route(BlockRun& run, const ParameterViews& parameters, const ConstTensor& x_ND) const;
  void add(BlockRun& run, const ConstTensor& term_ND, const Tensor& sum_ND) const;
  void count_load(const BlockRun& run) const;
  /// Gradient of c for that of out.
  void backward_latent_up(BlockRun& run, const ParameterViews& parameters,
                          const ParameterViews& gradients, const ConstTensor& d_out_ND,
                          const Tensor& d_c_NW) const;
  /// Gradients of z and of the weights for that of c.
  void backward_experts(BlockRun& run, const ParameterViews& parameters,
                        const ParameterViews& gradients, const ConstTensor& z_NW,
                        const ConstTensor& d_c_NW, const Tensor& d_weight_NK,
                        const Tensor& d_z_NW) const;
  /// Gradient of the balance loss.
  void balance_gradient(BlockRun& run, const Tensor& d_scores_NE) const;
  void backward_router(BlockRun& run, const ParameterViews& parameters,
                       const ParameterViews& gradients, const ConstTensor& x_ND,
                       const Tensor& d_weight_NK, const Tensor& d_x_ND) const;
  Tensor by_expert(const Tensor& stacked) const;

  RunShape shape_;
  int layer_;
  bool latent_;
  std::int64_t hidden_, width_, ffn_, experts_, per_token_;
  Linear router_, latent_down_, latent_up_;
  kernels::MoeRouterPlan choose_;
  kernels::MoeBalancePlan balance_;
  kernels::MoePermutePlan permute_;
  kernels::MoeExpertsPlan compute_;
  kernels::MoeCombinePlan combine_;
  kernels::RmsNormPlan norm_;
  kernels::ResidualPlan residual_;
  std::unique_ptr<Sublayer> shared_;  // null without shared experts
  int router_index_, gate_up_index_, down_index_, bias_index_;
  int latent_down_index_ = -1, latent_up_index_ = -1, latent_gain_index_ = -1;
  struct Routing {
    Tensor scores_NE, weight_NK, index_NK, count_E, offset_B, row_NK, choice_R;
  } routing_;
  Tensor saved_gate_up_, saved_y_;
  Tensor saved_z_, saved_c_, saved_c_rstd_, saved_normed_;  // latent
};

}  // namespace k25::trainer
