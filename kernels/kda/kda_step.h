#pragma once
// Kimi Delta Attention when a text is written: one token a sequence, or a window of drafted tokens
// that is looked at first and kept in part.
//
// Legend  S sequences, T tokens of a window (1 for decode), H, M, K, V as in kda.h.
//         q, k: [S, T, H, K]; v, out: [S, T, M, V]; one dtype (fp32, bf16, fp64).
//         g: [S, T, M, K]; beta: [S, T, M]; u: [S, T, M, V]; state: [S, M, K, V]; fp32 (fp64 for
//         fp64). Last dimension dense, other strides free.
// decode  the formula of kda.h over all T tokens, the state updated in place.
// verify  the same outputs, but the state stays as it is; `u` gets the corrections
//         u = beta (v - R^T k). The log of a window is its k, g and u: K + V + K numbers a token
//         and head instead of a state of K x V.
// commit  brings the state to where decode of the first accepted_s tokens of the window would have,
//         from k, g and u alone: R <- diag(exp g) R + k u^T. accepted: [S] int32 in [0, T].
//         What a later token held was never in the log of an earlier one, so a rejected rest is
//         dropped by not counting it.
// Numerics  as kda.h's kRecurrent; verify's outputs, and the state after commit, have
//         decode's bits. Equal bits on all instruction sets, and however tokens are divided over
//         calls.
// Devices  CPU; CUDA with key and value dims of 64 and 128, where bits depend on shape and GPU and
//         `accepted` is not read back: it is bounded to [0, T].
// Aliasing  outputs overlap no input; the state is read and written in place.
// Workspace  none on CUDA. On the CPU, rows of one token and, for verify, one state for each block
// of sequences and heads. Errors  kUsage for shapes that do not fit and for accepted outside [0,
// T]. Source  as kda.h.

#include "kernels/core/context.h"
#include "kernels/core/tensor.h"

namespace k25::kernels {

struct KdaStepDesc {
  std::int64_t sequences = 0, tokens = 1;
  std::int64_t heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
  double scale = 0.0;  ///< 0 means 1 / sqrt(key_dim)
  DType dtype = DType::kFloat32;
  Device device = Device::kCpu;  ///< where it runs
};

struct KdaStepPlan {
  KdaStepDesc desc;
  Bytes workspace_bytes;  ///< of any of the three
};

struct KdaDecodeIn {
  ConstTensor q_STHK, k_STHK, v_STMV, g_STMK, beta_STM;
};
struct KdaDecodeOut {
  Tensor out_STMV, state_SMKV;  ///< state: in place
};
struct KdaVerifyIn {
  ConstTensor q_STHK, k_STHK, v_STMV, g_STMK, beta_STM, state_SMKV;
};
struct KdaVerifyOut {
  Tensor out_STMV, u_STMV;
};
struct KdaCommitIn {
  ConstTensor k_STHK, g_STMK, u_STMV, accepted_S;
};
struct KdaCommitOut {
  Tensor state_SMKV;  ///< in place
};

KdaStepPlan kda_step_plan(const KdaStepDesc& desc);
void kda_decode(Context& ctx, const KdaStepPlan& plan, const KdaDecodeIn& in,
                const KdaDecodeOut& out, Workspace workspace);
void kda_verify(Context& ctx, const KdaStepPlan& plan, const KdaVerifyIn& in,
                const KdaVerifyOut& out, Workspace workspace);
void kda_commit(Context& ctx, const KdaStepPlan& plan, const KdaCommitIn& in,
                const KdaCommitOut& out, Workspace workspace);

}  // namespace k25::kernels
