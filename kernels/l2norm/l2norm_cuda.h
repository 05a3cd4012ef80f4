#pragma once
// Private to l2norm: the CUDA versions, for operands that l2norm.cpp has checked.

#include "kernels/l2norm/l2norm.h"

namespace k25::kernels {

void l2norm_forward_cuda(Context& ctx, const L2NormPlan& plan, const L2NormForwardIn& in,
                         const L2NormForwardOut& out);
void l2norm_backward_cuda(Context& ctx, const L2NormPlan& plan, const L2NormBackwardIn& in,
                          const L2NormBackwardOut& out);

}  // namespace k25::kernels
