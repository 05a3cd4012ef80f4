#pragma once
// Asymmetric window attention (AWA): causal softmax attention that sees the near past whole, the
// middle past in steps, and the far past through summaries; no T x T matrix exists.
//
// Legend  B sequences, T tokens each, H query heads, K key/value heads (H a multiple of K), E head
//         dim of queries and keys, V of values, S slots for summaries in a sequence.
//         q, dq: [B, T, H, E]; k, dk: [B, T, K, E]; v, dv: [B, T, K, V]; out, dout: [B, T, H, V];
//         summary keys and values: [B, S, K, E], [B, S, K, V]; one dtype (fp32, bf16, fp64), last
//         dimension dense, other strides free. lse, score_mean: [B, H, T] fp32 (fp64 for fp64).
//         doc_begin, doc_end: [B, T] int32 as in attention.h. appendix: [B, T] int32.
//         summary_end: [B, S] int32, rising: the last token that the summary stands for; T: no
//         summary here (its slot gets zero gradients).
// Visible  from query i, which lies in the document that begins at g, for distances d = i - j:
//           near       keys j >= g with 0 <= d < near_window
//           middle     keys j >= g with near_window <= d < far_window, (j - g) a multiple of stride
//           far        summaries s with g <= summary_end_s <= i - far_window
//         Steps are counted from the document, not from i, so that one subset of the keys serves
//         all queries. A key with appendix_j = n > 0 is hidden from all tokens but those with the
//         same n, one with n < 0 from all. Summaries are never hidden: what goes into one is the
//         encoder's matter.
// Formula  p_ij = softmax over what is visible of s_ij = scale q_i . k_j;  out_i = sum p_ij v_j;
//         lse_i = log sum exp(s_ij);  score_mean_i = sum p_ij s_ij, so that lse_i - score_mean_i
//         is the entropy of the weights. A row that sees nothing has out 0, lse -inf, score_mean 0
//         and gives no gradient.
// Backward  recomputes p from q, k and lse. All gradients are overwritten.
// Working set  of a tile of queries: near_window + query_tile rows of keys and values,
//         (far_window - near_window + query_tile) / stride, and the summaries; the gradients of a
//         sequence's keys and values are summed in fp32 over its tiles.
// Isolation  tiles start at a document's first token: its results have the same bits wherever it
//         lies. Nothing hidden is multiplied by 0: no NaN leaks.
// Numerics  as attention.h; fixed order of tiles: the size of query_tile moves last bits only.
// Devices  CPU.
// Aliasing  outputs overlap no input.
// Errors  kUsage for shapes; for borders as in attention.h; for summary_end that falls or leaves
//         the sequence, naming sequence and slot.
// Source  the windows are those of the recipe's section on long contexts; kin: Beltagy et al.,
//         "Longformer", 2020; Yuan et al., "Native Sparse Attention", 2025.

#include "kernels/core/context.h"
#include "kernels/core/tensor.h"

namespace k25::kernels {

struct AwaDesc {
  std::int64_t batch = 0, tokens = 0, heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t value_dim = 0;  ///< 0 means head_dim
  std::int64_t near_window = 2048, far_window = 8192, stride = 4;
  std::int64_t summaries = 0;    ///< slots in a sequence
  std::int64_t query_tile = 64;  ///< queries that share their packed keys
  double scale = 0.0;            ///< 0 means 1 / sqrt(head_dim)
  DType dtype = DType::kFloat32;
  Device device = Device::kCpu;
};

struct AwaPlan {
  AwaDesc desc;           ///< what 0 stood for is filled in
  Bytes workspace_bytes;  ///< of the larger direction
  Bytes saved_bytes;      ///< out and lse
  Bytes tile_bytes;       ///< of a tile's keys, values and scores, part of the workspace
};

/// What both directions read. Absent: documents (each sequence is one), appendix (nothing is
/// hidden), summaries (there are none).
struct AwaKeys {
  ConstTensor k_BTKE, v_BTKV, doc_begin_BT, doc_end_BT, appendix_BT;
  ConstTensor summary_k_BSKE, summary_v_BSKV, summary_end_BS;
};
struct AwaForwardIn {
  ConstTensor q_BTHE;
  AwaKeys keys;
};
struct AwaForwardOut {
  Tensor out_BTHV, lse_BHT, score_mean_BHT;  ///< score_mean may be absent
};
struct AwaBackwardIn {
  ConstTensor q_BTHE;
  AwaKeys keys;
  ConstTensor out_BTHV, lse_BHT, dout_BTHV;
};
struct AwaBackwardOut {
  Tensor dq_BTHE, dk_BTKE, dv_BTKV, d_summary_k_BSKE, d_summary_v_BSKV;
};

AwaPlan awa_plan(const AwaDesc& desc);
void awa_forward(Context& ctx, const AwaPlan& plan, const AwaForwardIn& in,
                 const AwaForwardOut& out, Workspace workspace);
void awa_backward(Context& ctx, const AwaPlan& plan, const AwaBackwardIn& in,
                  const AwaBackwardOut& out, Workspace workspace);

}  // namespace k25::kernels
