#pragma once
// Products of consecutive groups of rows, each group with a matrix of its own.
//
// Forward   y_r = W_e x_r for the rows r of group e.
// Backward  dx_r = W_e^T dy_r, overwritten;  dW_e += sum over the rows r of e of dy_r x_r^T.
// Legend    E groups, B = E + 1 borders, R rows, at most max_rows of the plan; K inputs, N outputs.
//         x, dx: [R, K], y, dy: [R, N], W: [E, N, K] of one dtype (fp32, bf16, fp64), rows dense.
//         dW: [E, N, K] fp32 (fp64). offset: [B] int64, ascending from 0 to R: group e is rows
//         [offset_e, offset_{e+1}). A group without rows costs nothing, and its dW is not touched.
// Numerics  one product of kernels/gemm a group: its bits are those of gemm_forward on the group
//         alone, whatever groups lie around it, and do not depend on threads.
// Threads   Groups of at least kGroupedGemmLarge rows run one after the other, each on all threads;
//         smaller ones side by side.
// Aliasing  none.
// Devices   CPU.
// Errors    kUsage naming the group for offsets that do not ascend from 0 to R, and for more rows
//         than planned.

#include "kernels/core/context.h"
#include "kernels/core/tensor.h"

namespace k25::kernels {

inline constexpr std::int64_t kGroupedGemmLarge = 256;

struct GroupedGemmDesc {
  std::int64_t groups = 0, max_rows = 0;
  std::int64_t n = 0, k = 0;
  DType dtype = DType::kFloat32;
  Device device = Device::kCpu;  ///< where it runs
};
struct GroupedGemmPlan {
  GroupedGemmDesc desc;
  Bytes workspace_bytes;
};
struct GroupedGemmForwardIn {
  ConstTensor x_RK, weight_ENK, offset_B;
};
struct GroupedGemmForwardOut {
  Tensor y_RN;
};
struct GroupedGemmBackwardIn {
  ConstTensor dy_RN, x_RK, weight_ENK, offset_B;
};
struct GroupedGemmBackwardOut {
  Tensor dx_RK, dweight_ENK;  ///< each optional; x is read for dweight, weight for dx
};

GroupedGemmPlan grouped_gemm_plan(const GroupedGemmDesc& desc);
void grouped_gemm_forward(Context& ctx, const GroupedGemmPlan& plan, const GroupedGemmForwardIn& in,
                          const GroupedGemmForwardOut& out, Workspace workspace);
void grouped_gemm_backward(Context& ctx, const GroupedGemmPlan& plan,
                           const GroupedGemmBackwardIn& in, const GroupedGemmBackwardOut& out,
                           Workspace workspace);

}  // namespace k25::kernels
