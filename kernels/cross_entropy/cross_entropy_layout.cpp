#include "kernels/cross_entropy/cross_entropy_layout.h"

#include <algorithm>

#include "kernels/core/buffer.h"
#include "kernels/core/operand.h"
#include "kernels/cross_entropy/cross_entropy_cuda.h"

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

GemmDesc dweight_gemm(const CrossEntropyDesc& d, std::int64_t rows, std::int64_t cols,
                      Accumulate accumulate) {
  GemmDesc g;
  g.m = cols;
  g.n = d.hidden;
  g.k = rows;
  g.transpose_a = Transpose::kYes;
  g.dtype_ab = d.dtype;
  g.dtype_d = accumulator_dtype(d.dtype);
  g.device = d.device;
  g.accumulate = accumulate;
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
            dx_gemm(d, rows, cols, Accumulate::kAdd),
            dweight_gemm(d, rows, cols, Accumulate::kOverwrite),
            dweight_gemm(d, rows, cols, Accumulate::kAdd)}) {
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

/// Rows of a tile with chunks of `cols` classes.
std::int64_t cuda_rows(const CrossEntropyDesc& d, std::int64_t cols) {
  std::int64_t row_bytes = align_up(cols, kCudaRowPadding) * 4;
  if (d.dtype == DType::kBFloat16) {
    row_bytes += row_bytes / 2 + align_up(d.hidden, kCudaRowPadding) * 4;
  }
  return std::min(kCudaTileBytes / row_bytes / kCudaTileUnit * kCudaTileUnit, kCudaRows);
}

void choose_cuda_tile(CrossEntropyPlan& plan) {
  const CrossEntropyDesc& d = plan.desc;
  plan.vocab_chunk = std::min(d.vocab, d.vocab_chunk);
  if (d.vocab_chunk == 0) {
    const bool whole = cuda_rows(d, d.vocab) >= kCudaWholeRows;
    plan.vocab_chunk = whole ? d.vocab : part_of(d.vocab, kCudaChunk, kCudaTileUnit);
  }
  plan.row_tile =
      part_of(d.rows, std::max(cuda_rows(d, plan.vocab_chunk), kCudaTileUnit), kCudaTileUnit);
}

}  // namespace

void choose_cross_entropy_tile(CrossEntropyPlan& plan) {
  if (plan.desc.device == Device::kCuda) {
    choose_cuda_tile(plan);
  } else {
    choose_cpu_tile(plan);
  }
}

}  // namespace k25::kernels
