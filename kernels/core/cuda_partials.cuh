#pragma once
// Private to CUDA sources: the last step of sums over rows (gradients of gains and biases), whose
// partial sums blocks left in the workspace.

#include "kernels/core/cuda_check.h"
#include "kernels/core/cuda_math.cuh"

namespace k25::cuda {

/// to [cols] += partials [count, cols]: lane y adds rows y, y + kLanes, ... in order, then the
/// lanes are added in order.
template <int kLanes>
__global__ void __launch_bounds__(kWarp* kLanes)
    add_partials_kernel(const float* partials, std::int64_t count, std::int64_t cols, float* to) {
  __shared__ float lanes[kLanes][kWarp + 1];
  for (std::int64_t first = std::int64_t{blockIdx.x} * kWarp; first < cols;
       first += std::int64_t{gridDim.x} * kWarp) {
    const std::int64_t c = first + threadIdx.x;
    float total = 0;
    if (c < cols) {
#pragma unroll 8
      for (std::int64_t p = threadIdx.y; p < count; p += kLanes) total += partials[p * cols + c];
    }
    lanes[threadIdx.y][threadIdx.x] = total;
    __syncthreads();
    if (threadIdx.y == 0 && c < cols) {
      total = 0;
#pragma unroll
      for (int l = 0; l < kLanes; ++l) total += lanes[l][threadIdx.x];
      to[c] += total;
    }
    __syncthreads();
  }
}

inline void add_partials(const Context& ctx, const float* partials, std::int64_t count,
                         std::int64_t cols, float* to) {
  constexpr int kLanes = 32;  // sums of a column that run side by side
  const dim3 block(kWarp, kLanes);
  add_partials_kernel<kLanes>
      <<<grid_blocks(ctx, cols, kWarp, 8), block, 0, ctx.stream>>>(partials, count, cols, to);
  K25_CUDA_CHECK_LAUNCH();
}

}  // namespace k25::cuda
