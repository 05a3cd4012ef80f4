#pragma once
// Private to conv1d: the CUDA versions, for operands that conv1d.cpp has checked.

#include <algorithm>

#include "kernels/conv1d/conv1d.h"

namespace k25::kernels {

inline constexpr std::int64_t kConv1dTile = 64;  ///< tokens that a thread walks through

inline std::int64_t conv1d_tiles_of_row(const Conv1dDesc& d) {
  return (d.tokens + kConv1dTile - 1) / kConv1dTile;
}

/// Partial sums of dweight that backward leaves in the workspace, [partials, D, 4]. From the desc
/// alone, so that every build plans the same bytes and bits do not depend on the GPU.
inline std::int64_t conv1d_partials(const Conv1dDesc& d) {
  constexpr std::int64_t kMost = 256;
  return std::min(kMost, d.batch * conv1d_tiles_of_row(d));
}

void conv1d_forward_cuda(Context& ctx, const Conv1dPlan& plan, const Conv1dForwardIn& in,
                         const Conv1dForwardOut& out);
void conv1d_backward_cuda(Context& ctx, const Conv1dPlan& plan, const Conv1dBackwardIn& in,
                          const Conv1dBackwardOut& out, Workspace workspace);

}  // namespace k25::kernels
