// Persistent blocks walk over the rows. The next row of dy, sum and d_sum comes to shared memory
// (each thread its own vectors, so without a barrier) while the present one is worked on; dgain
// grows in registers. Each block writes its dgain to the workspace, a second kernel adds those in a
// fixed order. Rows too long for that are read again from memory.

#include <cuda_pipeline_primitives.h>

#include "kernels/core/cuda_check.h"
#include "kernels/core/cuda_math.cuh"
#include "kernels/core/cuda_partials.cuh"
#include "kernels/rmsnorm/rmsnorm_backward_shape.h"
#include "kernels/rmsnorm/rmsnorm_cuda.h"

namespace k25::kernels {
namespace {

using cuda::Access;

constexpr int kMaxThreads = kNormMaxThreads;
constexpr int kLongThreads = kNormLongThreads;
constexpr int kStages = 2;

template <class T>
struct Args {
  std::int64_t rows, cols;
  const T* dy;
  std::int64_t dy_stride;
  const T* sum;
  std::int64_t sum_stride;
  const T* d_sum;  ///< null: none
  std::int64_t d_sum_stride;
  const float* gain;
  const float* rstd;
  T* dx;
  std::int64_t dx_stride;
  float* partials;  ///< [blocks, cols]; null: no dgain
};

// The shape is computed without CUDA headers.
static_assert(kNormVectorBytes == cuda::kVectorBytes && kNormWarp == cuda::kWarp);

/// dgain of the rows that share this block, added in their order, to row blockIdx.x of partials.
template <int N>
__device__ __forceinline__ void join_groups(const float (&dgain)[N], int group, std::int64_t cols,
                                            float* shared, float* partial) {
  const int width = group * N;
  __syncthreads();
#pragma unroll
  for (int j = 0; j < N; ++j) shared[threadIdx.x * N + j] = dgain[j];
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.x); c < width && c < cols;
       c += static_cast<int>(blockDim.x)) {
    float total = 0;
    for (int g = 0; g < static_cast<int>(blockDim.x) / group; ++g) total += shared[g * width + c];
    partial[c] = total;
  }
}

template <int kTiles, Access kAccess, class T>
__global__ void __launch_bounds__(kMaxThreads, 2)
    backward_kernel(const Args<T> a, const int group) {
  constexpr int N = cuda::kVectorOf<T>;
  using V = cuda::Vec<T, N>;
  // Two tiles leave no registers for gain dy.
  constexpr bool kKeeps = kTiles == 1;
  extern __shared__ uint4 stages[];
  __shared__ float shared[2][cuda::kMaxWarps];
  const int g = static_cast<int>(threadIdx.x) % group;
  const int rows_of_block = static_cast<int>(blockDim.x) / group;
  const int operands = a.d_sum == nullptr ? 2 : 3;
  const int step = group * N;
  const int cols = static_cast<int>(a.cols) - g * N;  // from this thread's first
  const auto slot = [&](int stage, int operand, int tile) {
    return stages + ((stage * operands + operand) * kTiles + tile) * static_cast<int>(blockDim.x) +
           threadIdx.x;
  };
  const auto bring = [&](const T* row, int stage, int operand) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      if (t * step >= cols) continue;
      const T* const from = row + g * N + t * step;
      uint4* const to = slot(stage, operand, t);
      if constexpr (kAccess == Access::kAligned) {
        __pipeline_memcpy_async(to, from, sizeof(uint4));
      } else {
        cuda::store_aligned(reinterpret_cast<T*>(to),
                            cuda::load<kAccess, N>(from, cols - t * step));
      }
    }
  };
  const auto fetch = [&](std::int64_t r, int stage) {
    if (r < a.rows) {
      bring(a.dy + r * a.dy_stride, stage, 0);
      bring(a.sum + r * a.sum_stride, stage, 1);
      if (operands == 3) bring(a.d_sum + r * a.d_sum_stride, stage, 2);
    }
    __pipeline_commit();
  };
  const auto held = [&](int stage, int operand, int tile) {
    return cuda::load_aligned<T, N>(reinterpret_cast<const T*>(slot(stage, operand, tile)));
  };

  float dgain[kTiles][N] = {};
  const std::int64_t row_step = std::int64_t{gridDim.x} * rows_of_block;
  std::int64_t r = std::int64_t{blockIdx.x} * rows_of_block + threadIdx.x / group;
  float rstd = r < a.rows ? a.rstd[r] : 0.f;
  fetch(r, 0);
  int stage = 0;
  for (std::int64_t first = std::int64_t{blockIdx.x} * rows_of_block; first < a.rows;
       first += row_step, r += row_step, stage ^= 1) {
    const float next_rstd = r + row_step < a.rows ? a.rstd[r + row_step] : 0.f;
    fetch(r + row_step, stage ^ 1);
    __pipeline_wait_prior(kStages - 1);
    const int there = r < a.rows ? cols : 0;
    float dot = 0;
    float scaled[kKeeps ? kTiles : 1][N];  // gain dy
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      if (t * step >= there) continue;
      const auto gain = cuda::load<kAccess, N>(a.gain + g * N + t * step, cols - t * step);
      const V dy = held(stage, 0, t), s = held(stage, 1, t);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const float x_hat = s.get(j) * rstd;
        dgain[t][j] = fmaf(dy.get(j), x_hat, dgain[t][j]);
        const float product = gain.get(j) * dy.get(j);
        dot = fmaf(product, x_hat, dot);
        if constexpr (kKeeps) scaled[t][j] = product;
      }
    }
    if (group <= cuda::kWarp) {
      dot = cuda::group_reduce<cuda::Add>(dot, group);
    } else {
      dot = cuda::block_reduce<cuda::Add>(dot, shared[stage]);
    }
    const float mean = dot / static_cast<float>(a.cols);
    T* const dx = a.dx + r * a.dx_stride + g * N;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      if (t * step >= there) continue;
      if constexpr (!kKeeps) {
        const auto gain = cuda::load<kAccess, N>(a.gain + g * N + t * step, cols - t * step);
        const V dy = held(stage, 0, t);
#pragma unroll
        for (int j = 0; j < N; ++j) scaled[0][j] = gain.get(j) * dy.get(j);
      }
      const V s = held(stage, 1, t);
      float d[N];
#pragma unroll
      for (int j = 0; j < N; ++j) {
        d[j] = rstd * fmaf(-(s.get(j) * rstd), mean, scaled[kKeeps ? t : 0][j]);
      }
      if (operands == 3) {
        const V d_sum = held(stage, 2, t);
#pragma unroll
        for (int j = 0; j < N; ++j) d[j] += d_sum.get(j);
      }
      cuda::store<kAccess, N>(dx + t * step, V::narrow(d), cols - t * step);
    }
    rstd = next_rstd;
  }
  __pipeline_wait_prior(0);
  if (a.partials == nullptr) return;
  float* const partial = a.partials + blockIdx.x * a.cols;
  if (kTiles == 1 && rows_of_block > 1) {
    join_groups<N>(dgain[0], group, a.cols, reinterpret_cast<float*>(stages), partial);
    return;
  }
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    if (t * step >= cols) continue;
    cuda::store<kAccess, N>(partial + g * N + t * step, cuda::Vec<float, N>::narrow(dgain[t]),
                            cols - t * step);
  }
}

/// dgain of long rows: y counts blocks of rows, a thread has one column.
template <class T>
__global__ void __launch_bounds__(kLongThreads)
    dgain_long_kernel(const Args<T> a, std::int64_t rows_of_partial) {
  const std::int64_t begin = blockIdx.y * rows_of_partial;
  const std::int64_t end = min(begin + rows_of_partial, a.rows);
  for (std::int64_t c = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; c < a.cols;
       c += std::int64_t{gridDim.x} * blockDim.x) {
    float total = 0;
#pragma unroll 4
    for (std::int64_t r = begin; r < end; ++r) {
      const float dy = cuda::load_aligned<T, 1>(a.dy + r * a.dy_stride + c).get(0);
      const float s = cuda::load_aligned<T, 1>(a.sum + r * a.sum_stride + c).get(0);
      total = fmaf(dy, s * a.rstd[r], total);
    }
    a.partials[blockIdx.y * a.cols + c] = total;
  }
}

template <Access kAccess, class T>
__global__ void __launch_bounds__(kLongThreads) dx_long_kernel(const Args<T> a) {
  constexpr int N = cuda::kVectorOf<T>;
  using V = cuda::Vec<T, N>;
  __shared__ float shared[2][cuda::kMaxWarps];
  const std::int64_t start = std::int64_t{threadIdx.x} * N, step = std::int64_t{blockDim.x} * N;
  int turn = 0;
  for (std::int64_t r = blockIdx.x; r < a.rows; r += gridDim.x, turn ^= 1) {
    const T* const dy_row = a.dy + r * a.dy_stride;
    const T* const sum_row = a.sum + r * a.sum_stride;
    const float rstd = a.rstd[r];
    float dot = 0;
    for (std::int64_t c = start; c < a.cols; c += step) {
      const auto gain = cuda::load<kAccess, N>(a.gain + c, a.cols - c);
      const V dy = cuda::load<kAccess, N>(dy_row + c, a.cols - c);
      const V s = cuda::load<kAccess, N>(sum_row + c, a.cols - c);
#pragma unroll
      for (int j = 0; j < N; ++j) dot = fmaf(gain.get(j) * dy.get(j), s.get(j) * rstd, dot);
    }
    const float mean =
        cuda::block_reduce<cuda::Add>(dot, shared[turn]) / static_cast<float>(a.cols);
    for (std::int64_t c = start; c < a.cols; c += step) {
      const auto gain = cuda::load<kAccess, N>(a.gain + c, a.cols - c);
      const V dy = cuda::load<kAccess, N>(dy_row + c, a.cols - c);
      const V s = cuda::load<kAccess, N>(sum_row + c, a.cols - c);
      float d[N];
#pragma unroll
      for (int j = 0; j < N; ++j) {
        d[j] = rstd * fmaf(-(s.get(j) * rstd), mean, gain.get(j) * dy.get(j));
      }
      if (a.d_sum != nullptr) {
        const V d_sum = cuda::load<kAccess, N>(a.d_sum + r * a.d_sum_stride + c, a.cols - c);
#pragma unroll
        for (int j = 0; j < N; ++j) d[j] += d_sum.get(j);
      }
      cuda::store<kAccess, N>(a.dx + r * a.dx_stride + c, V::narrow(d), a.cols - c);
    }
  }
}

template <int kTiles, Access kAccess, class T>
void launch_rows(Context& ctx, const Args<T>& args, const RmsNormBackwardShape& shape) {
  constexpr int kFreeShared = 47 * 1024;  // of 48 KiB, the kernel's own arrays take some
  const int operands = args.d_sum == nullptr ? 2 : 3;
  const int bytes =
      kStages * operands * kTiles * shape.block * static_cast<int>(cuda::kVectorBytes);
  const auto kernel = backward_kernel<kTiles, kAccess, T>;
  if (bytes > kFreeShared) {
    K25_CUDA_CHECK(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  }
  kernel<<<static_cast<unsigned>(shape.partials), static_cast<unsigned>(shape.block),
           static_cast<std::size_t>(bytes), ctx.stream>>>(args, shape.group);
  K25_CUDA_CHECK_LAUNCH();
}

template <Access kAccess, class T>
void launch(Context& ctx, const Args<T>& args, const RmsNormBackwardShape& shape) {
  if (shape.tiles == 1) return launch_rows<1, kAccess>(ctx, args, shape);
  if (shape.tiles == 2) return launch_rows<2, kAccess>(ctx, args, shape);
  if (args.partials != nullptr) {  // first: dx may overwrite dy
    constexpr int kBlock = 256;
    const auto columns = cuda::grid_blocks(ctx, args.cols, kBlock, 8);
    const dim3 grid(columns, static_cast<unsigned>(shape.partials));
    dgain_long_kernel<<<grid, kBlock, 0, ctx.stream>>>(args,
                                                       cuda::ceil_div(args.rows, shape.partials));
    K25_CUDA_CHECK_LAUNCH();
  }
  dx_long_kernel<kAccess>
      <<<cuda::grid_blocks(ctx, args.rows, 1, 8), kLongThreads, 0, ctx.stream>>>(args);
  K25_CUDA_CHECK_LAUNCH();
}

template <class T>
void backward(Context& ctx, const RmsNormDesc& d, const RmsNormBackwardIn& in,
              const RmsNormBackwardOut& out, Workspace workspace) {
  const bool adds = static_cast<bool>(in.d_sum_ND);
  const Args<T> args{
      .rows = d.rows,
      .cols = d.cols,
      .dy = in.dy_ND.data<T>(),
      .dy_stride = in.dy_ND.stride(0),
      .sum = in.sum_ND.data<T>(),
      .sum_stride = in.sum_ND.stride(0),
      .d_sum = adds ? in.d_sum_ND.data<T>() : nullptr,
      .d_sum_stride = adds ? in.d_sum_ND.stride(0) : 0,
      .gain = in.gain_D.data<float>(),
      .rstd = in.rstd_N.data<float>(),
      .dx = out.dx_ND.data<T>(),
      .dx_stride = out.dx_ND.stride(0),
      .partials = out.dgain_D ? static_cast<float*>(workspace.data) : nullptr,
  };
  const bool aligned =
      cuda::all_aligned(cuda::kVectorBytes, args.dy, args.sum, args.d_sum, args.gain, args.dx) &&
      cuda::vector_rows<T>(d.rows, d.cols, args.dy_stride, args.sum_stride, args.d_sum_stride,
                           args.dx_stride);
  const RmsNormBackwardShape shape = rmsnorm_backward_shape(d);
  if (aligned) {
    launch<Access::kAligned>(ctx, args, shape);
  } else {
    launch<Access::kScalar>(ctx, args, shape);
  }
  if (!out.dgain_D) return;
  cuda::add_partials(ctx, args.partials, shape.partials, d.cols, out.dgain_D.data<float>());
}

}  // namespace

void rmsnorm_backward_cuda(Context& ctx, const RmsNormPlan& plan, const RmsNormBackwardIn& in,
                           const RmsNormBackwardOut& out, Workspace workspace) {
  if (plan.desc.dtype == DType::kBFloat16) {
    return backward<BFloat16>(ctx, plan.desc, in, out, workspace);
  }
  backward<float>(ctx, plan.desc, in, out, workspace);
}

}  // namespace k25::kernels
