#pragma once
// Reductions whose result does not depend on how a tensor is sharded or threaded.
//
// A chunk is 4096 elements at a multiple of 4096 in a unit's flat buffer (docs/numerics.md).
// chunk_square_sums: for chunk c, sum over its elements of x^2, in fp64: 32 lanes, lane l adds the
//   elements l, l + 32, ... of the chunk in order (product exact in fp64, one rounding per add),
//   then lanes are added by halves: lane l += lane l + 16, then 8, 4, 2, 1. Non-finite elements
//   give a non-finite sum, so the sums are the finite check too.
// ordered_sum: acc_i = ((acc_i + part_0i) + part_1i) + ... in fp32, parts in index order.
// Devices  an op runs where its operands lie, all of them on one device; CPU and CUDA give equal
//         bits (IEEE leaves the payload of NaN open). add_in_order returns a number to the
//         host, so it takes host memory only: copy the sums there.

#include "kernels/core/context.h"
#include "kernels/core/tensor.h"

namespace k25::kernels {

inline constexpr std::int64_t kChunk = 4096;

/// x: [n] fp32, contiguous, n a multiple of kChunk. sums: [n / kChunk] fp64.
void chunk_square_sums(Context& ctx, const ConstTensor& x_n, const Tensor& sums_c);

/// The sum of `sums` in index order.
double add_in_order(const ConstTensor& sums_c);

/// sums_r: [r] fp64, sums_r[i] = the sum of row i of x ([r, n] fp32, rows dense), in the 32 lanes
/// of chunk_square_sums.
void row_sums(Context& ctx, const ConstTensor& x_rn, const Tensor& sums_r);

/// parts: [p, n] fp32, rows may be strided. acc: [n] fp32, contiguous.
void ordered_sum(Context& ctx, const ConstTensor& parts_pn, const Tensor& acc_n);

/// Writes to first ([1] int64) the index of the first element of x ([n] fp32) that is not finite,
/// or n.
void first_not_finite(Context& ctx, const ConstTensor& x_n, const Tensor& first);

}  // namespace k25::kernels
