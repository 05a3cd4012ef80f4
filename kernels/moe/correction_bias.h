#pragma once
// The router's correction bias moves by load, not by gradient: an expert with less than the mean
// load is raised by `rate`, one with more is lowered by it, one with exactly the mean stays.
//
// Formula  b_e += rate sign(sum of counts - E count_e).
// Legend  E experts. bias: [E] fp32 (fp64). count: [E] int64, the tokens that chose e since the
// last
//         update, added over micro-batches and ranks by the caller; integers, so in any order.
// Numerics  The sign is exact, the sum is one rounded addition: equal bits on every rank.
// Errors  kUsage for a rate that is negative or not finite, for a negative count (naming the
// expert)
//         and for counts whose sum leaves int64 when it is multiplied by E.
// Source  Wang et al., "Auxiliary-loss-free load balancing strategy for mixture-of-experts", 2024,
//         algorithm 1.

#include "kernels/core/tensor.h"

namespace k25::kernels {

/// In host memory. All zero counts move nothing.
void moe_update_correction_bias(const Tensor& bias_E, const ConstTensor& count_E, double rate);

}  // namespace k25::kernels
