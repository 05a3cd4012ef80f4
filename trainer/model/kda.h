#pragma once
// Kimi Delta Attention as a mixer: no positions, no matrix over T x T, a state for each head.
//   q|k|v|fa|ga|b = x Win^T;  q|k|v = silu(conv(q|k|v));  q, k = l2norm(q), l2norm(k) by head
//   g = gate(fa Wfb^T; a_log, dt_bias);  beta = sigmoid(b), or twice that
//   o = kda(q, k, v, g, beta);  out = (rmsnorm(o) gain sigmoid(ga Wgb^T)) Wo^T
// Neither state nor convolution passes from one document of a row to the next.
// Legend  H heads, K key dim, V value dim, R gate rank, C = H (2 K + V) channels of q|k|v,
//         P = C + 2 R + H columns of Win.
// Source  Kimi Team, "Kimi Linear: An Expressive, Efficient Attention Architecture", 2025,
//         section 4.

#include "kernels/conv1d/conv1d.h"
#include "kernels/gated_rmsnorm/gated_rmsnorm.h"
#include "kernels/kda/kda.h"
#include "kernels/kda_gate/kda_gate.h"
#include "kernels/l2norm/l2norm.h"
#include "trainer/config/config.h"
#include "trainer/model/block.h"

namespace k25::trainer {

class KdaMixer : public Sublayer {
 public:
  /// `keep`: kAll or kCostly.
  KdaMixer(const ModelConfig& model, const RunShape& shape, int layer, Keep keep, UnitBuilder& unit,
           UnitBuilder& replicated);

  Bytes workspace_bytes() const override;
  void take_saved(Arena& saved) override;
  void measure_scratch(Arena& scratch) override;
  void forward(BlockRun& run, const ParameterViews& parameters, const ConstTensor& x_ND,
               const Tensor& out_ND) override;
  void backward(BlockRun& run, const ParameterViews& parameters, const ParameterViews& gradients,
                const ConstTensor& x_ND, const ConstTensor& d_out_ND,
                const Tensor& d_x_ND) override;

 private:
  struct Decay {
    Tensor g_NHK, beta_NH;
  };
  struct Heads {
    Tensor q_NHK, k_NHK, v_NHV;
  };
  Linear linear(std::int64_t in, std::int64_t out) const;
  Heads split(const Tensor& qkv_NC) const;
  Tensor by_sequence(const Tensor& rows) const;  // [N, ...] -> [B, T, ...]
  Tensor columns(const Tensor& in_NP, std::int64_t begin, std::int64_t count) const;
  Tensor forget_low(const Tensor& in_NP) const { return columns(in_NP, channels_, rank_); }
  Tensor output_low(const Tensor& in_NP) const { return columns(in_NP, channels_ + rank_, rank_); }
  Tensor beta_raw(const Tensor& in_NP) const {
    return columns(in_NP, channels_ + 2 * rank_, heads_);
  }
  Decay take_decay(Arena& scratch) const;
  void form_decay(BlockRun& run, const ParameterViews& parameters, const Decay& decay) const;
  void form_output(BlockRun& run, const ParameterViews& parameters, const Tensor& y_NHV) const;
  kernels::SequenceBorders borders(const BlockRun& run) const;
  void backward_output(BlockRun& run, const ParameterViews& parameters,
                       const ParameterViews& gradients, const ConstTensor& d_out_ND,
                       const Tensor& d_o, const Tensor& d_in) const;
  void backward_heads(BlockRun& run, const ParameterViews& parameters,
                      const ParameterViews& gradients, const Tensor& d_o, const Tensor& d_in) const;

  RunShape shape_;
  Keep keep_;
  std::int64_t heads_, key_dim_, value_dim_, rank_, channels_;
  Linear in_, forget_, gate_, out_;
  kernels::Conv1dPlan conv_;
  kernels::L2NormPlan l2norm_;
  kernels::KdaGatePlan decay_;
  kernels::KdaBetaPlan beta_;
  kernels::KdaPlan kda_;
  kernels::GatedRmsNormPlan norm_;
  int in_index_, forget_index_, gate_index_, out_index_;       // of the unit
  int conv_index_, a_log_index_, dt_bias_index_, gain_index_;  // of the replicated unit
  Tensor saved_in_, saved_qkv_, saved_rstd_, saved_f_, saved_gate_, saved_o_, saved_o_rstd_;
  Tensor saved_states_;
  Tensor saved_y_;  // absent with Keep::kCostly
};

}  // namespace k25::trainer
