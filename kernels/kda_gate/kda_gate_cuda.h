#pragma once
// Private to kda_gate: the CUDA versions, for operands that kda_gate.cpp has checked.

#include <algorithm>

#include "kernels/kda_gate/kda_gate.h"

namespace k25::kernels {

/// How gate backward cuts rows and columns into partial sums; from the desc alone, so that every
/// build plans the same bytes and bits do not depend on the GPU.
struct KdaGatePartials {
  std::int64_t count;  ///< pieces of the rows
  std::int64_t tiles;  ///< pieces of a head's columns

  /// Floats: ddt_bias [count, M, K], then da_log [count, tiles, M].
  std::int64_t floats(const KdaGateDesc& d) const { return count * d.heads * (d.cols + tiles); }
};

inline constexpr int kKdaGateVector = 4;  ///< elements of a thread at a time

inline KdaGatePartials kda_gate_partials(const KdaGateDesc& d) {
  constexpr std::int64_t kColsOfTile = 32 * kKdaGateVector;       // a warp's
  constexpr std::int64_t kRowsOfPartial = 64, kBlocks = 8 * 132;  // enough for an H200
  const auto pieces = [](std::int64_t n, std::int64_t of) { return (n + of - 1) / of; };
  const std::int64_t tiles = pieces(d.cols, kColsOfTile);
  return {std::min(pieces(d.rows, kRowsOfPartial), pieces(kBlocks, d.heads * tiles)), tiles};
}

void kda_gate_forward_cuda(Context& ctx, const KdaGatePlan& plan, const KdaGateForwardIn& in,
                           const KdaGateForwardOut& out);
void kda_gate_backward_cuda(Context& ctx, const KdaGatePlan& plan, const KdaGateBackwardIn& in,
                            const KdaGateBackwardOut& out, Workspace workspace);
void kda_beta_forward_cuda(Context& ctx, const KdaBetaPlan& plan, const KdaBetaForwardIn& in,
                           const KdaBetaForwardOut& out);
void kda_beta_backward_cuda(Context& ctx, const KdaBetaPlan& plan, const KdaBetaBackwardIn& in,
                            const KdaBetaBackwardOut& out);

}  // namespace k25::kernels
