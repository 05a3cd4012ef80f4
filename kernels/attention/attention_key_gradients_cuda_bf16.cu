// dk and dv in bf16 on tensor cores, without atomics: a block owns a tile of keys and takes the
// queries that see them in order, all heads of the group one after the other.
#include "kernels/attention/attention_mma.cuh"

namespace k25::kernels {
namespace {

constexpr int kWarps = kBackwardWarps;

/// A warp owns 16 keys, S^T and dP^T of a query tile, and the columns of one of kSplit parts of dk
/// and dv: at head_dim 256 their accumulators fill two warps, which both form S^T and dP^T. dP^T
/// comes in kParts pieces where all of it would not fit in registers.
template <int kDimension, int kQueryTile, int kColumnSplit, int kStageCount, int kSlopeParts>
struct KeyShape {
  static constexpr int kDim = kDimension, kQueries = kQueryTile, kSplit = kColumnSplit;
  static constexpr int kParts = kSlopeParts, kStages = kStageCount, kThreads = 32 * kWarps * kSplit;
  static constexpr int kKeys = kKeyGradientTileBf16, kN = kQueries / 8;
  static constexpr int kOutN = kDim / kSplit / 8;
  static constexpr int kKeyBytes = kKeys * kDim * 2, kQueryBytes = kQueries * kDim * 2;
  static constexpr int kRowBytes = 2 * kQueries * 4;  // lse, then delta
  static constexpr int kStageBytes = 2 * kQueryBytes + kRowBytes;
  static constexpr int kShared = 2 * kKeyBytes + kStages * kStageBytes;
  static_assert(kKeys == 16 * kWarps);
};
using Keys64 = KeyShape<64, 128, 1, 2, 2>;
using Keys128 = KeyShape<128, 64, 1, 2, 2>;
using Keys256 = KeyShape<256, 32, 2, 1, 1>;

/// Where one query tile comes from.
struct QueryStep {
  int head = 0, query0 = 0;
};

template <class S>
class KeyGradient {
 public:
  __device__ KeyGradient(const CudaAttentionArgs<BFloat16>& x, int b, int kv_head,
                         const DocTile& doc, unsigned char* shared)
      : x_(x), b_(b), kv_head_(kv_head), doc_(doc), shared_(shared) {}

  __device__ void run() {
    const std::uint32_t keys = shared_address(shared_);
    const Stream<S::kDim, S::kKeys, S::kThreads> own{document(x_.k, kv_head_),
                                                     document(x_.v, kv_head_),
                                                     x_.k.token_stride,
                                                     x_.v.token_stride,
                                                     x_.k.vector,
                                                     x_.v.vector};
    own.load(keys, x_.head_dim, doc_.first, doc_.length);
    clear(dk_);
    clear(dv_);
    const int group = x_.heads / x_.kv_heads, end = (kv_head_ + 1) * group;
    QueryStep step{kv_head_ * group, x_.causal ? doc_.first : 0};
    load(step, 0);
    for (int at = 0; step.head < end; at = (at + 1) % S::kStages) {
      const QueryStep next = after(step);
      const bool more = next.head < end;
      if (S::kStages > 1 && more) {
        load(next, (at + 1) % S::kStages);
        copy_async_wait<1>();
      } else {
        copy_async_wait<0>();
      }
      __syncthreads();
      add(step, at);
      __syncthreads();
      if (S::kStages == 1 && more) load(next, 0);
      step = next;
    }
    store();
  }

 private:
  __device__ QueryStep after(const QueryStep& step) const {
    if (step.query0 + S::kQueries < doc_.length) return {step.head, step.query0 + S::kQueries};
    return {step.head + 1, x_.causal ? doc_.first : 0};
  }
  __device__ const BFloat16* document(const CudaHeads<const BFloat16>& view, int head) const {
    return view.head(b_, head) + doc_.begin * view.token_stride;
  }
  __device__ int row0() const { return threadIdx.x / 32 % kWarps * 16; }
  __device__ int col0() const { return threadIdx.x / 32 / kWarps * (S::kDim / S::kSplit); }
  __device__ unsigned char* stage(int i) const {
    return shared_ + 2 * S::kKeyBytes + i * S::kStageBytes;
  }

  __device__ void load(const QueryStep& step, int to) const {
    const std::uint32_t tile = shared_address(stage(to));
    const Stream<S::kDim, S::kQueries, S::kThreads> queries{document(x_.q, step.head),
                                                            document(x_.dout, step.head),
                                                            x_.q.token_stride,
                                                            x_.dout.token_stride,
                                                            x_.q.vector,
                                                            x_.dout.vector};
    queries.load(tile, x_.head_dim, step.query0, doc_.length);
    for (int i = threadIdx.x; i < 2 * S::kQueries; i += S::kThreads) {
      const int query = step.query0 + i % S::kQueries;
      const bool inside = query < doc_.length;
      const float* const row =
          (i < S::kQueries ? x_.lse_row(b_, step.head) : x_.delta_row(b_, step.head)) + doc_.begin;
      copy_async_4(tile + 2 * S::kQueryBytes + i * 4, row + (inside ? query : 0), inside);
    }
    copy_async_commit();
  }

  __device__ void add(const QueryStep& step, int at) {
    const int lane = threadIdx.x % 32, column0 = lane % 4 * 2, key0 = doc_.first + row0();
    const bool busy = key0 < doc_.length;
    const bool diagonal = x_.causal && step.query0 < doc_.first + S::kKeys;
    const std::uint32_t keys = shared_address(shared_), q = shared_address(stage(at));
    const auto* const lse = reinterpret_cast<const float*>(stage(at) + 2 * S::kQueryBytes);
    const float* const delta = lse + S::kQueries;
    const float factor = x_.scale * kLog2e;

    // How much later the thread's first key is than its first query.
    const int ahead = key0 + lane / 4 - step.query0 - column0;

    float p[1][S::kN][4];
    constexpr int kPartN = S::kN / S::kParts, kPartBytes = S::kQueryBytes / S::kParts;
    Weights<1, kPartN> key_weights[S::kParts];
    if (busy) {
      clear(p);
      multiply_rows<S::kDim>(p, keys, row0(), q);
#pragma unroll
      for (int i = 0; i < S::kN * 4; ++i) {
        float& probability = p[0][i / 4][i % 4];
        probability =
            fast_exp2(fmaf(probability, factor, -lse[i / 4 * 8 + column0 + i % 2] * kLog2e));
      }
      // Queries past the document are 0 with lse 0: they add nothing and need not be hidden.
      if (diagonal) hide(p, ahead);
#pragma unroll
      for (int part = 0; part < S::kParts; ++part) {
        float ds[1][kPartN][4];
        clear(ds);
        multiply_rows<S::kDim>(ds, keys + S::kKeyBytes, row0(),
                               q + S::kQueryBytes + part * kPartBytes);
#pragma unroll
        for (int i = 0; i < kPartN * 4; ++i) {
          const int n = part * kPartN + i / 4;
          float& slope = ds[0][i / 4][i % 4];
          slope = p[0][n][i % 4] * (slope - delta[n * 8 + column0 + i % 2]);
        }
        if (diagonal) hide(ds, ahead - part * kPartN * 8);
        key_weights[part] = Weights<1, kPartN>(ds);
      }
    }
    if (diagonal) reveal(step, at, key0);
    if (!busy) return;
    multiply_columns<S::kDim>(dv_, Weights<1, S::kN>(p), q + S::kQueryBytes, col0());
#pragma unroll
    for (int part = 0; part < S::kParts; ++part) {
      multiply_columns<S::kDim>(dk_, key_weights[part], q + part * kPartBytes, col0());
    }
  }

  /// Zeroes what keys do not see: the queries before them.
  template <int kN>
  __device__ static void hide(float (&x)[1][kN][4], int ahead) {
#pragma unroll
    for (int i = 0; i < kN * 4; ++i) {
      if (ahead + i % 4 / 2 * 8 > i / 4 * 8 + i % 2) x[0][i / 4][i % 4] = 0.f;
    }
  }

  /// Non-finite q and dout reach the keys they see and no others.
  __device__ void reveal(const QueryStep& step, int at, int key0) {
    unsigned char* const q = stage(at);
    unsigned char* const dout = q + S::kQueryBytes;
    if (!any_not_finite<S::kDim, 2 * S::kQueries, S::kThreads>(q)) return;
    add_not_finite<Sees::kLater, S::kDim, S::kQueries>(dk_, q, key0, step.query0, col0());
    add_not_finite<Sees::kLater, S::kDim, S::kQueries>(dv_, dout, key0, step.query0, col0());
    __syncthreads();
    clear_not_finite<S::kDim, 2 * S::kQueries, S::kThreads>(q);
    __syncthreads();
  }

  __device__ void store() const {
    const int key0 = doc_.first + row0();
    if (key0 >= doc_.length) return;
    store_rows<S::kDim>(dk_, shared_, row0(), col0(),
                        x_.dk.head(b_, kv_head_) + doc_.begin * x_.dk.token_stride,
                        x_.dk.token_stride, x_.dk.vector, x_.head_dim, key0, doc_.length,
                        [&](int, int) { return x_.scale; });
    store_rows<S::kDim>(dv_, shared_ + S::kKeyBytes, row0(), col0(),
                        x_.dv.head(b_, kv_head_) + doc_.begin * x_.dv.token_stride,
                        x_.dv.token_stride, x_.dv.vector, x_.head_dim, key0, doc_.length,
                        [](int, int) { return 1.f; });
  }

  const CudaAttentionArgs<BFloat16>& x_;
  const int b_;
  const int kv_head_;
  const DocTile doc_;
  unsigned char* const shared_;
  float dk_[1][S::kOutN][4], dv_[1][S::kOutN][4];
};

template <class S>
__global__ void __launch_bounds__(S::kThreads)
    attention_key_gradients_bf16(const __grid_constant__ CudaAttentionArgs<BFloat16> x, int slots) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const int unit = static_cast<int>(blockIdx.x / slots), b = unit / x.kv_heads;
  const int kv_head = unit % x.kv_heads;
  const int slot = static_cast<int>(blockIdx.x % slots);  // causal: the first keys have most work
  const int count = tile_count(x.tiles, b, slots);
  if (count == kBadDocuments) {
    fill_nan(x, x.dk, b, kv_head, std::int64_t{slot} * S::kKeys, S::kKeys);
    fill_nan(x, x.dv, b, kv_head, std::int64_t{slot} * S::kKeys, S::kKeys);
  }
  for (int i = slot; i < count; i += slots) {
    KeyGradient<S>(x, b, kv_head, doc_tile(x, b, i, S::kKeys), shared).run();
    __syncthreads();
  }
}

template <class S>
void launch(const CudaAttentionArgs<BFloat16>& x, cudaStream_t stream) {
  launch_tiles<S>(attention_key_gradients_bf16<S>, x, x.kv_heads, S::kKeys, stream);
}

}  // namespace

void launch_key_gradients(const CudaAttentionArgs<BFloat16>& x, cudaStream_t stream) {
  if (x.head_dim <= 64) return launch<Keys64>(x, stream);
  if (x.head_dim <= 128) return launch<Keys128>(x, stream);
  launch<Keys256>(x, stream);
}

}  // namespace k25::kernels
