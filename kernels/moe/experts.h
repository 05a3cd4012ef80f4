#pragma once
// The SwiGLU experts of a mixture, on rows sorted by expert (kernels/moe/permute.h).
//
// Forward   [gate | up]_r = U_e x_r,  a_r = silu(gate_r) up_r,  y_r = D_e a_r  for the rows r of e.
// Backward  of all three; dx is overwritten, dU and dD are added to. a is formed again, by
//         swiglu_backward.
// Legend    E experts, B = E + 1 borders, R rows, at most max_rows of the plan, D hidden, F inner
//         width, G = 2 F. x, y, dx, dy: [R, D], gate_up: [R, G], U: [E, G, D], D: [E, D, F] of one
//         dtype (fp32, bf16, fp64), rows dense. dU, dD: fp32 (fp64). offset: [B] int64.
// Numerics  those of kernels/moe/grouped_gemm.h and kernels/swiglu/swiglu.h.
// Aliasing  y may be x, when x is not needed again; dx may be dy.
// Devices   CPU.
// Errors    as grouped_gemm.

#include "kernels/core/context.h"
#include "kernels/core/tensor.h"

namespace k25::kernels {

struct MoeExpertsDesc {
  std::int64_t experts = 0, max_rows = 0;
  std::int64_t hidden = 0, ffn = 0;
  DType dtype = DType::kFloat32;
  Device device = Device::kCpu;  ///< where it runs
};
struct MoeExpertsPlan {
  MoeExpertsDesc desc;
  Bytes workspace_bytes;  ///< of backward, which needs more: products, a and [dgate | dup]
  Bytes saved_bytes;      ///< gate_up of max_rows
};
struct MoeExpertsForwardIn {
  ConstTensor x_RD, w_gate_up_EGD, w_down_EDF, offset_B;
};
struct MoeExpertsForwardOut {
  Tensor gate_up_RG, y_RD;
};
struct MoeExpertsBackwardIn {
  ConstTensor dy_RD, x_RD, gate_up_RG, w_gate_up_EGD, w_down_EDF, offset_B;
};
struct MoeExpertsBackwardOut {
  Tensor dx_RD;
  Tensor dw_gate_up_EGD = {}, dw_down_EDF = {};  ///< each optional (frozen experts)
};

MoeExpertsPlan moe_experts_plan(const MoeExpertsDesc& desc);
void moe_experts_forward(Context& ctx, const MoeExpertsPlan& plan, const MoeExpertsForwardIn& in,
                         const MoeExpertsForwardOut& out, Workspace workspace);
void moe_experts_backward(Context& ctx, const MoeExpertsPlan& plan, const MoeExpertsBackwardIn& in,
                          const MoeExpertsBackwardOut& out, Workspace workspace);

}  // namespace k25::kernels
