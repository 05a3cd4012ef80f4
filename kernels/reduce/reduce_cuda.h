#pragma once
// Private to reduce: the CUDA versions, for operands that reduce.cpp has checked.

#include "kernels/reduce/reduce.h"

namespace k25::kernels {

void chunk_square_sums_cuda(Context& ctx, const ConstTensor& x_n, const Tensor& sums_c);
void row_sums_cuda(Context& ctx, const ConstTensor& x_rn, const Tensor& sums_r);
void ordered_sum_cuda(Context& ctx, const ConstTensor& parts_pn, const Tensor& acc_n);
void first_not_finite_cuda(Context& ctx, const ConstTensor& x_n, const Tensor& first);

}  // namespace k25::kernels
