#pragma once
// Grouped-query attention with rotary positions, as a mixer.
//   q|k|v = x Wqkv^T;  q, k = rope(q, k);  out = attention(q, k, v) Wo^T

#include "kernels/attention/attention.h"
#include "kernels/rope/rope.h"
#include "trainer/config/config.h"
#include "trainer/model/block.h"

namespace k25::trainer {

class GqaMixer : public Sublayer {
 public:
  /// `rope_table` is shared by all layers and outlives them.
  GqaMixer(const ModelConfig& model, const RunShape& shape, int layer,
           const ConstTensor& rope_table, UnitBuilder& unit);

  /// Of q and k together.
  static kernels::RopeDesc rope_desc(const ModelConfig& model, const RunShape& shape);

  Bytes workspace_bytes() const override;
  void take_saved(Arena& saved) override;
  void measure_scratch(Arena& scratch) override;
  void forward(BlockRun& run, const ParameterViews& parameters, const ConstTensor& x_ND,
               const Tensor& out_ND) override;
  void backward(BlockRun& run, const ParameterViews& parameters, const ParameterViews& gradients,
                const ConstTensor& x_ND, const ConstTensor& d_out_ND,
                const Tensor& d_x_ND) override;

 private:
  struct Heads {
    Tensor q_NHE, k_NKE, v_NKE;
  };
  Heads split(const Tensor& qkv) const;
  Tensor by_sequence(const Tensor& rows_NHE) const;  // [N, H, E] -> [B, T, H, E]
  const kernels::AttentionPlan& attention_plan(const BlockRun& run) const;
  enum class Turn : std::uint8_t { kForward, kBackward };
  void rotate(BlockRun& run, const Tensor& qkv, Turn turn) const;  // q and k, in place

  RunShape shape_;
  std::int64_t heads_, kv_heads_, head_dim_;
  Linear qkv_, out_;
  kernels::RopePlan rope_;                            // q and k lie side by side
  kernels::AttentionPlan attention_, own_attention_;  // for long and for short documents
  const ConstTensor& rope_table_;
  int qkv_index_, out_index_;
  Tensor saved_qkv_, saved_attention_, saved_lse_;
};

}  // namespace k25::trainer
