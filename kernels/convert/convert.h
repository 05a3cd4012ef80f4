#pragma once
// Element type conversion:  y_i = x_i.  fp32 <-> bf16 (round to nearest even), fp32 <-> fp64, and
// plain copies. x, y: contiguous views of one element count on one device; they overlap only when
// they are the same view. (kernels/core/device.h copies between devices.)
// Devices  CPU and CUDA, equal bits (IEEE leaves the payload of NaN open where fp64 takes part).

#include "kernels/core/context.h"
#include "kernels/core/tensor.h"

namespace k25::kernels {

void convert(Context& ctx, const ConstTensor& x, const Tensor& y);

}  // namespace k25::kernels
