#pragma once
// RMSNorm of every head, then a sigmoid gate, for the output of kernels/kda:
//         y = x / sqrt(mean(x^2) + eps) * gain * sigmoid(gate).
//
// Legend  N rows of H heads, D columns. x, gate, y and their gradients: [N, H, D] of one dtype
//         (fp32, bf16, fp64), D dense, other strides free. gain, dgain: [D], shared by the heads;
//         rstd: [N, H]; fp32 (fp64 for fp64), contiguous. rstd = 1 / sqrt(mean + eps).
// Numerics  fp32 for fp32 and bf16 storage, one rounding.
// Backward  with n = x rstd, s = sigmoid(gate), z = dy gain s:
//         dx = rstd (z - n mean(z n));  dgate = dy n gain s (1 - s), both overwritten;
//         dgain += sum over rows and heads of dy n s, in blocks of rows that the shape decides.
// Aliasing  y may be x or gate; dx may be dy or x, dgate may be dy or gate.
// Devices  CPU, with equal bits on all instruction sets, and CUDA, which adds in another order.
// Workspace  backward: partial sums of dgain. Forward: none.
// Source  Zhang and Sennrich, "Root mean square layer normalization", NeurIPS 2019;
//         Kimi Team, "Kimi Linear", 2025, section 4 (the gate).

#include "kernels/core/context.h"
#include "kernels/core/tensor.h"

namespace k25::kernels {

struct GatedRmsNormDesc {
  std::int64_t rows = 0, heads = 1, cols = 0;
  DType dtype = DType::kFloat32;
  double eps = 1e-5;
  Device device = Device::kCpu;  ///< where it runs
};

struct GatedRmsNormPlan {
  GatedRmsNormDesc desc;
  Bytes workspace_bytes;  ///< of backward; forward needs none
  Bytes saved_bytes;      ///< rstd
};

struct GatedRmsNormForwardIn {
  ConstTensor x_NHD, gate_NHD, gain_D;
};
struct GatedRmsNormForwardOut {
  Tensor y_NHD, rstd_NH;
};
struct GatedRmsNormBackwardIn {
  ConstTensor dy_NHD, x_NHD, gate_NHD, gain_D, rstd_NH;
};
struct GatedRmsNormBackwardOut {
  Tensor dx_NHD, dgate_NHD;
  Tensor dgain_D;  ///< optional (frozen gain)
};

GatedRmsNormPlan gated_rmsnorm_plan(const GatedRmsNormDesc& desc);
void gated_rmsnorm_forward(Context& ctx, const GatedRmsNormPlan& plan,
                           const GatedRmsNormForwardIn& in, const GatedRmsNormForwardOut& out,
                           Workspace workspace);
void gated_rmsnorm_backward(Context& ctx, const GatedRmsNormPlan& plan,
                            const GatedRmsNormBackwardIn& in, const GatedRmsNormBackwardOut& out,
                            Workspace workspace);

}  // namespace k25::kernels
