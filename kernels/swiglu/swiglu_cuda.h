#pragma once
// Private to swiglu: the CUDA versions, for operands that swiglu.cpp has checked.

#include "kernels/swiglu/swiglu.h"

namespace k25::kernels {

void swiglu_forward_cuda(Context& ctx, const SwigluPlan& plan, const SwigluForwardIn& in,
                         const SwigluForwardOut& out);
void swiglu_backward_cuda(Context& ctx, const SwigluPlan& plan, const SwigluBackwardIn& in,
                          const SwigluBackwardOut& out);

}  // namespace k25::kernels
