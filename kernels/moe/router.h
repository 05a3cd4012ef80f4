#pragma once
// Router of a mixture of experts: which K of E experts each token goes to, and with what weight.
//
// Formula  s = 1 / (1 + exp(-z)),  c = s + b (b: the correction bias, in the choice alone).
//         With G > 1 groups of E / G neighbouring experts, a group's score is the sum of its two
//         largest c (of its one, where it has one), and only the experts of the H groups with the
//         largest scores can be chosen. The K largest c of those are chosen:
//         w_k = scale s_k / (sum over chosen of s + 1e-20), or scale s_k without normalisation.
// Legend  N tokens, E experts, K choices, G groups. z (logits), s (scores): [N, E]; b: [E]; w:
//         [N, K]; all fp32 (or all fp64). index: [N, K] int32, in ascending order of the expert.
//         The caller forms z with an fp32 product (kernels/gemm).
// Ties    go to the lowest index, of groups and of experts.
// Backward  ds_k = scale (dw_k - sum_j dw_j w_j / scale) / (sum of chosen s + 1e-20), or scale
// dw_k;
//         dz = (ds + dscores) s (1 - s), overwritten. dscores: [N, E], optional, what a loss on the
//         scores themselves sends back (kernels/moe/balance.h). The bias has no gradient: it moves
//         by load (kernels/moe/correction_bias.h).
// Numerics  in fp32 (fp64), exp of our own; sums over the chosen in ascending order of the expert.
//         s = 0 for z below -88; if all chosen s are 0, so are their weights.
// NaN     is never lost: a c that is NaN counts as larger than every number, and its expert's
//         weight is NaN. A token with a NaN logit therefore has valid indices and a NaN weight, and
//         with normalisation all its weights are NaN; other tokens are not touched.
// Aliasing  scores may be logits, dlogits may be dscores.
// Devices  CPU.
// Errors  kUsage for K, G, H, E that do not fit together, and in backward, naming token and choice,
//         for an index outside [0, E).
// Source  DeepSeek-V3 technical report, 2024, eq. 12 to 16; group-limited choice as in its section
//         2.1.2.

#include "kernels/core/context.h"
#include "kernels/core/tensor.h"

namespace k25::kernels {

enum class NormalizeWeights : std::uint8_t { kNo, kYes };

struct MoeRouterDesc {
  std::int64_t tokens = 0, experts = 0, top_k = 0;
  std::int64_t groups = 1;      ///< at most 64; divides experts
  std::int64_t top_groups = 1;  ///< groups that can be chosen from
  NormalizeWeights normalize = NormalizeWeights::kYes;
  double scale = 1.0;             ///< routed_scaling_factor
  DType dtype = DType::kFloat32;  ///< fp32 or fp64
  Device device = Device::kCpu;   ///< where it runs
};
struct MoeRouterPlan {
  MoeRouterDesc desc;
  Bytes workspace_bytes;
  Bytes saved_bytes;  ///< scores and index
};
struct MoeRouterForwardIn {
  ConstTensor logits_NE;
  ConstTensor bias_E = {};  ///< optional: none is zero
};
struct MoeRouterForwardOut {
  Tensor scores_NE, weight_NK, index_NK;
};
struct MoeRouterBackwardIn {
  ConstTensor dweight_NK, scores_NE, index_NK;
  ConstTensor dscores_NE = {};  ///< optional
};
struct MoeRouterBackwardOut {
  Tensor dlogits_NE;
};

MoeRouterPlan moe_router_plan(const MoeRouterDesc& desc);
void moe_router_forward(Context& ctx, const MoeRouterPlan& plan, const MoeRouterForwardIn& in,
                        const MoeRouterForwardOut& out, Workspace workspace);
void moe_router_backward(Context& ctx, const MoeRouterPlan& plan, const MoeRouterBackwardIn& in,
                         const MoeRouterBackwardOut& out, Workspace workspace);

}  // namespace k25::kernels
