#pragma once
// Private to rope: the CUDA version, for operands that rope.cpp has checked (but the positions).

#include "kernels/rope/rope.h"

namespace k25::kernels {

/// Rotates by direction x angle; direction is 1 or -1.
void rope_cuda(Context& ctx, const RopeDesc& desc, const RopeIn& in, const RopeOut& out,
               float direction);

}  // namespace k25::kernels
