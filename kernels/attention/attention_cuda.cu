// Attention on the GPU: argument blocks, the list of tiles, delta, and the order of launches. The
// kernels are in attention_{forward,key_gradients,query_gradient}_cuda_bf16.cu and
// attention_cuda_fp32.cu.
#include <algorithm>
#include <string>
#include <type_traits>

#include "kernels/attention/attention_cuda.h"
#include "kernels/attention/attention_cuda_args.cuh"
#include "kernels/attention/attention_cudnn.h"
#include "kernels/core/buffer.h"
#include "kernels/core/context.h"
#include "kernels/core/cuda_check.h"
#include "kernels/core/cuda_math.cuh"

namespace k25::kernels {
namespace {

// ---- list of tiles -----------------------------------------------------------------------------

constexpr int kListThreads = 1024;

/// One block a sequence. A tile starts where the distance to the document's first token is a
/// multiple of `tile`. Borders that contradict each other (attention_check_documents) count as
/// kBadDocuments: nothing is read through them.
template <class T>
__global__ void __launch_bounds__(kListThreads)
    list_tiles(const __grid_constant__ CudaAttentionArgs<T> x, std::int32_t* firsts,
               std::int32_t* counts, int tile) {
  __shared__ std::int32_t warp_counts[kListThreads / 32];
  const std::int64_t b = blockIdx.x;
  const std::int32_t* const begins = x.doc_begin + b * x.doc_begin_stride;
  const std::int32_t* const ends = x.doc_end + b * x.doc_end_stride;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  std::int32_t total = 0;
  bool bad = false;
  for (std::int32_t t0 = 0; t0 < x.tokens; t0 += kListThreads) {
    const std::int32_t t = t0 + threadIdx.x;
    bool start = false;
    if (t < x.tokens) {
      const std::int32_t begin = begins[t], end = ends[t];
      bad = bad || begin < 0 || begin > t || end <= t || end > x.tokens;
      const bool continues = t > 0 && ends[t - 1] > t;
      bad = bad || (continues ? begins[t - 1] != begin || ends[t - 1] != end : begin != t);
      start = begin <= t && (std::int64_t{t} - begin) % tile == 0;
    }
    const unsigned votes = __ballot_sync(0xffffffffu, start);
    if (lane == 0) warp_counts[warp] = __popc(votes);
    __syncthreads();
    std::int32_t before = total;
    for (int w = 0; w < kListThreads / 32; ++w) {
      if (w < warp) before += warp_counts[w];
      total += warp_counts[w];
    }
    if (start) firsts[b * x.tokens + before + __popc(votes & ((1u << lane) - 1))] = t;
    __syncthreads();
  }
  bad = __syncthreads_or(bad) != 0;
  if (threadIdx.x == 0) counts[b] = bad ? kBadDocuments : total;
}

/// Lists the tiles for kernels that work with `tile` tokens, where there are documents.
template <class T>
void use_tiles(CudaAttentionArgs<T>& x, void* list, int tile, cudaStream_t stream) {
  if (x.doc_begin == nullptr) return;
  auto* const counts = static_cast<std::int32_t*>(list);
  auto* const firsts = counts + align_up(x.batch, 16);
  list_tiles<<<static_cast<unsigned>(x.batch), kListThreads, 0, stream>>>(x, firsts, counts, tile);
  K25_CUDA_CHECK_LAUNCH();
  x.tiles = {firsts, counts};
}

// ---- delta -------------------------------------------------------------------------------------

constexpr int kDeltaThreads = 256, kDeltaWidth = 8;  // elements a lane takes

/// Eight elements of a row, of which `count` exist.
template <class T>
__device__ void load_eight(float (&to)[kDeltaWidth], const T* from, int count, bool vector) {
  using cuda::Access;
  const auto v = vector && count >= kDeltaWidth
                     ? cuda::load<Access::kAligned, kDeltaWidth>(from, count)
                     : cuda::load<Access::kScalar, kDeltaWidth>(from, count);
  v.widen(to);
}

/// kLanes lanes a row of head_dim <= 8 kLanes elements: delta = sum_e dout out.
template <class T, int kLanes>
__global__ void __launch_bounds__(kDeltaThreads)
    row_deltas(const __grid_constant__ CudaAttentionArgs<T> x) {
  const std::int64_t rows = x.batch * x.tokens * x.heads;
  const std::int64_t step = std::int64_t{gridDim.x} * (kDeltaThreads / kLanes);
  const int e = threadIdx.x % kLanes * kDeltaWidth;
  for (std::int64_t base = std::int64_t{blockIdx.x} * (kDeltaThreads / kLanes); base < rows;
       base += step) {
    const std::int64_t row = base + threadIdx.x / kLanes;
    const std::int64_t h = row % x.heads, t = row / x.heads % x.tokens,
                       b = row / x.heads / x.tokens;
    float sum = 0.f;
    if (row < rows && e < x.head_dim) {
      float out[kDeltaWidth], dout[kDeltaWidth];
      load_eight(out, x.saved_out.head(b, h) + t * x.saved_out.token_stride + e, x.head_dim - e,
                 x.saved_out.vector);
      load_eight(dout, x.dout.head(b, h) + t * x.dout.token_stride + e, x.head_dim - e,
                 x.dout.vector);
#pragma unroll
      for (int i = 0; i < kDeltaWidth; ++i) sum = fmaf(out[i], dout[i], sum);
    }
    sum = cuda::warp_reduce<cuda::Add, kLanes>(sum);
    if (row < rows && e == 0) x.delta_row(b, h)[t] = sum;
  }
}

template <class T>
void launch_deltas(const Context& ctx, const CudaAttentionArgs<T>& x) {
  const auto run = [&](auto kernel, std::int64_t lanes) {
    const unsigned blocks =
        cuda::grid_blocks(ctx, x.batch * x.tokens * x.heads, kDeltaThreads / lanes, 16);
    kernel<<<blocks, kDeltaThreads, 0, ctx.stream>>>(x);
    K25_CUDA_CHECK_LAUNCH();
  };
  if (x.head_dim <= 64) return run(row_deltas<T, 8>, 8);
  if (x.head_dim <= 128) return run(row_deltas<T, 16>, 16);
  run(row_deltas<T, 32>, 32);
}

// ---- arguments ---------------------------------------------------------------------------------

template <class T, class View>
CudaHeads<T> heads_view(const View& t) {
  CudaHeads<T> v{t.template data<std::remove_const_t<T>>(), t.stride(0), t.stride(1), t.stride(2)};
  const std::int64_t word = 16 / dtype_bytes(t.dtype());
  v.vector = reinterpret_cast<std::uintptr_t>(v.data) % 16 == 0 && v.batch_stride % word == 0 &&
             v.token_stride % word == 0 && v.head_stride % word == 0 && t.dim(3) % word == 0;
  return v;
}

template <class T, class In>
CudaAttentionArgs<T> common_args(const AttentionDesc& d, const In& in) {
  CudaAttentionArgs<T> x;
  x.batch = d.batch;
  x.tokens = static_cast<std::int32_t>(d.tokens);
  x.heads = static_cast<std::int32_t>(d.heads);
  x.kv_heads = static_cast<std::int32_t>(d.kv_heads);
  x.head_dim = static_cast<std::int32_t>(d.head_dim);
  x.causal = d.masking == Masking::kCausal;
  x.scale = static_cast<float>(d.scale);
  x.q = heads_view<const T>(in.q_BTHE);
  x.k = heads_view<const T>(in.k_BTKE);
  x.v = heads_view<const T>(in.v_BTKV);
  if (in.doc_begin_BT) {
    x.doc_begin = in.doc_begin_BT.template data<std::int32_t>();
    x.doc_end = in.doc_end_BT.template data<std::int32_t>();
    x.doc_begin_stride = in.doc_begin_BT.stride(0);
    x.doc_end_stride = in.doc_end_BT.stride(0);
  }
  return x;
}

/// Tokens a tile of each kernel holds.
template <class T>
struct TileLengths {
  int forward = kFp32Tile, queries = kFp32Tile, keys = kFp32Tile;
  explicit TileLengths(int head_dim) {
    if constexpr (std::is_same_v<T, BFloat16>) {
      forward = forward_tile_bf16(head_dim);
      queries = query_gradient_tile_bf16(head_dim);
      keys = kKeyGradientTileBf16;
    }
  }
};

template <class T>
void forward_typed(Context& ctx, const AttentionDesc& d, const AttentionForwardIn& in,
                   const AttentionForwardOut& out, Workspace workspace) {
  auto x = common_args<T>(d, in);
  x.out = heads_view<T>(out.out_BTHV);
  x.lse = out.lse_BHT.data<float>();
  x.lse_batch_stride = out.lse_BHT.stride(0);
  x.lse_head_stride = out.lse_BHT.stride(1);
  use_tiles(x, workspace.data, TileLengths<T>(x.head_dim).forward, ctx.stream);
  launch_forward(x, ctx.stream);
}

template <class T>
void backward_typed(Context& ctx, const AttentionDesc& d, const AttentionBackwardIn& in,
                    const AttentionBackwardOut& out, Workspace workspace) {
  auto x = common_args<T>(d, in);
  x.lse = const_cast<float*>(in.lse_BHT.data<float>());
  x.lse_batch_stride = in.lse_BHT.stride(0);
  x.lse_head_stride = in.lse_BHT.stride(1);
  x.saved_out = heads_view<const T>(in.out_BTHV);
  x.dout = heads_view<const T>(in.dout_BTHV);
  x.dq = heads_view<T>(out.dq_BTHE);
  x.dk = heads_view<T>(out.dk_BTKE);
  x.dv = heads_view<T>(out.dv_BTKV);
  x.delta =
      reinterpret_cast<float*>(static_cast<char*>(workspace.data) + attention_list_bytes_cuda(d).n);
  launch_deltas(ctx, x);
  const TileLengths<T> tiles(x.head_dim);
  use_tiles(x, workspace.data, tiles.keys, ctx.stream);
  launch_key_gradients(x, ctx.stream);
  if (tiles.queries != tiles.keys) use_tiles(x, workspace.data, tiles.queries, ctx.stream);
  launch_query_gradient(x, ctx.stream);
}

// ---- choice ------------------------------------------------------------------------------------

/// Whether cuDNN has done the work: `call` hands it over and returns why it was not taken.
template <class Call>
bool done_by_cudnn(const AttentionDesc& d, const Call& call) {
  if (!may_use_cudnn(d)) return false;
  const char* const refusal = call();
  check_cudnn_choice(d, refusal);
  return refusal == nullptr;
}

}  // namespace

void attention_forward_cuda(Context& ctx, const AttentionPlan& plan, const AttentionForwardIn& in,
                            const AttentionForwardOut& out, Workspace workspace) {
  const auto cudnn = [&] { return attention_forward_cudnn(ctx, plan.desc, in, out, workspace); };
  if (done_by_cudnn(plan.desc, cudnn)) return;
  if (plan.desc.dtype == DType::kBFloat16) {
    return forward_typed<BFloat16>(ctx, plan.desc, in, out, workspace);
  }
  forward_typed<float>(ctx, plan.desc, in, out, workspace);
}

void attention_backward_cuda(Context& ctx, const AttentionPlan& plan, const AttentionBackwardIn& in,
                             const AttentionBackwardOut& out, Workspace workspace) {
  const auto cudnn = [&] { return attention_backward_cudnn(ctx, plan.desc, in, out, workspace); };
  if (done_by_cudnn(plan.desc, cudnn)) return;
  if (plan.desc.dtype == DType::kBFloat16) {
    return backward_typed<BFloat16>(ctx, plan.desc, in, out, workspace);
  }
  backward_typed<float>(ctx, plan.desc, in, out, workspace);
}

}  // namespace k25::kernels
