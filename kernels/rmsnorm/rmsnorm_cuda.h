#pragma once
// Private to rmsnorm: the CUDA versions, for operands that rmsnorm.cpp has checked.

#include "kernels/rmsnorm/rmsnorm.h"

namespace k25::kernels {

void rmsnorm_forward_cuda(Context& ctx, const RmsNormPlan& plan, const RmsNormForwardIn& in,
                          const RmsNormForwardOut& out);
void rmsnorm_backward_cuda(Context& ctx, const RmsNormPlan& plan, const RmsNormBackwardIn& in,
                           const RmsNormBackwardOut& out, Workspace workspace);

}  // namespace k25::kernels
