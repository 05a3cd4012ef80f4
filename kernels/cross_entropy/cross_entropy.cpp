#include "kernels/cross_entropy/cross_entropy.h"

#include <algorithm>
#include <string>
#include <type_traits>

#include "kernels/core/buffer.h"
#include "kernels/core/operand.h"
#include "kernels/cross_entropy/cross_entropy_cpu.h"
#include "kernels/cross_entropy/cross_entropy_cuda.h"
#include "kernels/cross_entropy/cross_entropy_layout.h"

namespace k25::kernels {

namespace {

constexpr std::int64_t kGrainElements = 16384;  // of a logit tile, for one piece of the work

/// One call on one row tile: its logits chunk by chunk.
template <class T, class A>
struct TileRun {
  Context& ctx;
  const CrossEntropyPlan& plan;
  const CrossEntropyScratch& scratch;
  ConstTensor x, weight;  // x: rows of this tile
  LogitTile<A> tile;
  std::int64_t rows;
  const A* tile_lse = nullptr;  // what gradients() hands to the threads
  T* tile_dz = nullptr;

  void gemm(const GemmDesc& g, const ConstTensor& a, const ConstTensor& b, const Tensor& d) {
    gemm_forward(ctx, gemm_plan(g), {a, b}, {d}, scratch.gemm);
  }
  Tensor chunk_view(const Tensor& t, std::int64_t cols) const {
    return Tensor(t.raw(), t.dtype(), {rows, cols});
  }
  /// Logits of classes [first, first + cols), unless they are still there from forward.
  void logits(std::int64_t first, std::int64_t cols) {
    if (tile.cols > 0 && tile.first_class == first) return;
    const Tensor z = chunk_view(scratch.logits, cols);
    gemm(logits_gemm(plan.desc, rows, cols), x, weight.slice(0, first, first + cols), z);
    tile.z = z.data<A>();
    tile.cols = cols;
    tile.first_class = first;
  }
  // NOTE: the bodies of parallel_for capture one pointer, so that std::function allocates nothing.
  void softmax() const {
    const auto* const run = this;
    parallel_for(ctx.threads, rows, grain(), [run](std::int64_t begin, std::int64_t end) {
      K25_ISA_CALL(run->ctx.isa, softmax_chunk, run->tile, begin, end);
    });
  }
  void gradients(const A* lse, T* dz) {
    tile_lse = lse;
    tile_dz = dz;
    const auto* const run = this;
    parallel_for(ctx.threads, rows, grain(), [run](std::int64_t begin, std::int64_t end) {
      K25_ISA_CALL(run->ctx.isa, logit_gradients, run->tile, run->tile_lse, run->tile_dz, begin,
                   end);
    });
  }
  std::int64_t grain() const {
    return std::max<std::int64_t>(1, kGrainElements / plan.vocab_chunk);
  }
};

template <class T, class A>
TileRun<T, A> tile_run(Context& ctx, const CrossEntropyPlan& plan,
                       const CrossEntropyScratch& scratch, const ConstTensor& x,
                       const ConstTensor& weight, const ConstTensor& label, std::int64_t begin,
                       std::int64_t end) {
  TileRun<T, A> run{ctx,         plan,    scratch, x.slice(0, begin, end), weight, {},
                    end - begin, nullptr, nullptr};
  run.tile.label = label.data<std::int32_t>() + begin;
  run.tile.max = scratch.max.data<A>();
  run.tile.sum = scratch.sum.data<A>();
  run.tile.target = scratch.target.data<A>();
  return run;
}

/// dx of a tile without labels: zeros.
void zero_rows(const Tensor& t) {
  for (std::int64_t n = 0; n < t.dim(0); ++n) {
    char* const row = static_cast<char*>(t.raw()) + n * t.stride(0) * dtype_bytes(t.dtype());
    std::fill_n(row, t.dim(1) * dtype_bytes(t.dtype()), char{0});
  }
}

/// dweight where no row has a label: the product over no rows.
void finish_unwritten(Context& ctx, const CrossEntropyDesc& d, const Tensor& dweight_VD,
                      Accumulate dweight_mode) {
  if (!dweight_VD) return;
  const Tensor dz(nullptr, d.dtype, {0, d.vocab}, d.device);
  const Tensor x(nullptr, d.dtype, {0, d.hidden}, d.device);
  gemm_forward(ctx, gemm_plan(dweight_gemm(d, 0, d.vocab, dweight_mode)), {dz, x}, {dweight_VD},
               {});
}

template <class T, class A>
void forward_tile(TileRun<T, A>& run, const CrossEntropyPass& pass, std::int64_t begin) {
  const CrossEntropyDesc& d = run.plan.desc;
  if (pass.argmax_N) run.tile.argmax = pass.argmax_N.template data<std::int32_t>() + begin;
  for (std::int64_t v = 0; v < d.vocab; v += run.plan.vocab_chunk) {
    run.logits(v, std::min(run.plan.vocab_chunk, d.vocab - v));
    run.softmax();
  }
  A* const nll = pass.nll_N.template data<A>() + begin;
  A* const lse = pass.lse_N.template data<A>() + begin;
  K25_ISA_CALL(run.ctx.isa, softmax_finish, run.tile, nll, lse, std::int64_t{0}, run.rows);
}

template <class T, class A>
void backward_tile(TileRun<T, A>& run, const CrossEntropyPass& pass, std::int64_t begin,
                   Accumulate& dweight_mode) {
  const CrossEntropyDesc& d = run.plan.desc;
  const Tensor dx = pass.dx_ND.slice(0, begin, begin + run.rows);
  if (std::all_of(run.tile.label, run.tile.label + run.rows,
                  [](std::int32_t label) { return label < 0; })) {
    return zero_rows(dx);
  }
  const A* const lse = pass.known_lse_N.template data<A>() + begin;
  const Tensor sum = run.scratch.dx ? run.scratch.dx.slice(0, 0, run.rows) : dx;
  for (std::int64_t v = 0; v < d.vocab; v += run.plan.vocab_chunk) {
    const std::int64_t cols = std::min(run.plan.vocab_chunk, d.vocab - v);
    run.logits(v, cols);
    const Tensor dz = run.chunk_view(run.scratch.dz, cols);
    run.gradients(lse, dz.template data<T>());
    const auto accumulate = v == 0 ? Accumulate::kOverwrite : Accumulate::kAdd;
    run.gemm(dx_gemm(d, run.rows, cols, accumulate), dz, pass.weight_VD.slice(0, v, v + cols), sum);
    if (!pass.dweight_VD) continue;
    run.gemm(dweight_gemm(d, run.rows, cols, dweight_mode), dz, run.x,
             pass.dweight_VD.slice(0, v, v + cols));
  }
  dweight_mode = Accumulate::kAdd;
  if constexpr (!std::is_same_v<T, A>) {
    K25_ISA_CALL(run.ctx.isa, round_rows, sum.template data<A>(), sum.stride(0),
                 dx.template data<T>(), dx.stride(0), d.hidden, std::int64_t{0}, run.rows);
  }
}

template <class T, class A>
void run_typed(Context& ctx, const CrossEntropyPlan& plan, const CrossEntropyPass& pass,
               const CrossEntropyScratch& scratch) {
  Accumulate dweight_mode = pass.dweight_mode;  // of the next tile with a label
  for (std::int64_t begin = 0; begin < plan.desc.rows; begin += plan.row_tile) {
    const std::int64_t end = std::min(begin + plan.row_tile, plan.desc.rows);
    auto run =
        tile_run<T, A>(ctx, plan, scratch, pass.x_ND, pass.weight_VD, pass.label_N, begin, end);
    if (pass.nll_N) forward_tile(run, pass, begin);
    if (pass.dx_ND) backward_tile(run, pass, begin, dweight_mode);
  }
  finish_unwritten(ctx, plan.desc, pass.dweight_VD, dweight_mode);
}

void check_pass(const CrossEntropyPlan& plan, const CrossEntropyPass& pass, Workspace workspace) {
  const CrossEntropyDesc& d = plan.desc;
  const std::string_view op = "cross_entropy";
  check_operand(op, "x", pass.x_ND, d.dtype, {d.rows, d.hidden}, Density::kRows, d.device);
  check_operand(op, "weight", pass.weight_VD, d.dtype, {d.vocab, d.hidden}, Density::kRows,
                d.device);
  check_operand(op, "label", pass.label_N, DType::kInt32, {d.rows}, Density::kContiguous, d.device);
  if (d.device == Device::kCpu) cross_entropy_check_labels(d, pass.label_N);
  if (pass.argmax_N) {
    check_operand(op, "argmax", pass.argmax_N, DType::kInt32, {d.rows}, Density::kContiguous,
                  d.device);
  }
  if (pass.dweight_VD) {
    check_operand(op, "dweight", pass.dweight_VD, accumulator_dtype(d.dtype), {d.vocab, d.hidden},
                  Density::kRows, d.device);
  }
  check_workspace(op, workspace, plan.workspace_bytes);
}

void check_row_statistic(const CrossEntropyDesc& d, std::string_view name, const ConstTensor& t_N) {
  check_operand("cross_entropy", name, t_N, accumulator_dtype(d.dtype), {d.rows},
                Density::kContiguous, d.device);
}

void check_dx(const CrossEntropyDesc& d, const Tensor& dx_ND) {
  check_operand("cross_entropy", "dx", dx_ND, d.dtype, {d.rows, d.hidden}, Density::kRows,
                d.device);
}

void run_pass(Context& ctx, const CrossEntropyPlan& plan, const CrossEntropyPass& pass,
              Workspace workspace) {
  const CrossEntropyDesc& d = plan.desc;
  check_pass(plan, pass, workspace);
  if (d.rows == 0) return finish_unwritten(ctx, d, pass.dweight_VD, pass.dweight_mode);
  if constexpr (kWithCuda) {
    if (d.device == Device::kCuda) return cross_entropy_cuda(ctx, plan, pass, workspace);
  }
  const CrossEntropyScratch scratch = cross_entropy_scratch(plan, workspace.data);
  switch (d.dtype) {
    case DType::kFloat64:
      return run_typed<double, double>(ctx, plan, pass, scratch);
    case DType::kBFloat16:
      return run_typed<BFloat16, float>(ctx, plan, pass, scratch);
    default:
      return run_typed<float, float>(ctx, plan, pass, scratch);
  }
}

}  // namespace

void cross_entropy_check_labels(const CrossEntropyDesc& d, const ConstTensor& host_label_N) {
  if (d.rows == 0) return;
  const std::int32_t* const labels = host_label_N.data<std::int32_t>();
  for (std::int64_t n = 0; n < d.rows; ++n) {
    if (labels[n] == kIgnoredLabel || (labels[n] >= 0 && labels[n] < d.vocab)) continue;
    fail(ErrorKind::kUsage, "cross_entropy: row " + std::to_string(n) + " has label " +
                                std::to_string(labels[n]) + ", not in [0, " +
                                std::to_string(d.vocab) + ") and not " +
                                std::to_string(kIgnoredLabel) + " (ignored)");
  }
}

CrossEntropyPlan cross_entropy_plan(const CrossEntropyDesc& d) {
  K25_CHECK(d.rows >= 0, "cross_entropy: rows " + std::to_string(d.rows) + " must not be negative");
  K25_CHECK(d.hidden > 0,
            "cross_entropy: hidden " + std::to_string(d.hidden) + " must be positive");
  K25_CHECK(d.vocab > 0 && d.vocab <= INT32_MAX,
            "cross_entropy: vocab " + std::to_string(d.vocab) + " must be in [1, 2^31)");
  K25_CHECK(d.vocab_chunk >= 0, "cross_entropy: vocab_chunk " + std::to_string(d.vocab_chunk) +
                                    " must be positive, or 0 to let the plan choose");
  check_float_dtype("cross_entropy", d.dtype, d.device);
  K25_CHECK(d.device == Device::kCpu || d.dtype != DType::kFloat64,
            "cross_entropy: fp64 runs on the CPU only; use fp32 or bf16 on the GPU");
  CrossEntropyPlan plan;
  plan.desc = d;
  choose_cross_entropy_tile(plan);
  plan.workspace_bytes = d.rows > 0 ? cross_entropy_scratch(plan, nullptr).total : Bytes{0};
  plan.saved_bytes = bytes_of(Elems{d.rows}, accumulator_dtype(d.dtype));
  return plan;
}

void cross_entropy_forward(Context& ctx, const CrossEntropyPlan& plan,
                           const CrossEntropyForwardIn& in, const CrossEntropyForwardOut& out,
                           Workspace workspace) {
  check_row_statistic(plan.desc, "nll", out.nll_N);
  check_row_statistic(plan.desc, "lse", out.lse_N);
  run_pass(ctx, plan,
           {.x_ND = in.x_ND,
            .weight_VD = in.weight_VD,
            .label_N = in.label_N,
            .nll_N = out.nll_N,
            .lse_N = out.lse_N,
            .argmax_N = out.argmax_N},
           workspace);
}

void cross_entropy_backward(Context& ctx, const CrossEntropyPlan& plan,
                            const CrossEntropyBackwardIn& in, const CrossEntropyBackwardOut& out,
                            Workspace workspace) {
  check_row_statistic(plan.desc, "lse", in.lse_N);
  check_dx(plan.desc, out.dx_ND);
  run_pass(ctx, plan,
           {.x_ND = in.x_ND,
            .weight_VD = in.weight_VD,
            .label_N = in.label_N,
            .known_lse_N = in.lse_N,
            .dx_ND = out.dx_ND,
            .dweight_VD = out.dweight_VD,
            .dweight_mode = out.dweight_mode},
           workspace);
}

void cross_entropy_train(Context& ctx, const CrossEntropyPlan& plan,
                         const CrossEntropyForwardIn& in, const CrossEntropyTrainOut& out,
                         Workspace workspace) {
  check_row_statistic(plan.desc, "nll", out.nll_N);
  check_row_statistic(plan.desc, "lse", out.lse_N);
  check_dx(plan.desc, out.dx_ND);
  run_pass(ctx, plan,
           {.x_ND = in.x_ND,
            .weight_VD = in.weight_VD,
            .label_N = in.label_N,
            .nll_N = out.nll_N,
            .lse_N = out.lse_N,
            .argmax_N = out.argmax_N,
            .known_lse_N = out.lse_N,
            .dx_ND = out.dx_ND,
            .dweight_VD = out.dweight_VD,
            .dweight_mode = out.dweight_mode},
           workspace);
}

}  // namespace k25::kernels
