#pragma once
// Private to convert: the CUDA version, for operands that convert.cpp has checked.

#include "kernels/convert/convert.h"

namespace k25::kernels {

void convert_cuda(Context& ctx, const ConstTensor& x, const Tensor& y);

}  // namespace k25::kernels
