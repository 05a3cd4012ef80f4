#pragma once
// Experts to tokens: each token's K rows, weighted and added.
//
// Forward   y_n = sum over k of w_nk rows_{row_nk}, k in order; overwritten.
// Backward  drows_r = w_nk dy_n, with n K + k = choice_r; overwritten. It is moe_permute_forward of
//           dy where all weights are one. dw_nk = sum over d of rows_{row_nk, d} dy_nd;
//           overwritten.
// Legend    as kernels/moe/permute.h. y, dy: [N, D], rows, drows: [R, D] of one dtype, rows dense.
//           w, dw: [N, K] fp32 (fp64 for fp64). row, choice: what moe_sort wrote.
// Numerics  products and sums in fp32 (fp64), rounded once; dw in 16 lanes, element d in lane d mod
//           16.
// Aliasing  drows may be rows: dw is formed first.
// Devices   CPU.
// Errors    kUsage naming the entry for a map that points outside.

#include "kernels/core/context.h"
#include "kernels/core/tensor.h"

namespace k25::kernels {

struct MoeCombineDesc {
  std::int64_t tokens = 0, top_k = 0, hidden = 0;
  DType dtype = DType::kFloat32;
  Device device = Device::kCpu;  ///< where it runs
};
struct MoeCombinePlan {
  MoeCombineDesc desc;
  Bytes workspace_bytes;
};
struct MoeCombineForwardIn {
  ConstTensor rows_RD, weight_NK, row_NK;
};
struct MoeCombineForwardOut {
  Tensor y_ND;
};
struct MoeCombineBackwardIn {
  ConstTensor dy_ND, rows_RD, weight_NK, row_NK, choice_R;
};
struct MoeCombineBackwardOut {
  Tensor drows_RD, dweight_NK;
};

MoeCombinePlan moe_combine_plan(const MoeCombineDesc& desc);
void moe_combine_forward(Context& ctx, const MoeCombinePlan& plan, const MoeCombineForwardIn& in,
                         const MoeCombineForwardOut& out, Workspace workspace);
void moe_combine_backward(Context& ctx, const MoeCombinePlan& plan, const MoeCombineBackwardIn& in,
                          const MoeCombineBackwardOut& out, Workspace workspace);

}  // namespace k25::kernels
