#pragma once
// Softmax attention in tiles, grouped-query, with document boundaries; no T x T matrix exists.
//
// Legend  B sequences, T tokens each, H query heads, K key/value heads (H a multiple of K),
//         E head dim of queries and keys, V of values (latent attention has V < E).
//         q, dq: [B, T, H, E]; k, dk: [B, T, K, E]; v, dv: [B, T, K, V]; out, dout: [B, T, H, V];
//         one dtype (fp32, bf16, fp64); last dimension dense, other strides free. lse: [B, H, T]
//         fp32 (fp64 for fp64). doc_begin, doc_end: [B, T] int32, the document [begin, end) that
//         token t belongs to, begin <= t < end. Absent: each sequence is one document.
// Formula  p_ij = softmax_j(scale q_i . k_j) over the keys visible from i: doc_begin_i <= j <= i
//         when causal, doc_begin_i <= j < doc_end_i otherwise; out_i = sum_j p_ij v_j;
//         lse_i = log sum_j exp(scale q_i . k_j), natural logarithm.
// Backward  recomputes p from q, k and lse. dq, dk and dv are overwritten.
// cuDNN   a second implementation on the GPU, for causal bf16 with head dims that are multiples of
//         eight, at about twice the speed on whole sequences. It needs Context::attention_engines,
//         rows that start at multiples of 16 bytes, lse without gaps, and scratch for the score
//         gradients of some sequences. To it documents are a mask: hidden pairs cost what visible
//         ones cost, so that many short documents are faster with our own kernels.
// Isolation  (not with cuDNN: there a NaN may reach other tokens of its sequence, and the bits of a
//         document depend on where it lies; no other sequence is touched) tiles start at a
//         document's first token: its results have the same bits wherever it lies, and nothing
//         hidden (another document, a later key) is multiplied by 0: no NaN leaks.
// Numerics  scores, softmax and sums in fp32 for fp32 and bf16 storage; fixed order of tiles.
// Devices  all operands on desc.device. CPU: any dtype and head dim. GPU: fp32 (plain fma) and bf16
//         (tensor cores: p and dp are rounded to bf16 before they weigh rows), head_dim <= 256,
//         V = E, at most 2^30 tokens a sequence; no atomics: bits depend on the shape and the GPU
//         alone.
// Aliasing  outputs overlap no input.
// Errors  kUsage naming sequence, token and document unless doc_begin <= t < doc_end within the
//         sequence and all tokens of a document agree; both arrays or neither. On the GPU borders
//         are not read back: check them with attention_check_documents before they are copied
//         there. A sequence whose borders contradict each other gets NaN in every result (with
//         cuDNN, results of no meaning), and no memory is read through them.
// Source  Dao et al., "FlashAttention", NeurIPS 2022, algorithms 1 and 4;
//         Dao, "FlashAttention-2", 2023, section 3; Ainslie et al., "GQA", 2023.

#include "kernels/core/context.h"
#include "kernels/core/tensor.h"

namespace k25::kernels {

enum class Masking : std::uint8_t { kCausal, kBidirectional };

/// On the GPU.
enum class AttentionImplementation : std::uint8_t {
  kAutomatic,  ///< cuDNN where it pays and takes the call (long causal bf16 rows), else our own
  kOwn,
  kCudnn,  ///< kUsage where cuDNN does not take the call
};

struct AttentionDesc {
  std::int64_t batch = 0, tokens = 0, heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t value_dim = 0;  ///< 0 means head_dim
  Masking masking = Masking::kCausal;
  double scale = 0.0;  ///< 0 means 1 / sqrt(head_dim)
  DType dtype = DType::kFloat32;
  Device device = Device::kCpu;  ///< where it runs
  AttentionImplementation implementation = AttentionImplementation::kAutomatic;
};

struct AttentionPlan {
  AttentionDesc desc;
  std::int64_t query_tile = 0, key_tile = 0;  ///< of the CPU
  Bytes workspace_bytes;                      ///< of the larger direction
  Bytes saved_bytes;                          ///< out and lse
};

struct AttentionForwardIn {
  ConstTensor q_BTHE, k_BTKE, v_BTKV, doc_begin_BT, doc_end_BT;
};
struct AttentionForwardOut {
  Tensor out_BTHV, lse_BHT;
};
struct AttentionBackwardIn {
  ConstTensor q_BTHE, k_BTKE, v_BTKV, doc_begin_BT, doc_end_BT, out_BTHV, lse_BHT, dout_BTHV;
};
struct AttentionBackwardOut {
  Tensor dq_BTHE, dk_BTKE, dv_BTKV;
};

AttentionPlan attention_plan(const AttentionDesc& desc);
/// Throws kUsage unless the borders, in host memory, are as stated above. The CPU does it itself.
void attention_check_documents(const AttentionDesc& desc, const ConstTensor& host_doc_begin_BT,
                               const ConstTensor& host_doc_end_BT);
void attention_forward(Context& ctx, const AttentionPlan& plan, const AttentionForwardIn& in,
                       const AttentionForwardOut& out, Workspace workspace);
void attention_backward(Context& ctx, const AttentionPlan& plan, const AttentionBackwardIn& in,
                        const AttentionBackwardOut& out, Workspace workspace);

}  // namespace k25::kernels
