// Attention in fp32 with plain fma: 64 x 64 tiles, 4 x 4 results a thread.
//
// All products have one form, acc(row, column) += sum_k A[k][row] B[k][column], with A and B in
// shared memory. Scores need q and k with head_dim first (loaded transposed, 32 columns at a time);
// a tile of scores is stored transposed and is then the A of what follows.
// On the diagonal the products skip hidden pairs: 0 * inf would be NaN.
#include "kernels/attention/attention_cuda_args.cuh"
#include "kernels/core/cuda_check.h"

namespace k25::kernels {
namespace {

using Args = CudaAttentionArgs<float>;

constexpr int kTile = kFp32Tile, kThreads = 256, kSlice = 32;
constexpr int kStride = kTile + 4;  // keeps rows on 16-byte borders and spreads banks

struct Shared {
  float p[kTile][kStride];  // transposed scores
  union {
    float x[kTile][kStride];           // rows of the operand they weigh
    float slices[2][kSlice][kStride];  // of the two operands of scores
  };
};

enum class Pairs {
  kAll,
  kEarlier,  ///< row r takes k <= r
  kLater,    ///< row r takes k >= r
};

/// acc(4 ty + i, 4 tx + j) += sum_k a[k][..] b[k][..].
template <Pairs kPairs, int kSteps>
__device__ void multiply(float (&acc)[4][4], const float (*a)[kStride], const float (*b)[kStride],
                         int ty, int tx) {
#pragma unroll 4
  for (int k = 0; k < kSteps; ++k) {
    const float4 left = *reinterpret_cast<const float4*>(&a[k][4 * ty]);
    const float4 right = *reinterpret_cast<const float4*>(&b[k][4 * tx]);
    const float l[4] = {left.x, left.y, left.z, left.w};
    const float r[4] = {right.x, right.y, right.z, right.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (kPairs == Pairs::kEarlier && k > 4 * ty + i) continue;
      if (kPairs == Pairs::kLater && k < 4 * ty + i) continue;
#pragma unroll
      for (int j = 0; j < 4; ++j) acc[i][j] = fmaf(l[i], r[j], acc[i][j]);
    }
  }
}

/// The document's rows of one head, [length, head_dim].
struct Rows {
  const float* data;
  std::int64_t stride;
  int length, dim;

  __device__ float at(int row, int column) const {
    return row < length && column < dim ? data[row * stride + column] : 0.f;
  }
};
__device__ Rows rows_of(const Args& x, const CudaHeads<const float>& view, std::int64_t b, int head,
                        const DocTile& doc) {
  return {view.head(b, head) + doc.begin * view.token_stride, view.token_stride, doc.length,
          x.head_dim};
}

/// to[e][r] = rows(row0 + r, column0 + e).
__device__ void load_transposed(float (*to)[kStride], const Rows& rows, int row0, int column0) {
  for (int i = threadIdx.x; i < kTile * kSlice; i += kThreads) {
    to[i % kSlice][i / kSlice] = rows.at(row0 + i / kSlice, column0 + i % kSlice);
  }
}

/// to[r][e] = rows(row0 + r, column0 + e), 64 columns.
__device__ void load_natural(float (*to)[kStride], const Rows& rows, int row0, int column0) {
  for (int i = threadIdx.x; i < kTile * kTile; i += kThreads) {
    to[i / kTile][i % kTile] = rows.at(row0 + i / kTile, column0 + i % kTile);
  }
}

/// s = a(row0 + .., :) b(column0 + .., :)^T. Starts and ends with a barrier.
__device__ void scores(float (&s)[4][4], Shared& shared, const Rows& a, int row0, const Rows& b,
                       int column0, int ty, int tx) {
#pragma unroll
  for (int i = 0; i < 16; ++i) s[i / 4][i % 4] = 0.f;
  for (int e = 0; e < a.dim; e += kSlice) {
    __syncthreads();
    load_transposed(shared.slices[0], a, row0, e);
    load_transposed(shared.slices[1], b, column0, e);
    __syncthreads();
    multiply<Pairs::kAll, kSlice>(s, shared.slices[0], shared.slices[1], ty, tx);
  }
  __syncthreads();
}

__device__ void store_transposed(float (*to)[kStride], const float (&s)[4][4], int ty, int tx) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    *reinterpret_cast<float4*>(&to[4 * tx + j][4 * ty]) =
        make_float4(s[0][j], s[1][j], s[2][j], s[3][j]);
  }
}

/// acc[c] += p^T rows(row0 + .., 64 c + ..), p as store_transposed left it in shared.p. Starts with
/// a barrier.
template <int kColumns>
__device__ void add_weighted(float (&acc)[kColumns][4][4], Shared& shared, const Rows& rows,
                             int row0, Pairs pairs, int ty, int tx) {
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    if (c * kTile >= rows.dim) break;
    __syncthreads();
    load_natural(shared.x, rows, row0, c * kTile);
    __syncthreads();
    if (pairs == Pairs::kAll) {
      multiply<Pairs::kAll, kTile>(acc[c], shared.p, shared.x, ty, tx);
    } else if (pairs == Pairs::kEarlier) {
      multiply<Pairs::kEarlier, kTile>(acc[c], shared.p, shared.x, ty, tx);
    } else {
      multiply<Pairs::kLater, kTile>(acc[c], shared.p, shared.x, ty, tx);
    }
  }
}

/// Accumulators times row_factor(i) into rows row0 + .. of the document.
template <int kColumns, class Factor>
__device__ void store(const float (&acc)[kColumns][4][4], const Args& x,
                      const CudaHeads<float>& view, std::int64_t b, int head, const DocTile& doc,
                      int ty, int tx, const Factor& row_factor) {
  float* const rows = view.head(b, head) + doc.begin * view.token_stride;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = doc.first + 4 * ty + i;
    if (row >= doc.length) break;
    const float f = row_factor(i);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int e = c * kTile + 4 * tx + j;
        if (e < x.head_dim) rows[row * view.token_stride + e] = acc[c][i][j] * f;
      }
    }
  }
}

template <int kColumns>
__device__ void clear(float (&acc)[kColumns][4][4]) {
#pragma unroll
  for (int i = 0; i < kColumns * 16; ++i) acc[i / 16][i / 4 % 4][i % 4] = 0.f;
}

/// Over the 16 threads that share rows.
template <class Join>
__device__ float across_row(float value, const Join& join) {
#pragma unroll
  for (int d = 1; d < 16; d *= 2) value = join(value, __shfl_xor_sync(0xffffffffu, value, d));
  return value;
}

struct RowSoftmax {
  float max[4], sum[4];
};

/// Scores (scaled) of one key tile to probabilities under the new maximum; rescales.
template <int kColumns>
__device__ void softmax_step(float (&s)[4][4], RowSoftmax& row, float (&out)[kColumns][4][4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float top =
        fmaxf(row.max[i], across_row(fmaxf(fmaxf(s[i][0], s[i][1]), fmaxf(s[i][2], s[i][3])),
                                     [](float a, float b) { return fmaxf(a, b); }));
    const float shrink = expf(row.max[i] - top);
    float total = 0.f;
#pragma unroll
    for (int j = 0; j < 4; ++j) total += s[i][j] = expf(s[i][j] - top);
    row.max[i] = top;
    row.sum[i] = fmaf(row.sum[i], shrink, total);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
#pragma unroll
      for (int j = 0; j < 4; ++j) out[c][i][j] *= shrink;
    }
  }
}

template <int kColumns>
__device__ void forward_tile(const Args& x, std::int64_t b, int h, const DocTile& doc,
                             Shared& shared, int ty, int tx) {
  const int kv_head = h / (x.heads / x.kv_heads);
  const Rows q = rows_of(x, x.q, b, h, doc), k = rows_of(x, x.k, b, kv_head, doc);
  const Rows v = rows_of(x, x.v, b, kv_head, doc);
  float out[kColumns][4][4];
  clear(out);
  const float low = __int_as_float(0xff800000);
  RowSoftmax row{{low, low, low, low}, {0.f, 0.f, 0.f, 0.f}};
  const int key_end = x.causal ? min(doc.length, doc.first + kTile) : doc.length;
  for (int key0 = 0; key0 < key_end; key0 += kTile) {
    float s[4][4];
    scores(s, shared, q, doc.first, k, key0, ty, tx);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int query = doc.first + 4 * ty + i / 4, key = key0 + 4 * tx + i % 4;
      const bool hidden = key >= doc.length || (x.causal && key > query);
      s[i / 4][i % 4] = hidden ? low : s[i / 4][i % 4] * x.scale;
    }
    softmax_step(s, row, out);
    store_transposed(shared.p, s, ty, tx);
    const bool diagonal = x.causal && key0 == doc.first;
    add_weighted(out, shared, v, key0, diagonal ? Pairs::kEarlier : Pairs::kAll, ty, tx);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int query = doc.first + 4 * ty + i;
    row.sum[i] = across_row(row.sum[i], [](float a, float c) { return a + c; });
    if (tx == 0 && query < doc.length) {
      x.lse_row(b, h)[doc.begin + query] = row.max[i] + logf(row.sum[i]);
    }
  }
  store(out, x, x.out, b, h, doc, ty, tx, [&](int i) { return 1.f / row.sum[i]; });
}

/// P and dS of queries query0 .. and keys key0 .., rows being queries or keys. lse and delta of the
/// document's first token.
struct Pair {
  int query0, key0;
  const float *lse, *delta;

  /// s and dp to p and ds.
  template <bool kRowsAreQueries>
  __device__ void gradients(const Args& x, const DocTile& doc, float (&s)[4][4], float (&dp)[4][4],
                            int ty, int tx) const {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int row = 4 * ty + i / 4, column = 4 * tx + i % 4;
      const int query = query0 + (kRowsAreQueries ? row : column);
      const int key = key0 + (kRowsAreQueries ? column : row);
      const bool hidden = query >= doc.length || key >= doc.length || (x.causal && key > query);
      float p = 0.f, ds = 0.f;
      if (!hidden) {
        // NOTE: no fma: the product must be rounded like the score that lse was formed from.
        p = expf(s[i / 4][i % 4] * x.scale - lse[query]);
        ds = p * (dp[i / 4][i % 4] - delta[query]);
      }
      s[i / 4][i % 4] = p;
      dp[i / 4][i % 4] = ds;
    }
  }
};

template <int kColumns>
__device__ void key_tile(const Args& x, std::int64_t b, int kv_head, const DocTile& doc,
                         Shared& shared, int ty, int tx) {
  const int group = x.heads / x.kv_heads;
  const Rows k = rows_of(x, x.k, b, kv_head, doc), v = rows_of(x, x.v, b, kv_head, doc);
  float dk[kColumns][4][4], dv[kColumns][4][4];
  clear(dk);
  clear(dv);
  for (int h = kv_head * group; h < (kv_head + 1) * group; ++h) {
    const Rows q = rows_of(x, x.q, b, h, doc), dout = rows_of(x, x.dout, b, h, doc);
    for (int query0 = x.causal ? doc.first : 0; query0 < doc.length; query0 += kTile) {
      float s[4][4], dp[4][4];
      scores(s, shared, k, doc.first, q, query0, ty, tx);
      scores(dp, shared, v, doc.first, dout, query0, ty, tx);
      const Pair pair{query0, doc.first, x.lse_row(b, h) + doc.begin,
                      x.delta_row(b, h) + doc.begin};
      pair.gradients<false>(x, doc, s, dp, ty, tx);
      const Pairs pairs = x.causal && query0 == doc.first ? Pairs::kLater : Pairs::kAll;
      store_transposed(shared.p, s, ty, tx);
      add_weighted(dv, shared, dout, query0, pairs, ty, tx);
      __syncthreads();
      store_transposed(shared.p, dp, ty, tx);
      add_weighted(dk, shared, q, query0, pairs, ty, tx);
    }
  }
  store(dk, x, x.dk, b, kv_head, doc, ty, tx, [&](int) { return x.scale; });
  store(dv, x, x.dv, b, kv_head, doc, ty, tx, [](int) { return 1.f; });
}

template <int kColumns>
__device__ void query_tile(const Args& x, std::int64_t b, int h, const DocTile& doc, Shared& shared,
                           int ty, int tx) {
  const int kv_head = h / (x.heads / x.kv_heads);
  const Rows q = rows_of(x, x.q, b, h, doc), dout = rows_of(x, x.dout, b, h, doc);
  const Rows k = rows_of(x, x.k, b, kv_head, doc), v = rows_of(x, x.v, b, kv_head, doc);
  float dq[kColumns][4][4];
  clear(dq);
  const int key_end = x.causal ? min(doc.length, doc.first + kTile) : doc.length;
  for (int key0 = 0; key0 < key_end; key0 += kTile) {
    float s[4][4], dp[4][4];
    scores(s, shared, q, doc.first, k, key0, ty, tx);
    scores(dp, shared, dout, doc.first, v, key0, ty, tx);
    const Pair pair{doc.first, key0, x.lse_row(b, h) + doc.begin, x.delta_row(b, h) + doc.begin};
    pair.gradients<true>(x, doc, s, dp, ty, tx);
    store_transposed(shared.p, dp, ty, tx);
    const bool diagonal = x.causal && key0 == doc.first;
    add_weighted(dq, shared, k, key0, diagonal ? Pairs::kEarlier : Pairs::kAll, ty, tx);
  }
  store(dq, x, x.dq, b, h, doc, ty, tx, [&](int) { return x.scale; });
}

enum class Part { kForward, kKeys, kQueries };

/// Where document borders contradict each other.
template <Part kPart>
__device__ void refuse(const Args& x, std::int64_t b, int head, int slot) {
  const std::int64_t first = std::int64_t{slot} * kTile;
  if constexpr (kPart == Part::kForward) {
    fill_nan(x, x.out, b, head, first, kTile);
    for (std::int64_t t = first + threadIdx.x; t < min(first + kTile, std::int64_t{x.tokens});
         t += kThreads) {
      x.lse_row(b, head)[t] = __int_as_float(0x7fc00000);
    }
  } else if constexpr (kPart == Part::kKeys) {
    fill_nan(x, x.dk, b, head, first, kTile);
    fill_nan(x, x.dv, b, head, first, kTile);
  } else {
    fill_nan(x, x.dq, b, head, first, kTile);
  }
}

template <Part kPart, int kColumns>
__global__ void __launch_bounds__(kThreads)
    attention_fp32(const __grid_constant__ Args x, int heads, int slots) {
  __shared__ Shared shared;
  const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
  const std::int64_t unit = blockIdx.x / slots, b = unit / heads;
  const int head = static_cast<int>(unit % heads), place = static_cast<int>(blockIdx.x % slots);
  const int slot = kPart == Part::kKeys ? place : slots - 1 - place;  // most work first
  const int count = tile_count(x.tiles, b, slots);
  if (count == kBadDocuments) refuse<kPart>(x, b, head, slot);
  for (int i = slot; i < count; i += slots) {
    const DocTile doc = doc_tile(x, b, i, kTile);
    if constexpr (kPart == Part::kForward) {
      forward_tile<kColumns>(x, b, head, doc, shared, ty, tx);
    } else if constexpr (kPart == Part::kKeys) {
      key_tile<kColumns>(x, b, head, doc, shared, ty, tx);
    } else {
      query_tile<kColumns>(x, b, head, doc, shared, ty, tx);
    }
  }
}

template <Part kPart>
void launch(const Args& x, int heads, cudaStream_t stream) {
  const int slots = static_cast<int>(attention_slots(x.tokens, kTile));
  const auto blocks = static_cast<unsigned>(std::int64_t{slots} * x.batch * heads);
  if (x.head_dim <= 64) {
    attention_fp32<kPart, 1><<<blocks, kThreads, 0, stream>>>(x, heads, slots);
  } else if (x.head_dim <= 128) {
    attention_fp32<kPart, 2><<<blocks, kThreads, 0, stream>>>(x, heads, slots);
  } else {
    attention_fp32<kPart, 4><<<blocks, kThreads, 0, stream>>>(x, heads, slots);
  }
  K25_CUDA_CHECK_LAUNCH();
}

}  // namespace

void launch_forward(const Args& x, cudaStream_t stream) {
  launch<Part::kForward>(x, x.heads, stream);
}
void launch_key_gradients(const Args& x, cudaStream_t stream) {
  launch<Part::kKeys>(x, x.kv_heads, stream);
}
void launch_query_gradient(const Args& x, cudaStream_t stream) {
  launch<Part::kQueries>(x, x.heads, stream);
}

}  // namespace k25::kernels
