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

GemmDesc logits_gemm(const CrossEntropyDesc& d, std::int64_t rows, std::int64_t cols) {
  GemmDesc g;
  g.m = rows;
  g.n = cols;
  g.k = d.hidden;
  g.transpose_b = Transpose::kYes;
  g.dtype_ab = d.dtype;
  g.dtype_d = accumulator_dtype(d.dtype);
  g.device = d.device;
  return g;
}

GemmDesc dx_gemm(const CrossEntropyDesc& d, std::int64_t rows, std::int64_t cols,
                 Accumulate accumulate) {
  GemmDesc g;
  g.m = rows;
  g.n = d.hidden;
  g.k = cols;
  g.dtype_ab = d.dtype;
  g.dtype_d = accumulator_dtype(d.dtype);
  g.device = d.device;
  g.accumulate = accumulate;
  return g;
}

GemmDesc dweight_gemm(const CrossEntropyDesc& d, std::int64_t rows, std::int64_t cols) {
  GemmDesc g;
  g.m = cols;
  g.n = d.hidden;
  g.k = rows;
  g.transpose_a = Transpose::kYes;
  g.dtype_ab = d.dtype;
  g.dtype_d = accumulator_dtype(d.dtype);
  g.device = d.device;
  g.accumulate = Accumulate::kAdd;
  return g;
}

CrossEntropyScratch cross_entropy_scratch(const CrossEntropyPlan& plan, void* base) {
  const CrossEntropyDesc& d = plan.desc;
  CrossEntropyScratch s;
  std::int64_t used = 0;
  const auto take = [&](DType dtype, std::initializer_list<std::int64_t> shape) {
    Tensor t(base == nullptr ? nullptr : static_cast<char*>(base) + used, dtype, shape, d.device);
    used += align_up(t.bytes().n);
    return t;
  };
  const auto take_rows = [&](DType dtype, std::int64_t cols) {
    const std::int64_t padded = d.device == Device::kCuda ? align_up(cols, kCudaRowPadding) : cols;
    return take(dtype, {plan.row_tile, padded}).slice(1, 0, cols);
  };
  const DType a = accumulator_dtype(d.dtype);
  s.logits = take_rows(a, plan.vocab_chunk);
  s.dz = s.logits;
  if (a != d.dtype) {
    s.dz = take_rows(d.dtype, plan.vocab_chunk);
    s.dx = take_rows(a, d.hidden);
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

namespace {

constexpr std::int64_t kChunk = 1024;  // classes at a time
constexpr std::int64_t kTileElements =
    1 << 18;  // of a logit tile: 1 MiB in fp32, half a second cache
constexpr std::int64_t kGrainElements = 16384;  // of a logit tile, for one piece of the work

void check_inputs(const CrossEntropyDesc& d, const ConstTensor& x, const ConstTensor& weight,
                  const ConstTensor& label) {
  const std::string_view op = "cross_entropy";
  check_operand(op, "x", x, d.dtype, {d.rows, d.hidden}, Density::kRows, d.device);
  check_operand(op, "weight", weight, d.dtype, {d.vocab, d.hidden}, Density::kRows, d.device);
  check_operand(op, "label", label, DType::kInt32, {d.rows}, Density::kContiguous, d.device);
  if (d.device == Device::kCpu) cross_entropy_check_labels(d, label);
}

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

template <class T, class A>
void forward_typed(Context& ctx, const CrossEntropyPlan& plan, const CrossEntropyForwardIn& in,
                   const CrossEntropyForwardOut& out, const CrossEntropyScratch& scratch) {
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
                    const CrossEntropyBackwardOut& out, const CrossEntropyScratch& scratch) {
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

/// About equal parts of n, at most `most` each and a multiple of `unit`, so that the last is no
/// sliver.
std::int64_t part_of(std::int64_t n, std::int64_t most, std::int64_t unit) {
  const std::int64_t parts = (n + most - 1) / most;
  return parts == 0 ? 0 : std::min(n, align_up((n + parts - 1) / parts, unit));
}

void choose_cpu_tile(CrossEntropyPlan& plan) {
  const CrossEntropyDesc& d = plan.desc;
  plan.vocab_chunk =
      d.vocab_chunk > 0 ? std::min(d.vocab, d.vocab_chunk) : part_of(d.vocab, kChunk, 16);
  const std::int64_t tile = kTileElements / plan.vocab_chunk / 32 * 32;
  plan.row_tile = std::min(d.rows, std::clamp<std::int64_t>(tile, 32, kChunk));
}

void choose_cuda_tile(CrossEntropyPlan& plan) {
  const CrossEntropyDesc& d = plan.desc;
  plan.vocab_chunk = d.vocab_chunk > 0 ? std::min(d.vocab, d.vocab_chunk)
                                       : part_of(d.vocab, kCudaChunk, kCudaTileUnit);
  std::int64_t row_bytes = align_up(plan.vocab_chunk, kCudaRowPadding) * 4;
  if (d.dtype == DType::kBFloat16) {
    row_bytes += row_bytes / 2 + align_up(d.hidden, kCudaRowPadding) * 4;
  }
  const std::int64_t most =
      std::min(kCudaTileBytes / row_bytes / kCudaTileUnit * kCudaTileUnit, kCudaRows);
  plan.row_tile = part_of(d.rows, std::max(most, kCudaTileUnit), kCudaTileUnit);
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
  if (d.device == Device::kCuda) {
    choose_cuda_tile(plan);
  } else {
    choose_cpu_tile(plan);
  }
  plan.workspace_bytes = d.rows > 0 ? cross_entropy_scratch(plan, nullptr).total : Bytes{0};
  plan.saved_bytes = bytes_of(Elems{d.rows}, accumulator_dtype(d.dtype));
  return plan;
}

void cross_entropy_forward(Context& ctx, const CrossEntropyPlan& plan,
                           const CrossEntropyForwardIn& in, const CrossEntropyForwardOut& out,
                           Workspace workspace) {
  const CrossEntropyDesc& d = plan.desc;
  const std::string_view op = "cross_entropy";
  check_inputs(d, in.x_ND, in.weight_VD, in.label_N);
  check_operand(op, "nll", out.nll_N, accumulator_dtype(d.dtype), {d.rows}, Density::kContiguous,
                d.device);
  check_operand(op, "lse", out.lse_N, accumulator_dtype(d.dtype), {d.rows}, Density::kContiguous,
                d.device);
  if (out.argmax_N) {
    check_operand(op, "argmax", out.argmax_N, DType::kInt32, {d.rows}, Density::kContiguous,
                  d.device);
  }
  check_workspace(op, workspace, plan.workspace_bytes);
  if (d.rows == 0) return;
  if constexpr (kWithCuda) {
    if (d.device == Device::kCuda) {
      return cross_entropy_forward_cuda(ctx, plan, in, out, workspace);
    }
  }
  const CrossEntropyScratch scratch = cross_entropy_scratch(plan, workspace.data);
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
  check_operand(op, "lse", in.lse_N, accumulator_dtype(d.dtype), {d.rows}, Density::kContiguous,
                d.device);
  check_operand(op, "dx", out.dx_ND, d.dtype, {d.rows, d.hidden}, Density::kRows, d.device);
  if (out.dweight_VD) {
    check_operand(op, "dweight", out.dweight_VD, accumulator_dtype(d.dtype), {d.vocab, d.hidden},
                  Density::kRows, d.device);
  }
  check_workspace(op, workspace, plan.workspace_bytes);
  if (d.rows == 0) return;
  if constexpr (kWithCuda) {
    if (d.device == Device::kCuda) {
      return cross_entropy_backward_cuda(ctx, plan, in, out, workspace);
    }
  }
  const CrossEntropyScratch scratch = cross_entropy_scratch(plan, workspace.data);
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
