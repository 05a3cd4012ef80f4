#pragma once
// Private to gated_rmsnorm: the CUDA versions, for operands that gated_rmsnorm.cpp has checked.

#include <algorithm>

#include "kernels/gated_rmsnorm/gated_rmsnorm.h"

namespace k25::kernels {

/// Partial sums of dgain that backward leaves in the workspace: one for each of its blocks. From
/// the desc alone, so that every build plans the same bytes and bits do not depend on the GPU.
inline std::int64_t gated_rmsnorm_partials(const GatedRmsNormDesc& d) {
  constexpr std::int64_t kMost = 4 * 132;  // blocks that an H200 runs at a time
  constexpr std::int64_t kItemsOfBlock = 64;
  return std::min(kMost, (d.rows * d.heads + kItemsOfBlock - 1) / kItemsOfBlock);
}

void gated_rmsnorm_forward_cuda(Context& ctx, const GatedRmsNormPlan& plan,
                                const GatedRmsNormForwardIn& in, const GatedRmsNormForwardOut& out);
void gated_rmsnorm_backward_cuda(Context& ctx, const GatedRmsNormPlan& plan,
                                 const GatedRmsNormBackwardIn& in,
                                 const GatedRmsNormBackwardOut& out, Workspace workspace);

}  // namespace k25::kernels
