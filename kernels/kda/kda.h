#pragma once
// Kimi Delta Attention: a linear recurrence whose state forgets by channel and is corrected by the
// delta rule; over whole sequences, forward and backward. One token, and windows of drafted tokens:
// kda_step.h.
//
// Legend  B rows of T tokens, H query/key heads, M value heads (M a multiple of H; value head m
//         reads query/key head m / (M / H)), K key dim, V value dim, S sequences.
//         q, k, dq, dk: [B, T, H, K]; v, out, dout, dv: [B, T, M, V]; one dtype (fp32, bf16, fp64).
//         g, dg: [B, T, M, K]; beta, dbeta: [B, T, M]; states and their gradients [S, M, K, V];
//         all fp32 (fp64 for fp64). Last dimension dense, other strides free.
// Formula  for each sequence and value head, in the order of its tokens, R a [K, V] state:
//           R <- diag(exp g) R;   u = beta (v - R^T k);   R <- R + k u^T;   out = scale R^T q.
//         The correction reads the decayed state, the output the updated one. g is the natural
//         logarithm of the decay, g <= 0 (-infinity forgets at once); what is above is not refused,
//         the state then grows. k is to have norm 1 (kernels/l2norm) and beta to lie in [0, 2].
// Sequences  kernels/sequences/sequences.h: rows, packed sequences, or documents in rows. Sequences
//         may be empty: their final state is the initial one.
// States  initial_state absent: zero. final_state, absent or written. Its gradient may be absent
//         (zero). Checkpoints: checkpoint_offset [S, N] int32, N = desc.checkpoints, names tokens
//         of a sequence, counted from its first: after so many tokens the state is copied to
//         checkpoint [S, N, M, K, V]. An offset is a multiple of kKdaChunk or the length of the
//         sequence; -1: not used, nothing is written. Not with documents, and no gradient passes
//         through them. A checkpoint has the bits of the final state of the prefix alone.
// Backward  the adjoint; all gradients are overwritten. It needs the operands of forward and, with
//         KdaKeep::kStates, the states at interior chunk boundaries that forward wrote to `saved`;
//         with kNothing it computes them again into the workspace. All else of a chunk (the
//         triangular system, its solution, decays) is always computed again. Equal bits both ways.
// Forms   kChunked: kKdaChunk tokens at a time by products of matrices, decays between two tokens
//         as products of factors that are at most 1 (per sub-chunk of 16 tokens; nothing overflows,
//         no differences of sums are taken) and the triangular system solved by substitution.
//         kRecurrent: the formula token by token; its states are those of every token of a chunk.
// Numerics  fp32 arithmetic and states for fp32 and bf16 storage; denormals count as 0. Fixed
// order:
//         bits depend on shape, lengths and instruction set, never on threads, on where a sequence
//         lies or on its neighbours, whose NaN cannot leak; nor does a NaN reach earlier outputs of
//         its own sequence.
// Devices  CPU; CUDA with kChunked and key and value dims of 64 and 128, which adds in another
//         order: there bits depend on shape, lengths and GPU. Borders and checkpoint offsets in
//         device memory are not read back: what does not fit gives numbers without meaning, or no
//         checkpoint, but no foreign access.
// Aliasing  outputs overlap no input, except that final_state may be initial_state.
// Errors  kUsage naming what does not fit: shapes, borders, documents, offsets.
// Source  Kimi Team, "Kimi Linear: An Expressive, Efficient Attention Architecture", 2025, eq. 1;
//         Yang et al., "Parallelizing Linear Transformers with the Delta Rule", NeurIPS 2024.

#include "kernels/core/context.h"
#include "kernels/core/tensor.h"
#include "kernels/sequences/sequences.h"

namespace k25::kernels {

inline constexpr std::int64_t kKdaChunk = 64;

enum class KdaForm : std::uint8_t { kChunked, kRecurrent };
enum class KdaKeep : std::uint8_t { kNothing, kStates };

struct KdaDesc {
  std::int64_t batch = 0, tokens = 0, heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
  std::int64_t sequences = 0;    ///< packed in the only row; 0: a row is a sequence
  std::int64_t checkpoints = 0;  ///< a sequence
  double scale = 0.0;            ///< 0 means 1 / sqrt(key_dim)
  KdaForm form = KdaForm::kChunked;
  KdaKeep keep = KdaKeep::kNothing;
  DType dtype = DType::kFloat32;
  Device device = Device::kCpu;  ///< where it runs
};

struct KdaPlan {
  KdaDesc desc;
  Bytes forward_workspace_bytes;
  Bytes backward_workspace_bytes;
  Bytes workspace_bytes;  ///< of the larger direction
  Bytes saved_bytes;      ///< `saved`; 0 with KdaKeep::kNothing
};

struct KdaForwardIn {
  ConstTensor q_BTHK, k_BTHK, v_BTMV, g_BTMK, beta_BTM;
  SequenceBorders borders;
  ConstTensor initial_state_SMKV;    ///< optional
  ConstTensor checkpoint_offset_SN;  ///< with desc.checkpoints > 0
};
struct KdaForwardOut {
  Tensor out_BTMV;
  Tensor final_state_SMKV;  ///< optional
  Tensor checkpoint_SNMKV;  ///< with desc.checkpoints > 0
  Tensor saved;             ///< uint8 [saved_bytes], 64-byte aligned; may be absent (no backward)
};
struct KdaBackwardIn {
  ConstTensor q_BTHK, k_BTHK, v_BTMV, g_BTMK, beta_BTM;
  SequenceBorders borders;
  ConstTensor initial_state_SMKV;  ///< as forward had it
  ConstTensor saved;
  ConstTensor dout_BTMV, dfinal_state_SMKV;  ///< the latter optional
};
struct KdaBackwardOut {
  Tensor dq_BTHK, dk_BTHK, dv_BTMV, dg_BTMK, dbeta_BTM;
  Tensor dinitial_state_SMKV;  ///< optional
};

KdaPlan kda_plan(const KdaDesc& desc);
void kda_forward(Context& ctx, const KdaPlan& plan, const KdaForwardIn& in,
                 const KdaForwardOut& out, Workspace workspace);
void kda_backward(Context& ctx, const KdaPlan& plan, const KdaBackwardIn& in,
                  const KdaBackwardOut& out, Workspace workspace);

}  // namespace k25::kernels
