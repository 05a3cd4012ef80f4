// Steps on the GPU. A block has a sequence, a value head and 32 of its value columns; a thread
// holds every 8th row of one column of the state in registers over all tokens of the window.

#include "kernels/core/cuda_check.h"
#include "kernels/kda/kda_step_cuda.h"
#include "kernels/kda/kda_views_cuda.cuh"

namespace k25::kernels {
namespace {

using kda_cuda::head_row;
using kda_cuda::state_at;
using kda_cuda::store_float;
using kda_cuda::to_float;

constexpr int kCols = cuda::kWarp;  // of a block
constexpr int kGroups = 8;          // of rows
constexpr int kThreads = kCols * kGroups;

enum class Step : std::uint8_t { kDecode, kVerify, kCommit };

/// One token's operands and the partial sums of its two products with the state.
template <int K>
struct Shared {
  float q[K], k[K], a[K];
  float seen[kGroups][kCols], out[kGroups][kCols];
};

/// The groups' sums of a column, in their order.
__device__ __forceinline__ float join(const float (&sums)[kGroups][kCols], int col) {
  float total = 0.f;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) total += sums[g][col];
  return total;
}

/// What a block works on.
struct Unit {
  std::int64_t s, m, h;
  std::int64_t col;  ///< of the thread
};

template <Step kStep, int K, class T>
__device__ __forceinline__ void load_token(const KdaStepArgs<T, float>& x, const Unit& unit,
                                           std::int64_t t, Shared<K>& shared) {
  const int d = static_cast<int>(threadIdx.x);
  if (d < K) {
    shared.k[d] = to_float(head_row(x.k, unit.s, t, unit.h)[d]);
    shared.a[d] = expf(head_row(x.g, unit.s, t, unit.m)[d]);
    if constexpr (kStep != Step::kCommit) {
      shared.q[d] = to_float(head_row(x.q, unit.s, t, unit.h)[d]) * x.scale;
    }
  }
  __syncthreads();
}

/// One token for decode and verify: the state in `rows`, the output and, for verify, u.
template <Step kStep, int K, class T>
__device__ __forceinline__ void look(const KdaStepArgs<T, float>& x, const Unit& unit,
                                     std::int64_t t, float (&rows)[K / kGroups],
                                     Shared<K>& shared) {
  const int col = static_cast<int>(threadIdx.x) % kCols;
  const int group = static_cast<int>(threadIdx.x) / kCols;
  float sum = 0.f;
#pragma unroll
  for (int n = 0; n < K / kGroups; ++n) {
    const int d = n * kGroups + group;
    rows[n] *= shared.a[d];
    sum = fmaf(shared.k[d], rows[n], sum);
  }
  shared.seen[group][col] = sum;
  __syncthreads();
  const float v = to_float(head_row(x.v, unit.s, t, unit.m)[unit.col]);
  const float u = *head_row(x.beta, unit.s, t, unit.m) * (v - join(shared.seen, col));
  sum = 0.f;
#pragma unroll
  for (int n = 0; n < K / kGroups; ++n) {
    const int d = n * kGroups + group;
    rows[n] = fmaf(shared.k[d], u, rows[n]);
    sum = fmaf(shared.q[d], rows[n], sum);
  }
  shared.out[group][col] = sum;
  __syncthreads();
  if (group != 0) return;
  store_float(head_row(x.out, unit.s, t, unit.m) + unit.col, join(shared.out, col));
  if constexpr (kStep == Step::kVerify) head_row(x.u, unit.s, t, unit.m)[unit.col] = u;
}

template <Step kStep, int K, class T>
__device__ __forceinline__ void run_unit(const KdaStepArgs<T, float>& x, const Unit& unit,
                                         Shared<K>& shared) {
  const int group = static_cast<int>(threadIdx.x) / kCols;
  const float* from = nullptr;
  std::int64_t row_stride = 0;
  if constexpr (kStep == Step::kVerify) {
    from = state_at(x.before, unit.s, 0, unit.m) + unit.col;
    row_stride = x.before.row_stride;
  } else {
    from = state_at(x.state, unit.s, 0, unit.m) + unit.col;
    row_stride = x.state.row_stride;
  }
  float rows[K / kGroups];
#pragma unroll
  for (int n = 0; n < K / kGroups; ++n) rows[n] = from[(n * kGroups + group) * row_stride];
  std::int64_t tokens = x.tokens;
  if constexpr (kStep == Step::kCommit) {
    tokens = max(std::int64_t{0}, min(tokens, std::int64_t{x.accepted[unit.s]}));
  }
  for (std::int64_t t = 0; t < tokens; ++t) {
    load_token<kStep>(x, unit, t, shared);
    if constexpr (kStep == Step::kCommit) {
      const float u = head_row(x.logged_u, unit.s, t, unit.m)[unit.col];
#pragma unroll
      for (int n = 0; n < K / kGroups; ++n) {
        const int d = n * kGroups + group;
        rows[n] = fmaf(shared.k[d], u, rows[n] * shared.a[d]);
      }
      __syncthreads();
    } else {
      look<kStep>(x, unit, t, rows, shared);
    }
  }
  if constexpr (kStep != Step::kVerify) {
    float* const to = state_at(x.state, unit.s, 0, unit.m) + unit.col;
#pragma unroll
    for (int n = 0; n < K / kGroups; ++n) to[(n * kGroups + group) * row_stride] = rows[n];
  }
}

template <Step kStep, int K, class T>
__global__ void __launch_bounds__(kThreads)
    step_kernel(const KdaStepArgs<T, float> x, const std::int64_t sequences) {
  __shared__ Shared<K> shared;
  const std::int64_t tiles = x.value_dim / kCols, units = sequences * x.value_heads * tiles;
  for (std::int64_t n = blockIdx.x; n < units; n += gridDim.x) {
    const std::int64_t head = n / tiles, m = head % x.value_heads;
    const Unit unit{head / x.value_heads, m, m / (x.value_heads / x.heads),
                    n % tiles * kCols + threadIdx.x % kCols};
    run_unit<kStep>(x, unit, shared);
    __syncthreads();
  }
}

template <Step kStep, class T>
void launch(Context& ctx, const KdaStepArgs<T, float>& x, std::int64_t sequences) {
  const unsigned grid =
      cuda::grid_blocks(ctx, sequences * x.value_heads * (x.value_dim / kCols), 1, 32);
  if (x.key_dim == 64) {
    step_kernel<kStep, 64><<<grid, kThreads, 0, ctx.stream>>>(x, sequences);
  } else {
    step_kernel<kStep, 128><<<grid, kThreads, 0, ctx.stream>>>(x, sequences);
  }
  K25_CUDA_CHECK_LAUNCH();
}

}  // namespace

#define K25_KDA_STEP_DEFINE(T)                                                                    \
  void kda_decode_cuda(Context& ctx, const KdaStepArgs<T, float>& args, std::int64_t sequences) { \
    launch<Step::kDecode>(ctx, args, sequences);                                                  \
  }                                                                                               \
  void kda_verify_cuda(Context& ctx, const KdaStepArgs<T, float>& args, std::int64_t sequences) { \
    launch<Step::kVerify>(ctx, args, sequences);                                                  \
  }                                                                                               \
  void kda_commit_cuda(Context& ctx, const KdaStepArgs<T, float>& args, std::int64_t sequences) { \
    launch<Step::kCommit>(ctx, args, sequences);                                                  \
  }
K25_KDA_STEP_DEFINE(float)
K25_KDA_STEP_DEFINE(BFloat16)
#undef K25_KDA_STEP_DEFINE

}  // namespace k25::kernels
