// The GPU's loop over row tiles and vocabulary chunks: products in cuBLASLt, passes in our kernels.

#include "kernels/cross_entropy/cross_entropy_cuda.h"

#include <algorithm>

#include "kernels/gemm/round_rows_cuda.h"

namespace k25::kernels {
namespace {

/// One call on one row tile.
struct TileRun {
  Context& ctx;
  const CrossEntropyPlan& plan;
  const CrossEntropyScratch& scratch;
  ConstTensor x, weight;  ///< x: rows of this tile
  LogitTileCuda tile;

  void gemm(const GemmDesc& g, const ConstTensor& a, const ConstTensor& b, const Tensor& d) {
    gemm_forward(ctx, gemm_plan(g), {a, b}, {d}, scratch.gemm);
  }
  Tensor chunk_view(const Tensor& t) const {
    return t.slice(0, 0, tile.rows).slice(1, 0, tile.cols);
  }
  /// Logits of classes [first, first + cols), unless they are still there from forward.
  void logits(std::int64_t first) {
    if (tile.cols > 0 && tile.first_class == first) return;
    const CrossEntropyDesc& d = plan.desc;
    tile.first_class = first;
    tile.cols = std::min(plan.vocab_chunk, d.vocab - first);
    gemm(logits_gemm(d, tile.rows, tile.cols), x, weight.slice(0, first, first + tile.cols),
         chunk_view(scratch.logits));
  }
};

TileRun tile_run(Context& ctx, const CrossEntropyPlan& plan, const CrossEntropyScratch& scratch,
                 const ConstTensor& x, const ConstTensor& weight, const ConstTensor& label,
                 std::int64_t begin) {
  const std::int64_t end = std::min(begin + plan.row_tile, plan.desc.rows);
  TileRun run{ctx, plan, scratch, x.slice(0, begin, end), weight, {}};
  run.tile.z = scratch.logits.data<float>();
  run.tile.z_stride = scratch.logits.stride(0);
  run.tile.rows = end - begin;
  run.tile.vocab = plan.desc.vocab;
  run.tile.label = label.data<std::int32_t>() + begin;
  run.tile.max = scratch.max.data<float>();
  run.tile.sum = scratch.sum.data<float>();
  run.tile.target = scratch.target.data<float>();
  return run;
}

void forward_tile(TileRun& run, const CrossEntropyPass& pass, std::int64_t begin) {
  run.tile.nll = pass.nll_N.data<float>() + begin;
  run.tile.lse = pass.lse_N.data<float>() + begin;
  if (pass.argmax_N) run.tile.argmax = pass.argmax_N.data<std::int32_t>() + begin;
  for (std::int64_t v = 0; v < run.plan.desc.vocab; v += run.plan.vocab_chunk) {
    run.logits(v);
    softmax_chunk_cuda(run.ctx, run.tile);
  }
}

void backward_tile(TileRun& run, const CrossEntropyPass& pass, std::int64_t begin) {
  const CrossEntropyDesc& d = run.plan.desc;
  // The kernel only reads it.
  run.tile.lse = const_cast<float*>(pass.known_lse_N.data<float>()) + begin;
  const Tensor dx = pass.dx_ND.slice(0, begin, begin + run.tile.rows);
  const Tensor sum = run.scratch.dx ? run.scratch.dx.slice(0, 0, run.tile.rows) : dx;
  for (std::int64_t v = 0; v < d.vocab; v += run.plan.vocab_chunk) {
    run.logits(v);
    const std::int64_t cols = run.tile.cols;
    const Tensor dz = run.chunk_view(run.scratch.dz);
    logit_gradients_cuda(run.ctx, run.tile, dz.raw(), d.dtype);
    const auto accumulate = v == 0 ? Accumulate::kOverwrite : Accumulate::kAdd;
    run.gemm(dx_gemm(d, run.tile.rows, cols, accumulate), dz, pass.weight_VD.slice(0, v, v + cols),
             sum);
    if (!pass.dweight_VD) continue;
    const auto mode = begin == 0 ? pass.dweight_mode : Accumulate::kAdd;
    run.gemm(dweight_gemm(d, run.tile.rows, cols, mode), dz, run.x,
             pass.dweight_VD.slice(0, v, v + cols));
  }
  if (run.scratch.dx) round_rows_cuda(run.ctx, sum, dx, Accumulate::kOverwrite);
}

}  // namespace

void cross_entropy_cuda(Context& ctx, const CrossEntropyPlan& plan, const CrossEntropyPass& pass,
                        Workspace workspace) {
  const CrossEntropyScratch scratch = cross_entropy_scratch(plan, workspace.data);
  for (std::int64_t begin = 0; begin < plan.desc.rows; begin += plan.row_tile) {
    TileRun run = tile_run(ctx, plan, scratch, pass.x_ND, pass.weight_VD, pass.label_N, begin);
    if (pass.nll_N) forward_tile(run, pass, begin);
    if (pass.dx_ND) backward_tile(run, pass, begin);
  }
}

}  // namespace k25::kernels
