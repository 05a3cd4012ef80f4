#include "kernels/core/cuda_check.h"
#include "kernels/core/cuda_math.cuh"
#include "kernels/core/device.h"
#include "kernels/embedding/embedding_cuda.h"
#include "kernels/embedding/embedding_lists.cuh"

namespace k25::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / cuda::kWarp;
constexpr int kBlocksPerSm = 8;
constexpr int kRescanTokens = 16;  // of one thread in one round of rescan()

__global__ void __launch_bounds__(kThreads)
    count_kernel(const std::int32_t* token, std::int64_t tokens, std::int64_t vocab, Lists lists) {
  const std::int64_t stride = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t n = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; n < tokens;
       n += stride) {
    const std::int32_t t = token[n];
    if (in_vocabulary(t, vocab)) atomicAdd(&lists.count[t], 1);
  }
}

/// Sum of v over the threads of the block up to and with this one, and over all. Two barriers.
template <class V>
struct Scan {
  V inclusive, total;
};
template <class V>
__device__ __forceinline__ Scan<V> block_scan(V v, V (&shared)[kWarps]) {
  const int lane = static_cast<int>(threadIdx.x) % cuda::kWarp;
  const int warp = static_cast<int>(threadIdx.x) / cuda::kWarp;
#pragma unroll
  for (int by = 1; by < cuda::kWarp; by *= 2) {
    const V left = __shfl_up_sync(~0u, v, by);
    if (lane >= by) v += left;
  }
  if (lane == cuda::kWarp - 1) shared[warp] = v;
  __syncthreads();
  V before = 0, total = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) before += shared[w];
    total += shared[w];
  }
  __syncthreads();
  return {before + v, total};
}

__global__ void __launch_bounds__(kThreads) allocate_kernel(std::int64_t vocab, Lists lists) {
  __shared__ unsigned long long sums[kWarps];
  __shared__ unsigned long long base;
  const std::int64_t stride = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t first = std::int64_t{blockIdx.x} * kThreads; first < vocab; first += stride) {
    const std::int64_t row = first + threadIdx.x;
    const std::int32_t count = row < vocab ? lists.count[row] : 0;
    // A bucket of few and `count` positions in one number: positions never reach 2^32.
    const bool is_few = count > 0 && count <= kManyTokens;
    const unsigned long long mine =
        (is_few ? 1ull << 32 : 0) + static_cast<unsigned long long>(count);
    const Scan<unsigned long long> scan = block_scan(mine, sums);
    if (threadIdx.x == 0) base = atomicAdd(lists.totals, scan.total);
    __syncthreads();
    if (count > 0) {
      const unsigned long long at = base + scan.inclusive - mine;
      const auto begin = static_cast<std::int32_t>(at & 0xffffffffu);
      Bucket* const to =
          is_few ? lists.few + (at >> 32) : lists.many + atomicAdd(lists.totals + 1, 1ull);
      *to = {static_cast<std::int32_t>(row), begin, count, 0};
      lists.cursor[row] = begin;
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    fill_kernel(const std::int32_t* token, std::int64_t tokens, std::int64_t vocab, Lists lists) {
  const std::int64_t stride = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t n = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; n < tokens;
       n += stride) {
    const std::int32_t t = token[n];
    if (in_vocabulary(t, vocab)) {
      lists.position[atomicAdd(&lists.cursor[t], 1)] = static_cast<std::int32_t>(n);
    }
  }
}

/// Writes the positions of `row` in order by looking at all tokens: for rows of many tokens.
__device__ void rescan(const std::int32_t* token, std::int64_t tokens, std::int32_t row,
                       std::int32_t* to, int (&sums)[kWarps]) {
  std::int32_t done = 0;
  for (std::int64_t first = 0; first < tokens; first += std::int64_t{kThreads} * kRescanTokens) {
    const std::int64_t mine = first + std::int64_t{threadIdx.x} * kRescanTokens;
    unsigned found = 0;
#pragma unroll
    for (int i = 0; i < kRescanTokens; ++i) {
      if (mine + i < tokens && token[mine + i] == row) found |= 1u << i;
    }
    const int count = __popc(found);
    const Scan<int> scan = block_scan(count, sums);
    std::int32_t at = done + scan.inclusive - count;
    for (; found != 0; found &= found - 1) {
      to[at++] = static_cast<std::int32_t>(mine + __ffs(static_cast<int>(found)) - 1);
    }
    done += scan.total;
  }
}

__global__ void __launch_bounds__(kThreads)
    order_kernel(const std::int32_t* token, std::int64_t tokens, Lists lists) {
  constexpr int kSmall = kThreads;
  __shared__ std::int32_t positions[kSmall];
  __shared__ int sums[kWarps];
  const std::int64_t buckets = num_many(lists);
  for (std::int64_t b = blockIdx.x; b < buckets; b += gridDim.x) {
    const Bucket bucket = lists.many[b];
    std::int32_t* const list = lists.position + bucket.begin;
    if (bucket.count > kSmall) {
      rescan(token, tokens, bucket.row, list, sums);
      continue;
    }
    const bool has = static_cast<int>(threadIdx.x) < bucket.count;
    const std::int32_t mine = has ? list[threadIdx.x] : 0;
    if (has) positions[threadIdx.x] = mine;
    __syncthreads();
    int rank = 0;
    if (has) {
      for (int i = 0; i < bucket.count; ++i) rank += positions[i] < mine ? 1 : 0;
      list[rank] = mine;
    }
    __syncthreads();
  }
}

}  // namespace

Lists embedding_lists(const EmbeddingDesc& desc, void* workspace) {
  auto* const start = static_cast<char*>(workspace);
  const EmbeddingListLayout at = embedding_list_layout(desc);
  Lists lists{};
  lists.totals = reinterpret_cast<unsigned long long*>(start + at.totals);
  lists.count = reinterpret_cast<std::int32_t*>(start + at.count);
  lists.zeroed_bytes = at.cursor;
  lists.cursor = reinterpret_cast<std::int32_t*>(start + at.cursor);
  lists.few = reinterpret_cast<Bucket*>(start + at.few);
  lists.many = reinterpret_cast<Bucket*>(start + at.many);
  lists.position = reinterpret_cast<std::int32_t*>(start + at.position);
  return lists;
}

void embedding_make_lists(Context& ctx, const EmbeddingDesc& desc, const std::int32_t* token,
                          const Lists& lists) {
  fill_bytes(ctx, lists.totals, 0, Bytes{lists.zeroed_bytes});
  const unsigned by_token = cuda::grid_blocks(ctx, desc.tokens, kThreads, kBlocksPerSm);
  count_kernel<<<by_token, kThreads, 0, ctx.stream>>>(token, desc.tokens, desc.vocab, lists);
  K25_CUDA_CHECK_LAUNCH();
  allocate_kernel<<<cuda::grid_blocks(ctx, desc.vocab, kThreads, kBlocksPerSm), kThreads, 0,
                    ctx.stream>>>(desc.vocab, lists);
  K25_CUDA_CHECK_LAUNCH();
  fill_kernel<<<by_token, kThreads, 0, ctx.stream>>>(token, desc.tokens, desc.vocab, lists);
  K25_CUDA_CHECK_LAUNCH();
  if (desc.tokens <= kManyTokens) return;
  order_kernel<<<cuda::grid_blocks(ctx, desc.tokens / kManyTokens, 1, kBlocksPerSm), kThreads, 0,
                 ctx.stream>>>(token, desc.tokens, lists);
  K25_CUDA_CHECK_LAUNCH();
}

}  // namespace k25::kernels
