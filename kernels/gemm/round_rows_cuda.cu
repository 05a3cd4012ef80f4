#include "kernels/core/cuda_check.h"
#include "kernels/core/cuda_math.cuh"
#include "kernels/gemm/round_rows_cuda.h"

namespace k25::kernels {
namespace {

using cuda::Access;
using cuda::Vec;

constexpr int kThreads = 256;
constexpr int kBlocksPerSm = 8;
constexpr int kVector = 8;  // columns of one thread at a time: 16 bytes of bf16

struct Rows {
  const float* from;
  BFloat16* to;
  std::int64_t from_stride, to_stride, rows, cols;
};

template <Access kAccess, Accumulate kMode>
__device__ __forceinline__ void round_piece(const float* from, BFloat16* to, std::int64_t count) {
  float values[kVector];
  cuda::load<kAccess, kVector>(from, count).widen(values);
  if constexpr (kMode == Accumulate::kAdd) {
    const auto old = cuda::load<kAccess, kVector>(to, count);
#pragma unroll
    for (int i = 0; i < kVector; ++i) values[i] += old.get(i);
  }
  cuda::store<kAccess>(to, Vec<BFloat16, kVector>::narrow(values), count);
}

/// kAccess: kAligned when the rows of both operands begin on a border of a vector.
template <Access kAccess, Accumulate kMode>
__global__ void __launch_bounds__(kThreads) round_rows(const Rows r) {
  const std::int64_t pieces = cuda::ceil_div(r.cols, kVector);
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < r.rows * pieces;
       i += step) {
    const std::int64_t row = i / pieces;
    const std::int64_t col = (i - row * pieces) * kVector;
    const float* const from = r.from + row * r.from_stride + col;
    BFloat16* const to = r.to + row * r.to_stride + col;
    if (kAccess == Access::kAligned && col + kVector <= r.cols) {
      round_piece<Access::kAligned, kMode>(from, to, kVector);
    } else {
      round_piece<Access::kScalar, kMode>(from, to, r.cols - col);
    }
  }
}

template <Accumulate kMode>
void launch(const Context& ctx, const Rows& r) {
  const unsigned grid =
      cuda::grid_blocks(ctx, r.rows * cuda::ceil_div(r.cols, kVector), kThreads, kBlocksPerSm);
  const bool aligned =
      cuda::all_aligned(cuda::kVectorBytes, r.from, r.to) &&
      (r.rows == 1 || (r.from_stride % kVector == 0 && r.to_stride % kVector == 0));
  if (aligned) {
    round_rows<Access::kAligned, kMode><<<grid, kThreads, 0, ctx.stream>>>(r);
  } else {
    round_rows<Access::kScalar, kMode><<<grid, kThreads, 0, ctx.stream>>>(r);
  }
  K25_CUDA_CHECK_LAUNCH();
}

}  // namespace

void round_rows_cuda(const Context& ctx, const ConstTensor& from, const Tensor& to,
                     Accumulate accumulate) {
  const Rows r{from.data<float>(), to.data<BFloat16>(), from.stride(0),
               to.stride(0),       from.dim(0),         from.dim(1)};
  if (r.rows == 0 || r.cols == 0) return;
  if (accumulate == Accumulate::kAdd) {
    launch<Accumulate::kAdd>(ctx, r);
  } else {
    launch<Accumulate::kOverwrite>(ctx, r);
  }
}

}  // namespace k25::kernels
