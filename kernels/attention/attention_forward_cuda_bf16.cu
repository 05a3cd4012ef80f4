// Forward in bf16 on tensor cores: FlashAttention-2's loop. A warp owns 16 * kM queries and all
// keys of a tile, so the softmax of a row stays within four lanes and P never leaves registers.
#include "kernels/attention/attention_mma.cuh"

namespace k25::kernels {
namespace {

constexpr int kWarps = 4;

/// kM: 16-row blocks a warp owns; kKeys: keys of a tile.
template <int kDimension, int kMBlocks, int kKeyTile>
struct ForwardShape {
  static constexpr int kDim = kDimension, kM = kMBlocks, kKeys = kKeyTile;
  static constexpr int kThreads = 32 * kWarps, kQueries = kWarps * kM * 16;
  static constexpr int kN = kKeys / 8;    // blocks of scores
  static constexpr int kOutN = kDim / 8;  // blocks of the output
  static constexpr int kQueryBytes = kQueries * kDim * 2;
  static constexpr int kKeyBytes = kKeys * kDim * 2;
  static constexpr int kShared = kQueryBytes + 2 * kKeyBytes;
};
// 32 queries a warp halve the shared-memory reads of K and V, which bound mma.sync on Hopper; at
// head_dim 256 the output alone would fill the registers.
using Forward64 = ForwardShape<64, 2, 64>;
using Forward128 = ForwardShape<128, 2, 64>;
using Forward256 = ForwardShape<256, 1, 64>;

/// The running softmax of the rows a thread sees: two of each 16-row block.
template <int kM>
struct Softmax {
  float max[kM][2], sum[kM][2];

  __device__ void reset() {
#pragma unroll
    for (int i = 0; i < kM * 2; ++i) {
      max[i / 2][i % 2] = __int_as_float(0xff800000);
      sum[i / 2][i % 2] = 0.f;
    }
  }

  /// Scores to exp2((score - new maximum) * factor); rescales sums and the output.
  template <int kN, int kOutN>
  __device__ void step(float (&s)[kM][kN][4], float (&out)[kM][kOutN][4], float factor) {
#pragma unroll
    for (int i = 0; i < kM * 2; ++i) {
      const int m = i / 2, half = i % 2;
      float top = max[m][half];
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        top = fmaxf(top, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
      }
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
      const float scaled = top * factor;
      const float shrink = fast_exp2(fmaf(max[m][half], factor, -scaled));
      max[m][half] = top;
      float total = 0.f;
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          float& p = s[m][n][2 * half + j];
          p = fast_exp2(fmaf(p, factor, -scaled));
          total += p;
        }
      }
      sum[m][half] = fmaf(sum[m][half], shrink, total);
#pragma unroll
      for (int n = 0; n < kOutN; ++n) {
        out[m][n][2 * half] *= shrink;
        out[m][n][2 * half + 1] *= shrink;
      }
    }
  }

  /// Sums over the four lanes of a row.
  __device__ void finish() {
#pragma unroll
    for (int i = 0; i < kM * 2; ++i) {
      float& total = sum[i / 2][i % 2];
      total += __shfl_xor_sync(0xffffffffu, total, 1);
      total += __shfl_xor_sync(0xffffffffu, total, 2);
    }
  }
};

/// Scores of keys a query must not see become -infinity.
template <int kM, int kN>
__device__ void hide(float (&s)[kM][kN][4], int query0, int key0, int length, bool causal) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int query = query0 + m * 16 + lane / 4 + i / 2 * 8;
        const int key = key0 + n * 8 + lane % 4 * 2 + i % 2;
        if (key >= length || (causal && key > query)) s[m][n][i] = __int_as_float(0xff800000);
      }
    }
  }
}

template <class S>
__device__ void forward_tile(const CudaAttentionArgs<BFloat16>& x, std::int64_t b, int h,
                             const DocTile& doc, unsigned char* shared) {
  unsigned char* const value_tile = shared + S::kQueryBytes + S::kKeyBytes;
  const std::uint32_t q = shared_address(shared);
  const std::uint32_t k = q + S::kQueryBytes, v = k + S::kKeyBytes;
  const int kv_head = h / (x.heads / x.kv_heads), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const BFloat16* const keys = x.k.head(b, kv_head) + doc.begin * x.k.token_stride;
  const BFloat16* const values = x.v.head(b, kv_head) + doc.begin * x.v.token_stride;
  const int row0 = warp * S::kM * 16, query0 = doc.first + row0;
  const int key_end = x.causal ? min(doc.length, doc.first + S::kQueries) : doc.length;

  load_rows<S::kDim, S::kQueries, S::kThreads>(q, x.q.head(b, h) + doc.begin * x.q.token_stride,
                                               x.q.token_stride, x.q.vector, x.head_dim, doc.first,
                                               doc.length);
  load_rows<S::kDim, S::kKeys, S::kThreads>(k, keys, x.k.token_stride, x.k.vector, x.head_dim, 0,
                                            doc.length);
  copy_async_commit();

  float out[S::kM][S::kOutN][4];
  clear(out);
  Softmax<S::kM> softmax;
  softmax.reset();
  const float factor = x.scale * kLog2e;
  for (int key0 = 0; key0 < key_end; key0 += S::kKeys) {
    copy_async_wait<0>();
    __syncthreads();
    load_rows<S::kDim, S::kKeys, S::kThreads>(v, values, x.v.token_stride, x.v.vector, x.head_dim,
                                              key0, doc.length);
    copy_async_commit();
    // Warps whose rows lie past the document, or all before this tile, only help to load.
    const bool busy = query0 < doc.length && (!x.causal || key0 < query0 + S::kM * 16);
    float s[S::kM][S::kN][4];
    clear(s);
    if (busy) multiply_rows<S::kDim>(s, q, row0, k);
    copy_async_wait<0>();
    __syncthreads();
    if (key0 + S::kKeys < key_end) {
      load_rows<S::kDim, S::kKeys, S::kThreads>(k, keys, x.k.token_stride, x.k.vector, x.head_dim,
                                                key0 + S::kKeys, doc.length);
      copy_async_commit();
    }
    const bool diagonal = x.causal && key0 + S::kKeys > doc.first;
    if (busy) {
      if (diagonal || key0 + S::kKeys > doc.length) {
        hide(s, query0, key0, doc.length, x.causal);
      }
      softmax.step(s, out, factor);
    }
    const Weights<S::kM, S::kN> weights(s);
    if (diagonal && any_not_finite<S::kDim, S::kKeys, S::kThreads>(value_tile)) {
      add_not_finite<Sees::kEarlier, S::kDim, S::kKeys>(out, value_tile, query0, key0, 0);
      __syncthreads();
      clear_not_finite<S::kDim, S::kKeys, S::kThreads>(value_tile);
      __syncthreads();
    }
    if (busy) multiply_columns<S::kDim>(out, weights, v, 0);
  }

  if (query0 >= doc.length) return;
  softmax.finish();
  float* const lse = x.lse_row(b, h) + doc.begin;
#pragma unroll
  for (int i = 0; i < S::kM * 2; ++i) {
    const int query = query0 + i / 2 * 16 + i % 2 * 8 + lane / 4;
    const float total = softmax.sum[i / 2][i % 2];
    if (lane % 4 == 0 && query < doc.length) {
      lse[query] = fmaf(softmax.max[i / 2][i % 2], x.scale, logf(total));
    }
    softmax.sum[i / 2][i % 2] = __fdividef(1.f, total);
  }
  store_rows<S::kDim>(out, shared, row0, 0, x.out.head(b, h) + doc.begin * x.out.token_stride,
                      x.out.token_stride, x.out.vector, x.head_dim, query0, doc.length,
                      [&](int m, int half) { return softmax.sum[m][half]; });
}

template <class S>
__global__ void __launch_bounds__(S::kThreads)
    attention_forward_bf16(const __grid_constant__ CudaAttentionArgs<BFloat16> x, int slots) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const std::int64_t unit = blockIdx.x / slots;
  // Causal tiles grow with their number: the largest start first.
  const int slot = slots - 1 - static_cast<int>(blockIdx.x % slots);
  const std::int64_t b = unit / x.heads;
  const int h = static_cast<int>(unit % x.heads);
  const int count = tile_count(x.tiles, b, slots);
  if (count == kBadDocuments) {
    const std::int64_t first = std::int64_t{slot} * S::kQueries;
    fill_nan(x, x.out, b, h, first, S::kQueries);
    for (std::int64_t t = first + threadIdx.x; t < min(first + S::kQueries, std::int64_t{x.tokens});
         t += S::kThreads) {
      x.lse_row(b, h)[t] = __int_as_float(0x7fc00000);
    }
  }
  for (int i = slot; i < count; i += slots) {
    forward_tile<S>(x, b, h, doc_tile(x, b, i, S::kQueries), shared);
    __syncthreads();
  }
}

template <class S>
void launch(const CudaAttentionArgs<BFloat16>& x, cudaStream_t stream) {
  launch_tiles<S>(attention_forward_bf16<S>, x, x.heads, S::kQueries, stream);
}

}  // namespace

int forward_tile_bf16(int head_dim) {
  if (head_dim <= 64) return Forward64::kQueries;
  return head_dim <= 128 ? Forward128::kQueries : Forward256::kQueries;
}

void launch_forward(const CudaAttentionArgs<BFloat16>& x, cudaStream_t stream) {
  if (x.head_dim <= 64) return launch<Forward64>(x, stream);
  if (x.head_dim <= 128) return launch<Forward128>(x, stream);
  launch<Forward256>(x, stream);
}

}  // namespace k25::kernels
