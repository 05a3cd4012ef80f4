#include "kernels/core/cuda_check.h"
#include "kernels/core/cuda_math.cuh"
#include "kernels/rope/rope_cuda.h"

namespace k25::kernels {
namespace {

constexpr int kThreads = 256;

template <class T>
struct Args {
  std::int64_t rows, heads, half;
  const T* x;
  std::int64_t x_row_stride, x_head_stride;
  T* y;
  std::int64_t y_row_stride, y_head_stride;
  const std::int32_t* position;
  std::int64_t max_position;
  const float* table;
  std::int64_t table_stride;
  float direction;
};

/// N pairs (i, i + half) of one row.
template <int N>
struct Angles {
  float cosine[N], sine[N];
};

template <int N, class T>
__device__ __forceinline__ Angles<N> load_angles(const Args<T>& a, std::int32_t position,
                                                 std::int64_t i) {
  Angles<N> angles;
  if (position >= 0 && position < a.max_position) {
    const float* const row = a.table + position * a.table_stride + i;
    cuda::load_aligned<float, N>(row).widen(angles.cosine);
    cuda::load_aligned<float, N>(row + a.half).widen(angles.sine);
#pragma unroll
    for (int j = 0; j < N; ++j) angles.sine[j] *= a.direction;
  } else {
#pragma unroll
    for (int j = 0; j < N; ++j) angles.cosine[j] = angles.sine[j] = cuda::nan_value();
  }
  return angles;
}

/// x counts pieces of N pairs, y heads, of which a thread has kHeads in flight, z rows.
template <int N, int kHeads, class T>
__global__ void __launch_bounds__(kThreads, 3) rope_kernel(const Args<T> a) {
  using V = cuda::Vec<T, N>;
  const std::int64_t row_stride = std::int64_t{gridDim.x} * blockDim.z;
  std::int64_t n = std::int64_t{blockIdx.x} * blockDim.z + threadIdx.z;
  const std::int64_t head_stride = blockDim.y;
  for (; n < a.rows; n += row_stride) {
    const std::int32_t position = a.position[n];  // first: the table waits for it
    for (std::int64_t i = std::int64_t{threadIdx.x} * N; i < a.half; i += blockDim.x * N) {
      const T* const x = a.x + n * a.x_row_stride + i;
      T* const y = a.y + n * a.y_row_stride + i;
      for (std::int64_t h = threadIdx.y; h < a.heads; h += head_stride * kHeads) {
        V low[kHeads], high[kHeads];
#pragma unroll
        for (int u = 0; u < kHeads; ++u) {
          const std::int64_t at = h + u * head_stride;
          if (at >= a.heads) break;
          low[u] = cuda::load_aligned<T, N>(x + at * a.x_head_stride);
          high[u] = cuda::load_aligned<T, N>(x + at * a.x_head_stride + a.half);
        }
        const Angles<N> angles = load_angles<N>(a, position, i);  // while those are under way
#pragma unroll
        for (int u = 0; u < kHeads; ++u) {
          const std::int64_t at = h + u * head_stride;
          if (at >= a.heads) break;
          float y_low[N], y_high[N];
#pragma unroll
          for (int j = 0; j < N; ++j) {
            const float l = low[u].get(j), r = high[u].get(j);
            y_low[j] = l * angles.cosine[j] - r * angles.sine[j];
            y_high[j] = r * angles.cosine[j] + l * angles.sine[j];
          }
          cuda::store_aligned(y + at * a.y_head_stride, V::narrow(y_low));
          cuda::store_aligned(y + at * a.y_head_stride + a.half, V::narrow(y_high));
        }
      }
    }
  }
}

template <int N, int kHeads, class T>
void launch_heads(Context& ctx, const Args<T>& args) {
  constexpr int kMaxRows = 64;       // CUDA's limit of blockDim.z
  constexpr int kBlocksPerSm = 128;  // short ones, so that all multiprocessors end together
  const int x = cuda::power_of_two(cuda::ceil_div(args.half, N), kThreads);
  // All threads have equally many heads, or one less.
  const std::int64_t turns = cuda::ceil_div(args.heads, std::int64_t{kHeads} * (kThreads / x));
  const int y = static_cast<int>(cuda::ceil_div(args.heads, kHeads * turns));
  const int z = std::min(kMaxRows, kThreads / (x * y));
  const dim3 block(static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z));
  const unsigned grid = cuda::grid_blocks(ctx, args.rows, z, kBlocksPerSm);
  rope_kernel<N, kHeads><<<grid, block, 0, ctx.stream>>>(args);
  K25_CUDA_CHECK_LAUNCH();
}

template <int N, class T>
void launch(Context& ctx, const Args<T>& args) {
  if (args.heads == 1) return launch_heads<N, 1>(ctx, args);
  launch_heads<N, 2>(ctx, args);
}

template <class T>
void rotate(Context& ctx, const RopeDesc& d, const RopeIn& in, const RopeOut& out,
            float direction) {
  const Args<T> args{
      .rows = d.rows,
      .heads = d.heads,
      .half = d.head_dim / 2,
      .x = in.x_NHE.data<T>(),
      .x_row_stride = in.x_NHE.stride(0),
      .x_head_stride = in.x_NHE.stride(1),
      .y = out.y_NHE.data<T>(),
      .y_row_stride = out.y_NHE.stride(0),
      .y_head_stride = out.y_NHE.stride(1),
      .position = in.position_N.data<std::int32_t>(),
      .max_position = d.max_position,
      .table = d.max_position == 0 ? nullptr : in.table.data<float>(),
      .table_stride = d.max_position == 0 ? 0 : in.table.stride(0),
      .direction = direction,
  };
  const bool aligned =
      cuda::all_aligned(cuda::kVectorBytes, args.x, args.y, args.table) &&
      cuda::vector_rows<T>(d.rows, args.half, args.x_row_stride, args.y_row_stride) &&
      cuda::vector_rows<T>(d.heads, args.half, args.x_head_stride, args.y_head_stride) &&
      cuda::vector_rows<float>(d.max_position, args.half, args.table_stride);
  if (aligned) return launch<cuda::kVectorOf<T>>(ctx, args);
  launch<1>(ctx, args);
}

}  // namespace

void rope_cuda(Context& ctx, const RopeDesc& desc, const RopeIn& in, const RopeOut& out,
               float direction) {
  if (desc.dtype == DType::kBFloat16) return rotate<BFloat16>(ctx, desc, in, out, direction);
  rotate<float>(ctx, desc, in, out, direction);
}

}  // namespace k25::kernels
