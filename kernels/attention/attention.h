#pragma once
// Softmax attention in tiles, grouped-query, with document boundaries; no T x T matrix exists.
//
// Legend  B sequences, T tokens each, H query heads, K key/value heads (H a multiple of K),
//         E head dim.
//         q, out, dout, dq: [B, T, H, E]; k, v, dk, dv: [B, T, K, E]; one dtype (fp32, bf16, fp64);
//         E dense, other strides free. lse: [B, H, T] fp32 (fp64 for fp64).
//         doc_begin, doc_end: [B, T] int32, the document [begin, end) that token t belongs to,
//         begin <= t < end. Absent: each sequence is one document.
// Formula  p_ij = softmax_j(scale q_i . k_j) over the keys visible from i: doc_begin_i <= j <= i
//         when causal, doc_begin_i <= j < doc_end_i otherwise; out_i = sum_j p_ij v_j;
//         lse_i = log sum_j exp(scale q_i . k_j), natural logarithm.
// Backward  recomputes p from q, k and lse. dq, dk and dv are overwritten.
// Isolation  tiles start at a document's first token: its results have the same bits wherever it
//         lies, and nothing hidden (another document, a later key) is multiplied by 0: no NaN
//         leaks.
// Numerics  scores, softmax and sums in fp32 for fp32 and bf16 storage; fixed order of tiles.
// Aliasing  outputs overlap no input.
// Errors  kUsage naming sequence, token and document unless doc_begin <= t < doc_end within the
//         sequence and all tokens of a document agree; both arrays or neither.
// Source  Dao et al., "FlashAttention", NeurIPS 2022, algorithms 1 and 4;
//         Ainslie et al., "GQA", 2023.

#include "kernels/core/context.h"
#include "kernels/core/tensor.h"

namespace k25::kernels {

enum class Masking : std::uint8_t { kCausal, kBidirectional };

struct AttentionDesc {
  std::int64_t batch = 0, tokens = 0, heads = 0, kv_heads = 0, head_dim = 0;
  Masking masking = Masking::kCausal;
  double scale = 0.0;  ///< 0 means 1 / sqrt(head_dim)
  DType dtype = DType::kFloat32;
};

struct AttentionPlan {
  AttentionDesc desc;
  std::int64_t query_tile = 0, key_tile = 0;
  Bytes workspace_bytes;  ///< of the larger direction
  Bytes saved_bytes;      ///< out and lse
};

struct AttentionForwardIn {
  ConstTensor q_BTHE, k_BTKE, v_BTKE, doc_begin_BT, doc_end_BT;
};
struct AttentionForwardOut {
  Tensor out_BTHE, lse_BHT;
};
struct AttentionBackwardIn {
  ConstTensor q_BTHE, k_BTKE, v_BTKE, doc_begin_BT, doc_end_BT, out_BTHE, lse_BHT, dout_BTHE;
};
struct AttentionBackwardOut {
  Tensor dq_BTHE, dk_BTKE, dv_BTKE;
};

AttentionPlan attention_plan(const AttentionDesc& desc);
void attention_forward(Context& ctx, const AttentionPlan& plan, const AttentionForwardIn& in,
                       const AttentionForwardOut& out, Workspace workspace);
void attention_backward(Context& ctx, const AttentionPlan& plan, const AttentionBackwardIn& in,
                        const AttentionBackwardOut& out, Workspace workspace);

}  // namespace k25::kernels
