#include "kernels/core/cuda_check.h"
#include "kernels/core/cuda_math.cuh"
#include "kernels/reduce/reduce_cuda.h"

namespace k25::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksPerSm = 16;

/// One warp a chunk: the 32 lanes of reduce.h are the lanes of the warp.
__global__ void __launch_bounds__(kThreads)
    square_sums_kernel(const float* x, double* sums, std::int64_t chunks) {
  constexpr int kSteps = static_cast<int>(kChunk / cuda::kWarp);
  const int lane = static_cast<int>(threadIdx.x) % cuda::kWarp;
  const std::int64_t stride = std::int64_t{gridDim.x} * (kThreads / cuda::kWarp);
  std::int64_t c = std::int64_t{blockIdx.x} * (kThreads / cuda::kWarp) + threadIdx.x / cuda::kWarp;
  for (; c < chunks; c += stride) {
    const float* const p = x + c * kChunk + lane;
    double sum = 0;
#pragma unroll 32
    for (int i = 0; i < kSteps; ++i) {
      const double v = p[i * cuda::kWarp];
      sum = fma(v, v, sum);  // the product is exact, so this rounds as mul and add do
    }
#pragma unroll
    for (int by = cuda::kWarp / 2; by > 0; by /= 2) sum += __shfl_down_sync(~0u, sum, by);
    if (lane == 0) sums[c] = sum;
  }
}

/// One warp a row, in the same lanes.
__global__ void __launch_bounds__(kThreads)
    row_sums_kernel(const float* x, std::int64_t stride, std::int64_t n, double* sums,
                    std::int64_t rows) {
  const int lane = static_cast<int>(threadIdx.x) % cuda::kWarp;
  constexpr int kRows = kThreads / cuda::kWarp;
  std::int64_t r = std::int64_t{blockIdx.x} * kRows + threadIdx.x / cuda::kWarp;
  for (; r < rows; r += std::int64_t{gridDim.x} * kRows) {
    double sum = 0;
    for (std::int64_t i = lane; i < n; i += cuda::kWarp) sum += x[r * stride + i];
#pragma unroll
    for (int by = cuda::kWarp / 2; by > 0; by /= 2) sum += __shfl_down_sync(~0u, sum, by);
    if (lane == 0) sums[r] = sum;
  }
}

struct OrderedSumOp {
  const float* parts;
  std::int64_t num_parts, stride;
  float* acc;

  template <int N>
  using In = cuda::Vec<float, N>;
  template <int N>
  __device__ In<N> load(std::int64_t i) const {
    return cuda::load_aligned<float, N>(acc + i);
  }
  template <int N>
  __device__ void finish(std::int64_t i, const In<N>& in) const {
    float sum[N];
    in.widen(sum);
#pragma unroll 8
    for (std::int64_t p = 0; p < num_parts; ++p) {
      const auto part = cuda::load_aligned<float, N>(parts + p * stride + i);
#pragma unroll
      for (int j = 0; j < N; ++j) sum[j] += part.get(j);
    }
    cuda::store_aligned(acc + i, cuda::Vec<float, N>::narrow(sum));
  }
};

struct FindOp {
  const float* x;
  long long* first;

  template <int N>
  using In = cuda::Vec<float, N>;
  template <int N>
  __device__ In<N> load(std::int64_t i) const {
    return cuda::load_aligned<float, N>(x + i);
  }
  template <int N>
  __device__ void finish(std::int64_t i, const In<N>& in) const {
    constexpr std::uint32_t kExponent = 0x7f800000u;
    int at = N;
#pragma unroll
    for (int j = N - 1; j >= 0; --j) {
      if ((in.word[j] & kExponent) == kExponent) at = j;
    }
    // A minimum of integers does not depend on who comes first. Looking before keeps a tensor of
    // NaN from queueing at one address.
    if (at < N && i + at < *static_cast<volatile long long*>(first)) atomicMin(first, i + at);
  }
};

__global__ void set_kernel(long long* to, long long value) { *to = value; }

}  // namespace

void chunk_square_sums_cuda(Context& ctx, const ConstTensor& x_n, const Tensor& sums_c) {
  const std::int64_t chunks = sums_c.dim(0);
  const unsigned grid = cuda::grid_blocks(ctx, chunks, kThreads / cuda::kWarp, kBlocksPerSm);
  square_sums_kernel<<<grid, kThreads, 0, ctx.stream>>>(x_n.data<float>(), sums_c.data<double>(),
                                                        chunks);
  K25_CUDA_CHECK_LAUNCH();
}

void row_sums_cuda(Context& ctx, const ConstTensor& x_rn, const Tensor& sums_r) {
  const std::int64_t rows = sums_r.dim(0);
  const unsigned grid = cuda::grid_blocks(ctx, rows, kThreads / cuda::kWarp, kBlocksPerSm);
  row_sums_kernel<<<grid, kThreads, 0, ctx.stream>>>(x_rn.data<float>(), x_rn.stride(0),
                                                     x_rn.dim(1), sums_r.data<double>(), rows);
  K25_CUDA_CHECK_LAUNCH();
}

void ordered_sum_cuda(Context& ctx, const ConstTensor& parts_pn, const Tensor& acc_n) {
  constexpr int kWidth = 4;
  const OrderedSumOp op{parts_pn.data<float>(), parts_pn.dim(0), parts_pn.stride(0),
                        acc_n.data<float>()};
  const bool aligned = cuda::all_aligned(cuda::kVectorBytes, op.parts, op.acc) &&
                       (op.num_parts == 1 || op.stride % kWidth == 0);
  cuda::launch_flat<kWidth, 1>(ctx, op, acc_n.dim(0), aligned);
  K25_CUDA_CHECK_LAUNCH();
}

void first_not_finite_cuda(Context& ctx, const ConstTensor& x_n, const Tensor& first) {
  const std::int64_t n = x_n.dim(0);
  auto* const to = reinterpret_cast<long long*>(first.data<std::int64_t>());
  set_kernel<<<1, 1, 0, ctx.stream>>>(to, n);
  K25_CUDA_CHECK_LAUNCH();
  if (n == 0) return;
  const FindOp op{x_n.data<float>(), to};
  cuda::launch_flat<4, 4>(ctx, op, n, cuda::all_aligned(cuda::kVectorBytes, op.x));
  K25_CUDA_CHECK_LAUNCH();
}

}  // namespace k25::kernels
