#pragma once
// Private to adamw: the CUDA version, for operands that adamw.cpp has checked.

#include "kernels/adamw/adamw.h"

namespace k25::kernels {

void adamw_update_cuda(Context& ctx, const AdamWIn& in, const AdamWOut& out);

}  // namespace k25::kernels
