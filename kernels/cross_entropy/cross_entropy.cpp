#include "kernels/cross_entropy/cross_entropy.h"

#include <algorithm>
#include <string>
#include <type_traits>

#include "kernels/core/buffer.h"
#include "kernels/core/operand.h"
#include "kernels/cross_entropy/cross_entropy_cpu.h"
#include "kernels/gemm/gemm.h"

namespace k25::kernels {
namespace {

constexpr std::int64_t kChunk = 1024;  // classes at a time
constexpr std::int64_t kTileElements =
    1 << 18;  // of a logit tile: 1 MiB in fp32, half a second cache
constexpr std::int64_t kGrainElements = 16384;  // of a logit tile, for one piece of the work

/// z [rows, cols] = x weight^T.
GemmDesc logits_gemm(const CrossEntropyDesc& d, std::int64_t rows, std::int64_t cols) {
  GemmDesc g;
  g.m = rows;
  g.n = cols;
  g.k = d.hidden;
  g.transpose_b = Transpose::kYes;
  g.dtype_ab = d.dtype;
  g.dtype_d = accumulator_dtype(d.dtype);
  return g;
}
/// dx [rows, hidden] (+)= dz weight.
GemmDesc dx_gemm(const CrossEntropyDesc& d, std::int64_t rows, std::int64_t cols,
                 Accumulate accumulate) {
  GemmDesc g;
  g.m = rows;
  g.n = d.hidden;
  g.k = cols;
  g.dtype_ab = d.dtype;
  g.dtype_d = accumulator_dtype(d.dtype);
  g.accumulate = accumulate;
  return g;
}
/// dweight [cols, hidden] += dz^T x.
GemmDesc dweight_gemm(const CrossEntropyDesc& d, std::int64_t rows, std::int64_t cols) {
  GemmDesc g;
  g.m = cols;
  g.n = d.hidden;
  g.k = rows;
  g.transpose_a = Transpose::kYes;
  g.dtype_ab = d.dtype;
  g.dtype_d = accumulator_dtype(d.dtype);
  g.accumulate = Accumulate::kAdd;
  return g;
}

/// The workspace, piece by piece.
struct Scratch {
  Tensor logits, dz, dx, max, sum, target;
  Workspace gemm;
  Bytes total;
};

/// `base` null: sizes only.
Scratch layout(const CrossEntropyPlan& plan, void* base) {
  const CrossEntropyDesc& d = plan.desc;
  Scratch s;
  std::int64_t used = 0;
  const auto take = [&](DType dtype, std::initializer_list<std::int64_t> shape) {
    Tensor t(base == nullptr ? nullptr : static_cast<char*>(base) + used, dtype, shape);
    used += align_up(t.bytes().n);
    return t;
  };
  const DType a = accumulator_dtype(d.dtype);
  s.logits = take(a, {plan.row_tile, plan.vocab_chunk});
  s.dz = s.logits;
  if (a != d.dtype) {
    s.dz = take(d.dtype, {plan.row_tile, plan.vocab_chunk});
    s.dx = take(a, {plan.row_tile, d.hidden});
  }
  s.max = take(a, {plan.row_tile});
  s.sum = take(a, {plan.row_tile});
  s.target = take(a, {plan.row_tile});
  std::int64_t gemm = 0;
  const std::int64_t tiles = plan.row_tile > 0 ? d.rows / plan.row_tile : 0;
  for (const std::int64_t rows : {plan.row_tile, d.rows - tiles * plan.row_tile}) {
    for (const std::int64_t cols : {plan.vocab_chunk, d.vocab % plan.vocab_chunk}) {
      for (const GemmDesc& g :
           {logits_gemm(d, rows, cols), dx_gemm(d, rows, cols, Accumulate::kOverwrite),
            dx_gemm(d, rows, cols, Accumulate::kAdd), dweight_gemm(d, rows, cols)}) {
        gemm = std::max(gemm, gemm_plan(g).workspace_bytes.n);
      }
    }
  }
  s.gemm = {base == nullptr ? nullptr : static_cast<char*>(base) + used, Bytes{gemm}};
  s.total = Bytes{used + align_up(gemm)};
  return s;
}

void check_labels(const ConstTensor& label, const CrossEntropyDesc& d) {
  if (d.rows == 0) return;
  const std::int32_t* const labels = label.data<std::int32_t>();
  for (std::int64_t n = 0; n < d.rows; ++n) {
    if (labels[n] == kIgnoredLabel || (labels[n] >= 0 && labels[n] < d.vocab)) continue;
    fail(ErrorKind::kUsage, "cross_entropy: row " + std::to_string(n) + " has label " +
                                std::to_string(labels[n]) + ", not in [0, " +
                                std::to_string(d.vocab) + ") and not " +
                                std::to_string(kIgnoredLabel) + " (ignored)");
  }
}

void check_inputs(const CrossEntropyDesc& d, const ConstTensor& x, const ConstTensor& weight,
                  const ConstTensor& label) {
  const std::string_view op = "cross_entropy";
  check_operand(op, "x", x, d.dtype, {d.rows, d.hidden}, Density::kRows);
  check_operand(op, "weight", weight, d.dtype, {d.vocab, d.hidden}, Density::kRows);
  check_operand(op, "label", label, DType::kInt32, {d.rows}, Density::kContiguous);
  check_labels(label, d);
}

/// One call on one row tile: its logits chunk by chunk.
template <class T, class A>
struct TileRun {
  Context& ctx;
  const CrossEntropyPlan& plan;
  const Scratch& scratch;
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
  /// Logits of classes [first, first + cols); sets up `tile`.
  void logits(std::int64_t first, std::int64_t cols) {
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
TileRun<T, A> tile_run(Context& ctx, const CrossEntropyPlan& plan, const Scratch& scratch,
                       const ConstTensor& x, const ConstTensor& weight, const ConstTensor& label,
                       std::int64_t begin, std::int64_t end) {
  TileRun<T, A> run{ctx,         plan,    scratch, x.slice(0, begin, end), weight, {},
                    end - begin, nullptr, nullptr};
  run.tile.label = label.data<std::int32_t>() + begin;
  run.tile.max = scratch.max.data<A>();
  run.tile.sum = scratch.sum.data<A>();
  run.tile.target = scratch.target.data<A>();
  return run;
}

template <class T, class A>
void forward_typed(Context& ctx, const CrossEntropyPlan& plan, const CrossEntropyForwardIn& in,
                   const CrossEntropyForwardOut& out, const Scratch& scratch) {
  const CrossEntropyDesc& d = plan.desc;
  for (std::int64_t begin = 0; begin < d.rows; begin += plan.row_tile) {
    const std::int64_t end = std::min(begin + plan.row_tile, d.rows);
    auto run = tile_run<T, A>(ctx, plan, scratch, in.x_ND, in.weight_VD, in.label_N, begin, end);
    if (out.argmax_N) run.tile.argmax = out.argmax_N.data<std::int32_t>() + begin;
    for (std::int64_t v = 0; v < d.vocab; v += plan.vocab_chunk) {
      run.logits(v, std::min(plan.vocab_chunk, d.vocab - v));
      run.softmax();
    }
    A* const nll = out.nll_N.data<A>() + begin;
    A* const lse = out.lse_N.data<A>() + begin;
    K25_ISA_CALL(ctx.isa, softmax_finish, run.tile, nll, lse, std::int64_t{0}, run.rows);
  }
}

/// dx of a tile without labels: zeros.
void zero_rows(const Tensor& t) {
  for (std::int64_t n = 0; n < t.dim(0); ++n) {
    char* const row = static_cast<char*>(t.raw()) + n * t.stride(0) * dtype_bytes(t.dtype());
    std::fill_n(row, t.dim(1) * dtype_bytes(t.dtype()), char{0});
  }
}

template <class T, class A>
void backward_typed(Context& ctx, const CrossEntropyPlan& plan, const CrossEntropyBackwardIn& in,
                    const CrossEntropyBackwardOut& out, const Scratch& scratch) {
  const CrossEntropyDesc& d = plan.desc;
  for (std::int64_t begin = 0; begin < d.rows; begin += plan.row_tile) {
    const std::int64_t end = std::min(begin + plan.row_tile, d.rows);
    auto run = tile_run<T, A>(ctx, plan, scratch, in.x_ND, in.weight_VD, in.label_N, begin, end);
    const Tensor dx = out.dx_ND.slice(0, begin, end);
    if (std::all_of(run.tile.label, run.tile.label + run.rows,
                    [](std::int32_t label) { return label < 0; })) {
      zero_rows(dx);
      continue;
    }
    const A* const lse = in.lse_N.data<A>() + begin;
    const Tensor sum = scratch.dx ? scratch.dx.slice(0, 0, run.rows) : dx;
    for (std::int64_t v = 0; v < d.vocab; v += plan.vocab_chunk) {
      const std::int64_t cols = std::min(plan.vocab_chunk, d.vocab - v);
      run.logits(v, cols);
      const Tensor dz = run.chunk_view(scratch.dz, cols);
      run.gradients(lse, dz.template data<T>());
      const auto accumulate = v == 0 ? Accumulate::kOverwrite : Accumulate::kAdd;
      run.gemm(dx_gemm(d, run.rows, cols, accumulate), dz, in.weight_VD.slice(0, v, v + cols), sum);
      if (!out.dweight_VD) continue;
      run.gemm(dweight_gemm(d, run.rows, cols), dz, run.x, out.dweight_VD.slice(0, v, v + cols));
    }
    if constexpr (!std::is_same_v<T, A>) {
      K25_ISA_CALL(ctx.isa, round_rows, sum.template data<A>(), sum.stride(0),
                   dx.template data<T>(), dx.stride(0), d.hidden, std::int64_t{0}, run.rows);
    }
  }
}

}  // namespace

CrossEntropyPlan cross_entropy_plan(const CrossEntropyDesc& d) {
  K25_CHECK(d.rows >= 0, "cross_entropy: rows " + std::to_string(d.rows) + " must not be negative");
  K25_CHECK(d.hidden > 0,
            "cross_entropy: hidden " + std::to_string(d.hidden) + " must be positive");
  K25_CHECK(d.vocab > 0 && d.vocab <= INT32_MAX,
            "cross_entropy: vocab " + std::to_string(d.vocab) + " must be in [1, 2^31)");
  K25_CHECK(d.vocab_chunk >= 0, "cross_entropy: vocab_chunk " + std::to_string(d.vocab_chunk) +
                                    " must be positive, or 0 to let the plan choose");
  check_float_dtype("cross_entropy", d.dtype);
  CrossEntropyPlan plan;
  plan.desc = d;
  // Chunks of about equal size, so that the last is no sliver.
  const std::int64_t chunks = (d.vocab + kChunk - 1) / kChunk;
  plan.vocab_chunk = std::min(
      d.vocab, d.vocab_chunk > 0 ? d.vocab_chunk : align_up((d.vocab + chunks - 1) / chunks, 16));
  const std::int64_t tile = kTileElements / plan.vocab_chunk / 32 * 32;
  plan.row_tile = std::min(d.rows, std::clamp<std::int64_t>(tile, 32, kChunk));
  plan.workspace_bytes = d.rows > 0 ? layout(plan, nullptr).total : Bytes{0};
  plan.saved_bytes = bytes_of(Elems{d.rows}, accumulator_dtype(d.dtype));
  return plan;
}

void cross_entropy_forward(Context& ctx, const CrossEntropyPlan& plan,
                           const CrossEntropyForwardIn& in, const CrossEntropyForwardOut& out,
                           Workspace workspace) {
  const CrossEntropyDesc& d = plan.desc;
  const std::string_view op = "cross_entropy";
  check_inputs(d, in.x_ND, in.weight_VD, in.label_N);
  check_operand(op, "nll", out.nll_N, accumulator_dtype(d.dtype), {d.rows}, Density::kContiguous);
  check_operand(op, "lse", out.lse_N, accumulator_dtype(d.dtype), {d.rows}, Density::kContiguous);
  if (out.argmax_N) {
    check_operand(op, "argmax", out.argmax_N, DType::kInt32, {d.rows}, Density::kContiguous);
  }
  check_workspace(op, workspace, plan.workspace_bytes);
  if (d.rows == 0) return;
  const Scratch scratch = layout(plan, workspace.data);
  switch (d.dtype) {
    case DType::kFloat64:
      return forward_typed<double, double>(ctx, plan, in, out, scratch);
    case DType::kBFloat16:
      return forward_typed<BFloat16, float>(ctx, plan, in, out, scratch);
    default:
      return forward_typed<float, float>(ctx, plan, in, out, scratch);
  }
}

void cross_entropy_backward(Context& ctx, const CrossEntropyPlan& plan,
                            const CrossEntropyBackwardIn& in, const CrossEntropyBackwardOut& out,
                            Workspace workspace) {
  const CrossEntropyDesc& d = plan.desc;
  const std::string_view op = "cross_entropy";
  check_inputs(d, in.x_ND, in.weight_VD, in.label_N);
  check_operand(op, "lse", in.lse_N, accumulator_dtype(d.dtype), {d.rows}, Density::kContiguous);
  check_operand(op, "dx", out.dx_ND, d.dtype, {d.rows, d.hidden}, Density::kRows);
  if (out.dweight_VD) {
    check_operand(op, "dweight", out.dweight_VD, accumulator_dtype(d.dtype), {d.vocab, d.hidden},
                  Density::kRows);
  }
  check_workspace(op, workspace, plan.workspace_bytes);
  if (d.rows == 0) return;
  const Scratch scratch = layout(plan, workspace.data);
  switch (d.dtype) {
    case DType::kFloat64:
      return backward_typed<double, double>(ctx, plan, in, out, scratch);
    case DType::kBFloat16:
      return backward_typed<BFloat16, float>(ctx, plan, in, out, scratch);
    default:
      return backward_typed<float, float>(ctx, plan, in, out, scratch);
  }
}

}  // namespace k25::kernels
