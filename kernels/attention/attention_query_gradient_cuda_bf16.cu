// dq in bf16 on tensor cores: a block owns a tile of queries and takes their keys in order. Forming
// S and dP here once more is the price of a fixed order of additions in both backward kernels.
#include "kernels/attention/attention_mma.cuh"

namespace k25::kernels {
namespace {

constexpr int kWarps = kBackwardWarps;

template <int kDimension, int kMBlocks, int kKeyTile, int kStageCount>
struct QueryShape {
  static constexpr int kDim = kDimension, kM = kMBlocks, kKeys = kKeyTile, kStages = kStageCount;
  static constexpr int kThreads = 32 * kWarps, kQueries = kWarps * kM * 16;
  static constexpr int kN = kKeys / 8, kOutN = kDim / 8;
  static constexpr int kQueryBytes = kQueries * kDim * 2, kKeyBytes = kKeys * kDim * 2;
  static constexpr int kShared = 2 * kQueryBytes + kStages * 2 * kKeyBytes;
};
using Queries64 = QueryShape<64, 2, 32, 2>;
using Queries128 = QueryShape<128, 2, 32, 2>;
using Queries256 = QueryShape<256, 1, 32, 1>;

template <class S>
class QueryGradient {
 public:
  __device__ QueryGradient(const CudaAttentionArgs<BFloat16>& x, int b, int head,
                           const DocTile& doc, unsigned char* shared)
      : x_(x), b_(b), head_(head), doc_(doc), shared_(shared) {}

  __device__ void run() {
    const std::uint32_t tile = shared_address(shared_);
    const Stream<S::kDim, S::kQueries, S::kThreads> own{
        document(x_.q, head_), document(x_.dout, head_),
        x_.q.token_stride,     x_.dout.token_stride,
        x_.q.vector,           x_.dout.vector};
    own.load(tile, x_.head_dim, doc_.first, doc_.length);
    clear(dq_);
    load_row_values();
    const int key_end = x_.causal ? min(doc_.length, doc_.first + S::kQueries) : doc_.length;
    const int steps = (key_end + S::kKeys - 1) / S::kKeys;
    load(0, 0);
    for (int i = 0; i < steps; ++i) {
      const bool more = i + 1 < steps;
      if (S::kStages > 1 && more) {
        load((i + 1) * S::kKeys, (i + 1) % S::kStages);
        copy_async_wait<1>();
      } else {
        copy_async_wait<0>();
      }
      __syncthreads();
      add(i * S::kKeys, i % S::kStages);
      __syncthreads();
      if (S::kStages == 1 && more) load((i + 1) * S::kKeys, 0);
    }
    store();
  }

 private:
  __device__ const BFloat16* document(const CudaHeads<const BFloat16>& view, int head) const {
    return view.head(b_, head) + doc_.begin * view.token_stride;
  }
  __device__ int row0() const { return threadIdx.x / 32 * S::kM * 16; }
  __device__ int query0() const { return doc_.first + row0(); }
  __device__ unsigned char* stage(int i) const {
    return shared_ + 2 * S::kQueryBytes + i * 2 * S::kKeyBytes;
  }

  __device__ void load_row_values() {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < S::kM * 2; ++i) {
      const int query = query0() + i / 2 * 16 + i % 2 * 8 + lane / 4;
      const bool inside = query < doc_.length;
      lse_[i / 2][i % 2] = inside ? x_.lse_row(b_, head_)[doc_.begin + query] * kLog2e : 0.f;
      delta_[i / 2][i % 2] = inside ? x_.delta_row(b_, head_)[doc_.begin + query] : 0.f;
    }
  }

  __device__ void load(int key0, int to) const {
    const int kv_head = head_ / (x_.heads / x_.kv_heads);
    const Stream<S::kDim, S::kKeys, S::kThreads> keys{document(x_.k, kv_head),
                                                      document(x_.v, kv_head),
                                                      x_.k.token_stride,
                                                      x_.v.token_stride,
                                                      x_.k.vector,
                                                      x_.v.vector};
    keys.load(shared_address(stage(to)), x_.head_dim, key0, doc_.length);
    copy_async_commit();
  }

  __device__ void add(int key0, int at) {
    const int lane = threadIdx.x % 32;
    const bool busy = query0() < doc_.length && (!x_.causal || key0 < query0() + S::kM * 16);
    const bool diagonal = x_.causal && key0 + S::kKeys > doc_.first;
    const std::uint32_t q = shared_address(shared_), k = shared_address(stage(at));
    const float factor = x_.scale * kLog2e;
    Weights<S::kM, S::kN> weights;
    if (busy) {
      float p[S::kM][S::kN][4], ds[S::kM][S::kN][4];
      clear(p);
      multiply_rows<S::kDim>(p, q, row0(), k);
#pragma unroll
      for (int i = 0; i < S::kM * S::kN * 4; ++i) {
        float& probability = p[i / 4 / S::kN][i / 4 % S::kN][i % 4];
        probability = fast_exp2(fmaf(probability, factor, -lse_[i / 4 / S::kN][i % 4 / 2]));
      }
      clear(ds);
      multiply_rows<S::kDim>(ds, q + S::kQueryBytes, row0(), k + S::kKeyBytes);
#pragma unroll
      for (int i = 0; i < S::kM * S::kN * 4; ++i) {
        const int m = i / 4 / S::kN, n = i / 4 % S::kN;
        ds[m][n][i % 4] = p[m][n][i % 4] * (ds[m][n][i % 4] - delta_[m][i % 4 / 2]);
      }
      if (diagonal || key0 + S::kKeys > doc_.length) {
        hide(ds, query0() + lane / 4, key0 + lane % 4 * 2);
      }
      weights = Weights<S::kM, S::kN>(ds);
    }
    if (diagonal && any_not_finite<S::kDim, S::kKeys, S::kThreads>(stage(at))) {
      add_not_finite<Sees::kEarlier, S::kDim, S::kKeys>(dq_, stage(at), query0(), key0, 0);
      __syncthreads();
      clear_not_finite<S::kDim, S::kKeys, S::kThreads>(stage(at));
      __syncthreads();
    }
    if (busy) multiply_columns<S::kDim>(dq_, weights, k, 0);
  }

  /// Zeroes what the thread's queries, from `query` on, do not see of its keys, from `key` on.
  __device__ void hide(float (&ds)[S::kM][S::kN][4], int query, int key) const {
#pragma unroll
    for (int i = 0; i < S::kM * S::kN * 4; ++i) {
      const int m = i / 4 / S::kN, n = i / 4 % S::kN;
      const int at = key + n * 8 + i % 2;
      if (at >= doc_.length || (x_.causal && at > query + m * 16 + i % 4 / 2 * 8)) {
        ds[m][n][i % 4] = 0.f;
      }
    }
  }

  __device__ void store() const {
    if (query0() >= doc_.length) return;
    store_rows<S::kDim>(dq_, shared_, row0(), 0,
                        x_.dq.head(b_, head_) + doc_.begin * x_.dq.token_stride, x_.dq.token_stride,
                        x_.dq.vector, x_.head_dim, query0(), doc_.length,
                        [&](int, int) { return x_.scale; });
  }

  const CudaAttentionArgs<BFloat16>& x_;
  const int b_;
  const int head_;
  const DocTile doc_;
  unsigned char* const shared_;
  float dq_[S::kM][S::kOutN][4], lse_[S::kM][2], delta_[S::kM][2];
};

template <class S>
__global__ void __launch_bounds__(S::kThreads)
    attention_query_gradient_bf16(const __grid_constant__ CudaAttentionArgs<BFloat16> x,
                                  int slots) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const int unit = static_cast<int>(blockIdx.x / slots), b = unit / x.heads;
  const int head = unit % x.heads;
  const int slot = slots - 1 - static_cast<int>(blockIdx.x % slots);  // the largest start first
  const int count = tile_count(x.tiles, b, slots);
  if (count == kBadDocuments) {
    fill_nan(x, x.dq, b, head, std::int64_t{slot} * S::kQueries, S::kQueries);
  }
  for (int i = slot; i < count; i += slots) {
    QueryGradient<S>(x, b, head, doc_tile(x, b, i, S::kQueries), shared).run();
    __syncthreads();
  }
}

template <class S>
void launch(const CudaAttentionArgs<BFloat16>& x, cudaStream_t stream) {
  launch_tiles<S>(attention_query_gradient_bf16<S>, x, x.heads, S::kQueries, stream);
}

}  // namespace

int query_gradient_tile_bf16(int head_dim) {
  if (head_dim <= 64) return Queries64::kQueries;
  return head_dim <= 128 ? Queries128::kQueries : Queries256::kQueries;
}

void launch_query_gradient(const CudaAttentionArgs<BFloat16>& x, cudaStream_t stream) {
  if (x.head_dim <= 64) return launch<Queries64>(x, stream);
  if (x.head_dim <= 128) return launch<Queries128>(x, stream);
  launch<Queries256>(x, stream);
}

}  // namespace k25::kernels
