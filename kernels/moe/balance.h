#pragma once
// Balance loss on the router's scores: the fraction of the choices that fell on an expert times the
// share of the scores that it has. Over each sequence, or over a whole batch (one sequence of all
// tokens; fractions averaged over ranks and micro-batches by the caller, where they are more).
//
// Formula  for each sequence q of T_q tokens, p_ni = s_ni / (sum_j s_nj + 1e-20) and
//         f_qi = E / (K T_q) (choices of expert i in q);  loss_n = c sum_i f_qi p_ni.
//         The sum of loss_n over a sequence is T_q c sum_i f_i P_i, T_q times the loss of the
//         source: like nll it is a sum over tokens, which the update divides by their number once.
//         Perfectly even choices and scores give loss_n = c.
// Backward  of the sum over n of loss_n, f held fixed: dscores_ni = c (f_qi - sum_j f_qj p_nj) /
//         (sum_j s_nj + 1e-20); overwritten, for MoeRouterBackwardIn::dscores_NE.
// Legend  N tokens, E experts, K choices, Q sequences, S = Q + 1. scores, dscores: [N, E], f: [Q,
// E],
//         loss: [N], all fp32 (fp64). index: [N, K] int32. start: [S] int64, ascending from 0 to N:
//         sequence q is tokens [start_q, start_{q+1}). A sequence without tokens has f = 0.
// Numerics  counts are integers, f is one rounded division of them; sums over E in 16 lanes.
// Aliasing  dscores may be scores.
// Devices  CPU.
// Errors  kUsage naming the sequence for starts that do not ascend from 0 to N.
// Source  DeepSeek-V3 technical report, 2024, eq. 17 to 20.

#include "kernels/core/context.h"
#include "kernels/core/tensor.h"

namespace k25::kernels {

struct MoeBalanceDesc {
  std::int64_t tokens = 0, experts = 0, top_k = 0, sequences = 1;
  double coefficient = 0;         ///< c, at least 0
  DType dtype = DType::kFloat32;  ///< fp32 or fp64
  Device device = Device::kCpu;   ///< where it runs
};
struct MoeBalancePlan {
  MoeBalanceDesc desc;
  Bytes workspace_bytes;  ///< of moe_fractions; the others need none
  Bytes saved_bytes;      ///< f
};
struct MoeFractionsIn {
  ConstTensor index_NK, start_S;
};
struct MoeFractionsOut {
  Tensor fraction_QE;
};
struct MoeBalanceForwardIn {
  ConstTensor scores_NE, fraction_QE, start_S;
};
struct MoeBalanceForwardOut {
  Tensor loss_N;
};
struct MoeBalanceBackwardIn {
  ConstTensor scores_NE, fraction_QE, start_S;
};
struct MoeBalanceBackwardOut {
  Tensor dscores_NE;
};

MoeBalancePlan moe_balance_plan(const MoeBalanceDesc& desc);
void moe_fractions(Context& ctx, const MoeBalancePlan& plan, const MoeFractionsIn& in,
                   const MoeFractionsOut& out, Workspace workspace);
void moe_balance_forward(Context& ctx, const MoeBalancePlan& plan, const MoeBalanceForwardIn& in,
                         const MoeBalanceForwardOut& out, Workspace workspace);
void moe_balance_backward(Context& ctx, const MoeBalancePlan& plan, const MoeBalanceBackwardIn& in,
                          const MoeBalanceBackwardOut& out, Workspace workspace);

}  // namespace k25::kernels
