#pragma once
// Private to gemm and cross_entropy: fp32 rows on the GPU become bf16 rows.

#include "kernels/core/context.h"
#include "kernels/core/tensor.h"
#include "kernels/gemm/gemm.h"

namespace k25::kernels {

/// to = from, or to += from with one rounding. `from` fp32 and `to` bf16, both [rows, cols] with
/// dense rows; they do not overlap.
void round_rows_cuda(const Context& ctx, const ConstTensor& from, const Tensor& to,
                     Accumulate accumulate);

}  // namespace k25::kernels
