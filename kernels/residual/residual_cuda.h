#pragma once
// Private to residual: the CUDA version, for operands that residual.cpp has checked.

#include "kernels/residual/residual.h"

namespace k25::kernels {

void residual_forward_cuda(Context& ctx, const ResidualPlan& plan, const ResidualIn& in,
                           const ResidualOut& out);

}  // namespace k25::kernels
