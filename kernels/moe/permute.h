#pragma once
// Tokens to experts: the order in which a mixture of experts computes its rows, and the copy into
// that order.
//
// moe_sort    R = N K rows, one for each choice of each token, sorted by expert; within an expert
// by
//             token, then by choice. Exactly R rows: no capacity, nothing is dropped.
// Forward     rows_r = x_{choice_r / K}.
// Backward    dx_n = sum over k of drows_{row_nk}, k in order; overwritten. It is
// moe_combine_forward
//             (kernels/moe/combine.h) with weights of one, and the transpose of forward: <rows, y>
//             = <x, dx(y)> for every y.
// Legend  N tokens, E experts, K choices, R rows, B = E + 1 borders, D hidden. x, dx: [N, D], rows,
//         drows: [R, D], one dtype (fp32, bf16, fp64), rows dense. index: [N, K] int32.
//         count: [E] int64, rows of each expert, zero where nobody chose it. offset: [B] int64,
//         expert e's rows are [offset_e, offset_{e+1}). row: [N, K] int32, where token n's choice k
//         lies. choice: [R] int32, n K + k of each row. row and choice are each other's inverse.
// Numerics  forward copies bits. Backward sums in fp32 (fp64), rounded once.
// Aliasing  none.
// Devices  CPU. R is below 2^31.
// Errors  kUsage naming token and choice for an expert outside [0, E) (nothing is written), and the
//         row for a map entry that points outside.

#include "kernels/core/context.h"
#include "kernels/core/tensor.h"

namespace k25::kernels {

struct MoePermuteDesc {
  std::int64_t tokens = 0, experts = 0, top_k = 0, hidden = 0;
  DType dtype = DType::kFloat32;
  Device device = Device::kCpu;  ///< where it runs
};
struct MoePermutePlan {
  MoePermuteDesc desc;
  std::int64_t rows = 0;  ///< R
  Bytes workspace_bytes;
  Bytes saved_bytes;  ///< what moe_sort writes
};
struct MoeSortIn {
  ConstTensor index_NK;
};
struct MoeSortOut {
  Tensor count_E, offset_B, row_NK, choice_R;
};
struct MoePermuteForwardIn {
  ConstTensor x_ND, choice_R;
};
struct MoePermuteForwardOut {
  Tensor rows_RD;
};
struct MoePermuteBackwardIn {
  ConstTensor drows_RD, row_NK;
};
struct MoePermuteBackwardOut {
  Tensor dx_ND;
};

MoePermutePlan moe_permute_plan(const MoePermuteDesc& desc);
void moe_sort(Context& ctx, const MoePermutePlan& plan, const MoeSortIn& in, const MoeSortOut& out,
              Workspace workspace);
void moe_permute_forward(Context& ctx, const MoePermutePlan& plan, const MoePermuteForwardIn& in,
                         const MoePermuteForwardOut& out, Workspace workspace);
void moe_permute_backward(Context& ctx, const MoePermutePlan& plan, const MoePermuteBackwardIn& in,
                          const MoePermuteBackwardOut& out, Workspace workspace);

}  // namespace k25::kernels
