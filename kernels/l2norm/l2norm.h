#pragma once
// Rows of norm 1, for the queries and keys of kernels/kda:  y = x / sqrt(sum(x^2) + eps).
//
// Legend  N rows of H heads, D columns. x, y, dx, dy: [N, H, D] of one dtype (fp32, bf16, fp64),
//         D dense, other strides free (a head may be a slice of a wider row). rstd: [N, H], fp32
//         (fp64 for fp64), contiguous: 1 / sqrt(sum + eps).
// Numerics  fp32 sums for fp32 and bf16 storage, one rounding. A row of zeros gives zeros.
// Backward  from y as it is stored, so that x need not be kept:
//         dx = rstd (dy - y sum(y dy)), overwritten.
// Aliasing  y may be x; dx may be dy.
// Devices  CPU, with equal bits on all instruction sets, and CUDA, which adds in another order.
// Workspace  none.

#include "kernels/core/context.h"
#include "kernels/core/tensor.h"

namespace k25::kernels {

struct L2NormDesc {
  std::int64_t rows = 0, heads = 1, cols = 0;
  DType dtype = DType::kFloat32;
  double eps = 1e-6;
  Device device = Device::kCpu;  ///< where it runs
};

struct L2NormPlan {
  L2NormDesc desc;
  Bytes workspace_bytes;  ///< 0
  Bytes saved_bytes;      ///< rstd
};

struct L2NormForwardIn {
  ConstTensor x_NHD;
};
struct L2NormForwardOut {
  Tensor y_NHD, rstd_NH;
};
struct L2NormBackwardIn {
  ConstTensor dy_NHD, y_NHD, rstd_NH;
};
struct L2NormBackwardOut {
  Tensor dx_NHD;
};

L2NormPlan l2norm_plan(const L2NormDesc& desc);
void l2norm_forward(Context& ctx, const L2NormPlan& plan, const L2NormForwardIn& in,
                    const L2NormForwardOut& out, Workspace workspace);
void l2norm_backward(Context& ctx, const L2NormPlan& plan, const L2NormBackwardIn& in,
                     const L2NormBackwardOut& out, Workspace workspace);

}  // namespace k25::kernels
