// A row is held in registers by a group of threads: part of a warp, a warp or the block. Thread g
// of G holds vectors g, g + G, ... Rows too long for that are read twice.

#include "kernels/core/cuda_check.h"
#include "kernels/core/cuda_math.cuh"
#include "kernels/rmsnorm/rmsnorm_cuda.h"

namespace k25::kernels {
namespace {

using cuda::Access;

constexpr int kMaxThreads = 512;  // of a block that keeps a row in registers
constexpr int kLongThreads = 1024;

enum class Residual : std::uint8_t { kAbsent, kAdded };

template <class T>
struct Args {
  std::int64_t rows, cols;
  float eps;
  const T* x;
  std::int64_t x_stride;
  const T* residual;  ///< null: none
  std::int64_t residual_stride;
  const float* gain;
  T* sum;
  std::int64_t sum_stride;
  T* y;
  std::int64_t y_stride;
  float* rstd;
};

template <int N, class V>
__device__ __forceinline__ float add_squares(const V& v, float total) {
#pragma unroll
  for (int j = 0; j < N; ++j) total = fmaf(v.get(j), v.get(j), total);
  return total;
}

template <int N, class V>
__device__ __forceinline__ V add(const V& a, const V& b) {
  float sum[N];
#pragma unroll
  for (int j = 0; j < N; ++j) sum[j] = a.get(j) + b.get(j);
  return V::narrow(sum);
}

template <int N, class V>
__device__ __forceinline__ V normalize(const V& s, const cuda::Vec<float, N>& gain, float rstd) {
  float y[N];
#pragma unroll
  for (int j = 0; j < N; ++j) y[j] = s.get(j) * rstd * gain.get(j);
  return V::narrow(y);
}

template <class T>
__device__ __forceinline__ float inverse_root(const Args<T>& a, float squares) {
  return 1.f / sqrtf(squares / static_cast<float>(a.cols) + a.eps);
}

/// `group` threads a row: a power of two up to 32, or the block.
template <int kTiles, Access kAccess, Residual kResidual, class T>
__global__ void __launch_bounds__(kMaxThreads) forward_kernel(const Args<T> a, const int group) {
  constexpr int N = cuda::kVectorOf<T>;
  using V = cuda::Vec<T, N>;
  __shared__ float shared[2][cuda::kMaxWarps];
  const int g = static_cast<int>(threadIdx.x) % group;
  const int rows_of_block = static_cast<int>(blockDim.x) / group;
  const int start = g * N, step = group * N;
  int turn = 0;
  for (std::int64_t first = std::int64_t{blockIdx.x} * rows_of_block; first < a.rows;
       first += std::int64_t{gridDim.x} * rows_of_block) {
    const std::int64_t r = first + threadIdx.x / group;
    const int cols = r < a.rows ? static_cast<int>(a.cols) - start : 0;  // from this thread's first
    V s[kTiles];
    const T* const x = a.x + r * a.x_stride + start;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      if (t * step < cols) s[t] = cuda::load<kAccess, N>(x + t * step, cols - t * step);
    }
    if constexpr (kResidual == Residual::kAdded) {
      V residual[kTiles];
      const T* const from = a.residual + r * a.residual_stride + start;
      T* const sum = a.sum + r * a.sum_stride + start;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        if (t * step < cols) residual[t] = cuda::load<kAccess, N>(from + t * step, cols - t * step);
      }
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        if (t * step >= cols) continue;
        s[t] = add<N>(s[t], residual[t]);
        cuda::store<kAccess, N>(sum + t * step, s[t], cols - t * step);
      }
    }
    float squares = 0;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      if (t * step < cols) squares = add_squares<N>(s[t], squares);
    }
    if (group <= cuda::kWarp) {
      squares = cuda::group_reduce<cuda::Add>(squares, group);
    } else {
      squares = cuda::block_reduce<cuda::Add>(squares, shared[turn]);
      turn ^= 1;
    }
    const float rstd = inverse_root(a, squares);
    if (g == 0 && cols > 0) a.rstd[r] = rstd;
    T* const y = a.y + r * a.y_stride + start;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      if (t * step >= cols) continue;
      const auto gain = cuda::load<kAccess, N>(a.gain + start + t * step, cols - t * step);
      cuda::store<kAccess, N>(y + t * step, normalize<N>(s[t], gain, rstd), cols - t * step);
    }
  }
}

/// One block a row of any length.
template <Access kAccess, class T>
__global__ void __launch_bounds__(kLongThreads) forward_long_kernel(const Args<T> a) {
  constexpr int N = cuda::kVectorOf<T>;
  using V = cuda::Vec<T, N>;
  __shared__ float shared[2][cuda::kMaxWarps];
  const std::int64_t start = std::int64_t{threadIdx.x} * N, step = std::int64_t{blockDim.x} * N;
  int turn = 0;
  for (std::int64_t r = blockIdx.x; r < a.rows; r += gridDim.x, turn ^= 1) {
    const T* s = a.x + r * a.x_stride;
    float squares = 0;
    for (std::int64_t c = start; c < a.cols; c += step) {
      V v = cuda::load<kAccess, N>(s + c, a.cols - c);
      if (a.residual != nullptr) {
        v = add<N>(v, cuda::load<kAccess, N>(a.residual + r * a.residual_stride + c, a.cols - c));
        cuda::store<kAccess, N>(a.sum + r * a.sum_stride + c, v, a.cols - c);
      }
      squares = add_squares<N>(v, squares);
    }
    if (a.residual != nullptr) s = a.sum + r * a.sum_stride;
    const float rstd = inverse_root(a, cuda::block_reduce<cuda::Add>(squares, shared[turn]));
    if (threadIdx.x == 0) a.rstd[r] = rstd;
    for (std::int64_t c = start; c < a.cols; c += step) {
      const V v = cuda::load<kAccess, N>(s + c, a.cols - c);  // this thread's own
      const auto gain = cuda::load<kAccess, N>(a.gain + c, a.cols - c);
      cuda::store<kAccess, N>(a.y + r * a.y_stride + c, normalize<N>(v, gain, rstd), a.cols - c);
    }
  }
}

/// From the number of vectors in a row, so the bits depend on the shape alone.
struct Shape {
  int tiles;  ///< 0: the long kernel
  int group, block;
};

Shape shape_of(std::int64_t vectors) {
  constexpr int kBlock = 256;
  const auto whole_warps = [](std::int64_t n) {
    return static_cast<int>(cuda::ceil_div(n, cuda::kWarp)) * cuda::kWarp;
  };
  if (vectors <= cuda::kWarp) return {1, cuda::power_of_two(vectors, cuda::kWarp), kBlock};
  if (vectors <= 2 * cuda::kWarp) return {2, cuda::kWarp, kBlock};
  if (vectors <= 4 * cuda::kWarp) return {4, cuda::kWarp, kBlock};
  if (vectors <= 2 * kMaxThreads) {
    const int block = whole_warps(cuda::ceil_div(vectors, 2));
    return {2, block, block};
  }
  if (vectors <= 4 * kMaxThreads) {
    const int block = whole_warps(cuda::ceil_div(vectors, 4));
    return {4, block, block};
  }
  return {0, kLongThreads, kLongThreads};
}

template <Access kAccess, Residual kResidual, class T>
void launch(Context& ctx, const Args<T>& args) {
  const Shape shape = shape_of(cuda::ceil_div(args.cols, cuda::kVectorOf<T>));
  const unsigned grid = cuda::grid_blocks(ctx, args.rows, shape.block / shape.group, 32);
  const auto block = static_cast<unsigned>(shape.block);
  if (shape.tiles == 1) {
    forward_kernel<1, kAccess, kResidual><<<grid, block, 0, ctx.stream>>>(args, shape.group);
  } else if (shape.tiles == 2) {
    forward_kernel<2, kAccess, kResidual><<<grid, block, 0, ctx.stream>>>(args, shape.group);
  } else if (shape.tiles == 4) {
    forward_kernel<4, kAccess, kResidual><<<grid, block, 0, ctx.stream>>>(args, shape.group);
  } else {
    forward_long_kernel<kAccess><<<grid, block, 0, ctx.stream>>>(args);
  }
  K25_CUDA_CHECK_LAUNCH();
}

template <Access kAccess, class T>
void launch(Context& ctx, const Args<T>& args) {
  if (args.residual != nullptr) return launch<kAccess, Residual::kAdded>(ctx, args);
  launch<kAccess, Residual::kAbsent>(ctx, args);
}

template <class T>
void forward(Context& ctx, const RmsNormDesc& d, const RmsNormForwardIn& in,
             const RmsNormForwardOut& out) {
  const bool adds = static_cast<bool>(in.residual_ND);
  const Args<T> args{
      .rows = d.rows,
      .cols = d.cols,
      .eps = static_cast<float>(d.eps),
      .x = in.x_ND.data<T>(),
      .x_stride = in.x_ND.stride(0),
      .residual = adds ? in.residual_ND.data<T>() : nullptr,
      .residual_stride = adds ? in.residual_ND.stride(0) : 0,
      .gain = in.gain_D.data<float>(),
      .sum = adds ? out.sum_ND.data<T>() : nullptr,
      .sum_stride = adds ? out.sum_ND.stride(0) : 0,
      .y = out.y_ND.data<T>(),
      .y_stride = out.y_ND.stride(0),
      .rstd = out.rstd_N.data<float>(),
  };
  const bool aligned =
      cuda::all_aligned(cuda::kVectorBytes, args.x, args.residual, args.gain, args.sum, args.y) &&
      cuda::vector_rows<T>(d.rows, d.cols, args.x_stride, args.residual_stride, args.sum_stride,
                           args.y_stride);
  if (aligned) return launch<Access::kAligned>(ctx, args);
  launch<Access::kScalar>(ctx, args);
}

}  // namespace

void rmsnorm_forward_cuda(Context& ctx, const RmsNormPlan& plan, const RmsNormForwardIn& in,
                          const RmsNormForwardOut& out) {
  if (plan.desc.dtype == DType::kBFloat16) return forward<BFloat16>(ctx, plan.desc, in, out);
  forward<float>(ctx, plan.desc, in, out);
}

}  // namespace k25::kernels
