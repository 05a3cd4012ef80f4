#pragma once
// Multi-head latent attention as a mixer: keys and values of all heads come from one narrow row.
//   q | c | kr = x Win^T, or qa | c | kr = x Win^T and q = norm(qa) Wqb^T
//   per head:  kn | v = norm(c) Wkvb^T;  k = kn | kr, with one kr for all heads
//   the last R columns of each q, and kr, are rotated to their positions, unless positions are
//   none: then they are a part like another
//   out = attention(q, k, v; scale 1 / sqrt(P + R)) Wo^T
// Pairs of the rotation are half-split, as in kernels/rope. DeepSeek-V3's files hold neighbouring
// columns as pairs: whoever reads or writes those permutes rows of q and kr.
// Legend  H heads, P their own width of a key (nope), R the shared one (rope), E = P + R, V width
//         of values, L kv_rank, Q q_rank.
// Source  DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1; without positions: Kimi Team, "Kimi
//         Linear", 2025, section 4.

#include "kernels/attention/attention.h"
#include "kernels/attention/latent_keys.h"
#include "kernels/rmsnorm/rmsnorm.h"
#include "kernels/rope/rope.h"
#include "trainer/config/config.h"
#include "trainer/model/block.h"

namespace k25::trainer {

class MlaMixer : public Sublayer {
 public:
  /// `rope_table` is that of rope_desc, shared by all layers; it outlives them. `keep`: kAll or
  /// kCostly.
  MlaMixer(const ModelConfig& model, const RunShape& shape, int layer, Keep keep,
           const ConstTensor& rope_table, UnitBuilder& unit, UnitBuilder& replicated);

  /// Of `heads` heads' rotated part.
  static kernels::RopeDesc rope_desc(const ModelConfig& model, const RunShape& shape,
                                     std::int64_t heads);

  Bytes workspace_bytes() const override;
  void take_saved(Arena& saved) override;
  void measure_scratch(Arena& scratch) override;
  void forward(BlockRun& run, const ParameterViews& parameters, const ConstTensor& x_ND,
               const Tensor& out_ND) override;
  void backward(BlockRun& run, const ParameterViews& parameters, const ParameterViews& gradients,
                const ConstTensor& x_ND, const ConstTensor& d_out_ND,
                const Tensor& d_x_ND) override;

 private:
  /// A norm of some columns of what Win gives, and the projection up from there.
  struct Latent {
    std::int64_t begin = 0;  // of its columns
    Linear up;
    kernels::RmsNormPlan norm;
    int up_index = -1, gain_index = -1;  // of the unit, of the replicated unit
    Tensor rstd;                         // saved
  };
  /// What costs little to form again: saved with Keep::kAll, else scratch of each direction.
  struct Cheap {
    Tensor q_normed, kv_normed, keys;
  };
  struct Gradients {
    Tensor attention, in, q, kv, keys;
  };
  enum class Turn : std::uint8_t { kForward, kBackward };

  Linear linear(std::int64_t in, std::int64_t out) const;
  Latent latent(std::int64_t begin, std::int64_t rank, std::int64_t out, double eps) const;
  void add_parameters(const ModelConfig& model, int layer, UnitBuilder& unit,
                      UnitBuilder& replicated);
  bool low_rank_q() const { return q_.up.in > 0; }
  Cheap take_cheap(Arena& arena) const;
  Gradients take_gradients(Arena& scratch) const;
  // Views. `q` and `in` are the projections or their gradients, as is `kv`.
  Tensor by_sequence(const Tensor& rows_NHE) const;               // [N, H, E] -> [B, T, H, E]
  Tensor queries(const Tensor& q, const Tensor& in) const;        // [N, H, E]
  Tensor own_keys(const Tensor& kv) const;                        // [N, H, P]
  Tensor values(const Tensor& kv) const;                          // [N, H, V]
  Tensor shared_key(const Tensor& in) const;                      // [N, R]
  Tensor whole_keys(const Tensor& keys, const Tensor& kv) const;  // [N, H, E]
  Tensor attention_rows(const Tensor& rows) const;                // [B, T, H, V]

  void rotate(BlockRun& run, const Tensor& q, const Tensor& in, Turn turn) const;
  void form_normed(BlockRun& run, const ParameterViews& parameters, const Latent& latent,
                   const Tensor& normed) const;
  void form_keys(BlockRun& run, const Tensor& keys) const;
  void backward_attention(BlockRun& run, const Cheap& cheap, const Gradients& d) const;
  void backward_latent(BlockRun& run, const ParameterViews& parameters,
                       const ParameterViews& gradients, const Latent& latent, const Tensor& normed,
                       const Tensor& d_up, const Tensor& d_in) const;

  RunShape shape_;
  Keep keep_;
  std::int64_t heads_, nope_dim_, rope_dim_, value_dim_, key_dim_;
  bool rotates_;
  Latent q_, kv_;  // q_ has rank 0 where Win gives q itself
  Linear in_, out_;
  kernels::RopePlan rope_q_, rope_k_;
  kernels::LatentKeysPlan keys_;
  kernels::AttentionPlan attention_;
  const ConstTensor& rope_table_;
  int in_index_ = -1, out_index_ = -1;
  Tensor saved_in_, saved_q_, saved_kv_, saved_attention_, saved_lse_;
  Cheap saved_cheap_;  // absent with Keep::kCostly
};

}  // namespace k25::trainer
