// Each row of dtable adds its tokens in order: embedding_lists.cuh finds them, then a block takes
// one row of many tokens, or a row of few for each warp.

#include <cstdint>

#include "kernels/core/cuda_check.h"
#include "kernels/core/cuda_math.cuh"
#include "kernels/embedding/embedding_cuda.h"
#include "kernels/embedding/embedding_lists.cuh"

namespace k25::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / cuda::kWarp;
constexpr int kFewTile = 32;  // vectors of a row of dtable that a warp or a block takes on
constexpr int kManyTile = 8;
constexpr int kSubTiles = kFewTile / kManyTile;

template <class T>
struct AddArgs {
  const T* dout;
  std::int64_t dout_stride;
  float* dtable;
  std::int64_t dtable_stride;
  std::int64_t cols;
};

/// Writes the at most 64 numbers of `list` to `sorted`, smallest first. The whole warp calls it.
__device__ __forceinline__ void sort_few(const std::int32_t* list, std::int32_t count,
                                         std::int32_t* sorted) {
  static_assert(kManyTokens == 2 * cuda::kWarp);
  const int lane = static_cast<int>(threadIdx.x) % cuda::kWarp;
  const std::int32_t low = lane < count ? list[lane] : INT32_MAX;
  const std::int32_t high = lane + cuda::kWarp < count ? list[lane + cuda::kWarp] : INT32_MAX;
  int rank_low = 0, rank_high = 0;
#pragma unroll 4
  for (int i = 0; i < count; ++i) {
    const std::int32_t other = __shfl_sync(~0u, i < cuda::kWarp ? low : high, i % cuda::kWarp);
    rank_low += other < low ? 1 : 0;
    rank_high += other < high ? 1 : 0;
  }
  __syncwarp();
  if (lane < count) sorted[rank_low] = low;
  if (lane + cuda::kWarp < count) sorted[rank_high] = high;
  __syncwarp();
}

/// A row of few tokens, columns from `tile` on: the lanes of a warp hold them in registers.
template <int N, class T>
__device__ __forceinline__ void add_few(const AddArgs<T>& a, const Bucket& bucket,
                                        const std::int32_t* list, std::int64_t tile,
                                        std::int32_t* sorted) {
  constexpr int kInFlight = 4;
  const std::int64_t col = tile + static_cast<int>(threadIdx.x) % cuda::kWarp * N;
  if (bucket.count > 1) {
    sort_few(list, bucket.count, sorted);
    list = sorted;
  }
  if (col >= a.cols) return;
  float* const to = a.dtable + bucket.row * a.dtable_stride + col;
  const T* const from = a.dout + col;
  float sum[N];
  cuda::load_aligned<float, N>(to).widen(sum);
  for (int j = 0; j < bucket.count; j += kInFlight) {
    cuda::Vec<T, N> rows[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      if (j + u >= bucket.count) break;
      rows[u] = cuda::load_aligned<T, N>(from + list[j + u] * a.dout_stride);
    }
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      if (j + u >= bucket.count) break;
#pragma unroll
      for (int i = 0; i < N; ++i) sum[i] += rows[u].get(i);
    }
  }
  cuda::store_aligned(to, cuda::Vec<float, N>::narrow(sum));
}

constexpr int kStripes = kThreads / kManyTile;  // rows that the block loads at a time
constexpr int kRowsOfThread = 4;
constexpr int kStageRows = kStripes * kRowsOfThread;

/// A row of many tokens: the block brings kStageRows rows of a tile to shared memory, where each
/// thread adds one column, while the next rows and the positions after those are under way.
template <int N, class T>
__device__ __forceinline__ void add_many(const AddArgs<T>& a, const Bucket& bucket,
                                         const std::int32_t* list, std::int64_t tile,
                                         T (&rows)[kStageRows][kManyTile * N]) {
  const int lane = static_cast<int>(threadIdx.x) % kManyTile * N;
  const int stripe = static_cast<int>(threadIdx.x) / kManyTile;
  const bool loads = tile + lane < a.cols;
  const bool adds = threadIdx.x < kManyTile * N && tile + threadIdx.x < a.cols;
  float* const to = a.dtable + bucket.row * a.dtable_stride + tile + threadIdx.x;
  float sum = adds ? *to : 0.f;
  std::int32_t at[kRowsOfThread];
  cuda::Vec<T, N> next[kRowsOfThread];
  const auto look_up = [&](std::int32_t k) {
#pragma unroll
    for (int u = 0; u < kRowsOfThread; ++u) {
      const std::int32_t i = k + u * kStripes + stripe;
      at[u] = loads && i < bucket.count ? list[i] : -1;
    }
  };
  const auto fetch = [&] {
#pragma unroll
    for (int u = 0; u < kRowsOfThread; ++u) {
      if (at[u] < 0) continue;
      next[u] = cuda::load_aligned<T, N>(a.dout + at[u] * a.dout_stride + tile + lane);
    }
  };
  look_up(0);
  fetch();
  look_up(kStageRows);
  for (std::int32_t k = 0; k < bucket.count; k += kStageRows) {
    __syncthreads();
#pragma unroll
    for (int u = 0; u < kRowsOfThread; ++u) {
      cuda::store_aligned(&rows[u * kStripes + stripe][lane], next[u]);
    }
    __syncthreads();
    fetch();
    look_up(k + 2 * kStageRows);
    const int there = adds ? min(bucket.count - k, kStageRows) : 0;
#pragma unroll 16
    for (int r = 0; r < there; ++r) {
      sum += cuda::load_aligned<T, 1>(&rows[r][threadIdx.x]).get(0);
    }
  }
  if (adds) *to = sum;
}

/// Work comes in units: first each tile of each row of many tokens, because they take longest, then
/// each tile of kWarps rows of few.
template <int N, class T>
__global__ void __launch_bounds__(kThreads, 4)
    add_kernel(const AddArgs<T> a, const Lists lists, const std::int64_t tiles) {
  __shared__ alignas(16) T rows[kStageRows][kManyTile * N];
  __shared__ std::int32_t sorted[kWarps][kManyTokens];
  const int warp = static_cast<int>(threadIdx.x) / cuda::kWarp;
  const std::int64_t few = num_few(lists);
  const std::int64_t many_units = num_many(lists) * tiles * kSubTiles;
  const std::int64_t units = many_units + cuda::ceil_div(few, kWarps) * tiles;
  for (std::int64_t unit = blockIdx.x; unit < units; unit += gridDim.x) {
    if (unit < many_units) {
      const Bucket bucket = lists.many[unit / (tiles * kSubTiles)];
      const std::int64_t tile = unit % (tiles * kSubTiles) * (kManyTile * N);
      add_many<N>(a, bucket, lists.position + bucket.begin, tile, rows);
      continue;
    }
    const std::int64_t b = (unit - many_units) / tiles * kWarps + warp;
    if (b >= few) continue;
    const Bucket bucket = lists.few[b];
    const std::int64_t tile = (unit - many_units) % tiles * (kFewTile * N);
    add_few<N>(a, bucket, lists.position + bucket.begin, tile, sorted[warp]);
  }
}

template <int N, class T>
void launch_add(Context& ctx, const EmbeddingDesc& d, const AddArgs<T>& args, const Lists& lists) {
  constexpr std::int64_t kMaxBlocks = 1 << 20;  // blocks without a unit cost little
  const std::int64_t tiles = cuda::ceil_div(d.hidden, std::int64_t{kFewTile} * N);
  const std::int64_t units =
      (d.tokens / kManyTokens * kSubTiles + cuda::ceil_div(std::min(d.tokens, d.vocab), kWarps)) *
      tiles;
  const auto grid = static_cast<unsigned>(std::min(units, kMaxBlocks));
  add_kernel<N><<<grid, kThreads, 0, ctx.stream>>>(args, lists, tiles);
  K25_CUDA_CHECK_LAUNCH();
}

template <class T>
void backward(Context& ctx, const EmbeddingDesc& d, const EmbeddingBackwardIn& in,
              const EmbeddingBackwardOut& out, const Lists& lists) {
  embedding_make_lists(ctx, d, in.token_N.data<std::int32_t>(), lists);
  const AddArgs<T> args{
      .dout = in.dout_ND.data<T>(),
      .dout_stride = in.dout_ND.stride(0),
      .dtable = out.dtable_VD.data<float>(),
      .dtable_stride = out.dtable_VD.stride(0),
      .cols = d.hidden,
  };
  const bool aligned = cuda::all_aligned(cuda::kVectorBytes, args.dout, args.dtable) &&
                       cuda::vector_rows<T>(d.tokens, d.hidden, args.dout_stride) &&
                       cuda::vector_rows<float>(d.vocab, d.hidden, args.dtable_stride);
  if (aligned) return launch_add<cuda::kVectorOf<T>>(ctx, d, args, lists);
  launch_add<1>(ctx, d, args, lists);
}

}  // namespace

void embedding_backward_cuda(Context& ctx, const EmbeddingPlan& plan, const EmbeddingBackwardIn& in,
                             const EmbeddingBackwardOut& out, Workspace workspace) {
  if (plan.desc.vocab == 0) return;  // no token is good
  const Lists lists = embedding_lists(plan.desc, workspace.data);
  if (plan.desc.dtype == DType::kBFloat16) {
    return backward<BFloat16>(ctx, plan.desc, in, out, lists);
  }
  backward<float>(ctx, plan.desc, in, out, lists);
}

}  // namespace k25::kernels
