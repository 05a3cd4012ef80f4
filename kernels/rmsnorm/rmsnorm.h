#pragma once
// Residual add and RMSNorm in one pass:  s = x + residual;  y = s / sqrt(mean(s^2) + eps) * gain.
// Without a residual, s = x and nothing is written to `sum`.
//
// Legend  N rows, D columns. x, residual, sum, y: [N, D] of one dtype (fp32, bf16, on the CPU
// fp64),
//         rows dense.
//         gain: [D], fp32 (fp64 for fp64). rstd: [N], fp32 (fp64 for fp64): 1 / sqrt(mean + eps).
// Numerics  Sums in fp32 for fp32 and bf16 storage. `sum` is rounded to its dtype before the norm
//         reads it, so that backward sees the same value: y and rstd have the bits that the op
//         gives for x = sum without a residual.
// Backward  dx = rstd (gain dy - x_hat mean(gain dy x_hat)) + d_sum,  x_hat = sum * rstd;
//         dgain += sum over rows of dy x_hat (fp32; fp64 for fp64), in blocks of rows that the
//         shape alone decides.
//         d_sum (optional) is the gradient that reaches `sum` by the residual path.
//         dx is the gradient of both x and residual.
// Aliasing  sum may be x or residual; dx may be dy or d_sum.
// Devices  CPU and CUDA, which add in different orders, each always in the same.
// Workspace  backward: partial sums of dgain. Forward: none.
// Source  Zhang and Sennrich, "Root mean square layer normalization", NeurIPS 2019, eq. 4.

#include "kernels/core/context.h"
#include "kernels/core/tensor.h"

namespace k25::kernels {

struct RmsNormDesc {
  std::int64_t rows = 0, cols = 0;
  DType dtype = DType::kFloat32;
  double eps = 1e-6;
  Device device = Device::kCpu;  ///< where it runs
};

struct RmsNormPlan {
  RmsNormDesc desc;
  Bytes workspace_bytes;  ///< of backward; forward needs none
  Bytes saved_bytes;      ///< rstd
};

struct RmsNormForwardIn {
  ConstTensor x_ND, residual_ND, gain_D;  ///< residual optional
};
struct RmsNormForwardOut {
  Tensor sum_ND, y_ND, rstd_N;  ///< sum only with a residual
};
struct RmsNormBackwardIn {
  ConstTensor dy_ND, sum_ND, gain_D, rstd_N, d_sum_ND;  ///< d_sum optional
};
struct RmsNormBackwardOut {
  Tensor dx_ND, dgain_D;  ///< dgain optional (frozen gain)
};

RmsNormPlan rmsnorm_plan(const RmsNormDesc& desc);
void rmsnorm_forward(Context& ctx, const RmsNormPlan& plan, const RmsNormForwardIn& in,
                     const RmsNormForwardOut& out, Workspace workspace);
void rmsnorm_backward(Context& ctx, const RmsNormPlan& plan, const RmsNormBackwardIn& in,
                      const RmsNormBackwardOut& out, Workspace workspace);

}  // namespace k25::kernels
