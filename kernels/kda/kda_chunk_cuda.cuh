#pragma once
// Private to kda's CUDA sources: one chunk up to its corrections u, by a block. The factors are
// those of kda_chunk_cpu.h, which says why; a chunk that is not full is filled up with tokens of
// zeros, which change nothing.

#include "kernels/kda/kda_cuda.h"
#include "kernels/kda/kda_products_cuda.cuh"
#include "kernels/kda/kda_views_cuda.cuh"
#include "kernels/sequences/sequence_view_cuda.cuh"

namespace k25::kernels::kda_cuda {

/// The tokens [t, t + n) of row b for value head m, its value columns from `col` on.
struct Span {
  std::int64_t b, t;
  int n;
  std::int64_t m;
  int col;
};

/// Hands out pieces of the scratch; all sizes are multiples of 4 floats.
struct Bump {
  float* next;
  __device__ __forceinline__ float* take(int floats) {
    float* const piece = next;
    next += floats;
    return piece;
  }
};

enum class Keeps : std::uint8_t { kForward, kBackward };  ///< what a Chunk holds

/// Scratch of a chunk with V value columns.
template <int K, int V>
struct Chunk {
  int n;
  float *q, *k, *a;            ///< [C, K]; q is scaled; a = exp g
  float *pre, *suf;            ///< [C, K]; backward
  float *kpre, *qpre, *ksuf;   ///< [C, K]: times k and q
  float *delta, *r;            ///< [C, V]: v, then v - R^T k; u
  float *p, *system_T;         ///< [C, C]: q with k; -beta times k with k, transposed
  float *scores, *system;      ///< [C, C]; backward: k with k; system
  float *total, *head, *tail;  ///< exp of sums over sub-chunks: of one, all before, all after
  float* beta;                 ///< [C]

  __device__ __forceinline__ Chunk(Keeps keeps, Bump& bump) : n(0) {
    const bool back = keeps == Keeps::kBackward;
    q = bump.take(kRows * K);
    k = bump.take(kRows * K);
    a = bump.take(kRows * K);
    kpre = bump.take(kRows * K);
    qpre = bump.take(kRows * K);
    ksuf = bump.take(kRows * K);
    pre = back ? bump.take(kRows * K) : nullptr;
    suf = back ? bump.take(kRows * K) : nullptr;
    delta = bump.take(kRows * V);
    r = bump.take(kRows * V);
    p = bump.take(kRows * kRows);
    system_T = bump.take(kRows * kRows);
    scores = back ? bump.take(kRows * kRows) : nullptr;
    system = back ? bump.take(kRows * kRows) : nullptr;
    total = bump.take(kSubs * K);
    head = bump.take((kSubs + 1) * K);
    tail = bump.take(kSubs * K);
    beta = bump.take(kRows);
  }
  __device__ __forceinline__ const float* whole() const { return head + kSubs * K; }
  // k and q times the decay from the chunk's start; k times that to its end.
  __device__ __forceinline__ float k_start(int i, int d) const {
    return kpre[i * K + d] * head[i / kSub * K + d];
  }
  __device__ __forceinline__ float q_start(int i, int d) const {
    return qpre[i * K + d] * head[i / kSub * K + d];
  }
  __device__ __forceinline__ float k_end(int i, int d) const {
    return ksuf[i * K + d] * tail[i / kSub * K + d];
  }
  /// Decay of the whole sub-chunks between `early` and `late`.
  __device__ __forceinline__ float between(int early, int late, int d) const {
    float by = 1.f;
    for (int sub = early + 1; sub < late; ++sub) by *= total[sub * K + d];
    return by;
  }
};

/// rows [n, kCols] of `x` times factor to [64, kCols], zeros after them.
template <int kCols, class T>
__device__ __forceinline__ void load_rows(const T* x, std::int64_t stride, int n, float factor,
                                          float* to) {
  for_elements<kCols>(kRows, [&](int i, int c) {
    to[i * kCols + c] = i < n ? to_float(x[i * stride + c]) * factor : 0.f;
  });
}

/// q, k, g (in a), v (in delta) and beta. Ends with a barrier.
template <class T, int K, int V>
__device__ __forceinline__ void load_chunk(const KdaArgs<T, float>& x, const Span& at,
                                           Chunk<K, V>& c) {
  const std::int64_t h = at.m / x.sizes.group;
  c.n = at.n;
  load_rows<K>(head_row(x.q, at.b, at.t, h), x.q.token_stride, at.n, x.scale, c.q);
  load_rows<K>(head_row(x.k, at.b, at.t, h), x.k.token_stride, at.n, 1.f, c.k);
  load_rows<K>(head_row(x.g, at.b, at.t, at.m), x.g.token_stride, at.n, 1.f, c.a);
  load_rows<V>(head_row(x.v, at.b, at.t, at.m) + at.col, x.v.token_stride, at.n, 1.f, c.delta);
  for (int i = static_cast<int>(threadIdx.x); i < kRows; i += kThreads) {
    c.beta[i] = i < at.n ? *head_row(x.beta, at.b, at.t + i, at.m) : 0.f;
  }
  __syncthreads();
}

/// Everything that g decides; it becomes a. Ends with a barrier.
template <int K, int V>
__device__ __forceinline__ void chunk_decays(Chunk<K, V>& c) {
  for_elements<K, 1>(kSubs, [&](int sub, int d) {
    const int first = sub * kSub * K + d;
    float sum = 0.f;
#pragma unroll 4
    for (int i = kSub - 1; i >= 0; --i) {
      const int at = first + i * K;
      const float by = expf(sum);
      if (c.suf != nullptr) c.suf[at] = by;
      c.ksuf[at] = c.k[at] * by;
      sum += c.a[at];
    }
    sum = 0.f;
#pragma unroll 4
    for (int i = 0; i < kSub; ++i) {
      const int at = first + i * K;
      const float g = c.a[at];
      sum += g;
      const float by = expf(sum);
      if (c.pre != nullptr) c.pre[at] = by;
      c.kpre[at] = c.k[at] * by;
      c.qpre[at] = c.q[at] * by;
      c.a[at] = expf(g);
    }
    c.total[sub * K + d] = sum;
  });
  __syncthreads();
  for (int d = static_cast<int>(threadIdx.x); d < K; d += kThreads) {
    float sum = 0.f;
    c.head[d] = 1.f;
#pragma unroll
    for (int sub = 0; sub < kSubs; ++sub) {
      sum += c.total[sub * K + d];
      c.head[(sub + 1) * K + d] = expf(sum);
    }
    sum = 0.f;
#pragma unroll
    for (int sub = kSubs - 1; sub >= 0; --sub) {
      c.tail[sub * K + d] = expf(sum);
      sum += c.total[sub * K + d];
    }
#pragma unroll
    for (int sub = 0; sub < kSubs; ++sub) c.total[sub * K + d] = expf(c.total[sub * K + d]);
  }
  __syncthreads();
}

/// Scores of token i with j, where they are kept.
template <int K, int V>
__device__ __forceinline__ void put_scores(Chunk<K, V>& c, int i, int j, float key, float query) {
  c.p[i * kRows + j] = query;
  if (i == j) return;
  const float entry = -(c.beta[i] * key);
  c.system_T[j * kRows + i] = entry;
  if (c.scores == nullptr) return;
  c.scores[i * kRows + j] = key;
  c.system[i * kRows + j] = entry;
}

/// Pairs within sub-chunks: a warp follows the decay from one early token. No barrier.
template <int K, int V>
__device__ __forceinline__ void near_scores(Chunk<K, V>& c) {
  constexpr int kPer = K / cuda::kWarp;
  const int lane = static_cast<int>(threadIdx.x) % cuda::kWarp;
  for (int j = static_cast<int>(threadIdx.x) / cuda::kWarp; j < c.n; j += kWarps) {
    float early[kPer], decay[kPer];
    float query = 0.f;
#pragma unroll
    for (int e = 0; e < kPer; ++e) {
      const int at = j * K + lane + e * cuda::kWarp;
      early[e] = c.k[at];
      decay[e] = 1.f;
      query = fmaf(c.q[at], early[e], query);
    }
    query = cuda::warp_reduce<cuda::Add>(query);
    if (lane == 0) put_scores(c, j, j, 0.f, query);
    const int end = min(c.n, (j / kSub + 1) * kSub);
    for (int i = j + 1; i < end; ++i) {
      float key = 0.f;
      query = 0.f;
#pragma unroll
      for (int e = 0; e < kPer; ++e) {
        const int at = i * K + lane + e * cuda::kWarp;
        decay[e] *= c.a[at];
        const float w = early[e] * decay[e];
        key = fmaf(c.k[at], w, key);
        query = fmaf(c.q[at], w, query);
      }
      key = cuda::warp_reduce<cuda::Add>(key);
      query = cuda::warp_reduce<cuda::Add>(query);
      if (lane == 0) put_scores(c, i, j, key, query);
    }
  }
}

/// Pairs of different sub-chunks; begins and ends with a barrier. A thread has row tid / 16 of the
/// later sub-chunk and columns tid % 16 of the earlier ones.
template <int K, int V>
__device__ __forceinline__ void far_scores(Chunk<K, V>& c, float* shared) {
  constexpr int kDepth = 32, kPitch = kDepth + 1;
  float* const late_k = shared;
  float* const late_q = late_k + kSub * kPitch;
  float* const early = late_q + kSub * kPitch;  // up to 48 rows
  const int row = static_cast<int>(threadIdx.x) / kSub, col = static_cast<int>(threadIdx.x) % kSub;
#pragma unroll 1
  for (int late = 1; late < kSubs; ++late) {
    float key[kSubs - 1] = {}, query[kSubs - 1] = {};
#pragma unroll 1
    for (int first = 0; first < K; first += kDepth) {
      __syncthreads();
      for_elements<kDepth>(kSub, [&](int i, int d) {
        const int from = (late * kSub + i) * K + first + d;
        late_k[i * kPitch + d] = c.kpre[from];
        late_q[i * kPitch + d] = c.qpre[from];
      });
      for_elements<kDepth>(late * kSub, [&](int j, int d) {
        early[j * kPitch + d] = c.ksuf[j * K + first + d] * c.between(j / kSub, late, first + d);
      });
      __syncthreads();
#pragma unroll 4
      for (int d = 0; d < kDepth; ++d) {
        const float k = late_k[row * kPitch + d], q = late_q[row * kPitch + d];
#pragma unroll
        for (int sub = 0; sub < kSubs - 1; ++sub) {
          if (sub >= late) break;
          const float w = early[(sub * kSub + col) * kPitch + d];
          key[sub] = fmaf(k, w, key[sub]);
          query[sub] = fmaf(q, w, query[sub]);
        }
      }
    }
#pragma unroll
    for (int sub = 0; sub < kSubs - 1; ++sub) {
      if (sub < late) put_scores(c, late * kSub + row, sub * kSub + col, key[sub], query[sub]);
    }
  }
  __syncthreads();
}

inline constexpr int kFarShared = (2 * kSub + 3 * kSub) * 33;  ///< floats that far_scores takes
inline constexpr int kSharedFloats = kFarShared > Tile::kShared ? kFarShared : Tile::kShared;

/// x [C, V] becomes (I + L)^-1 x by substitution, a thread to a column. No barrier.
template <int V>
__device__ __forceinline__ void solve_lower(const float* system_T, float* x) {
  for (int e = static_cast<int>(threadIdx.x); e < V; e += kThreads) {
#pragma unroll 1
    for (int first = 0; first < kRows; first += kSub) {
      float own[kSub];
#pragma unroll
      for (int i = 0; i < kSub; ++i) own[i] = x[(first + i) * V + e];
#pragma unroll 1
      for (int j = 0; j < first; ++j) {
        const float by = x[j * V + e];
        const auto column = cuda::load_aligned<float, kSub>(system_T + j * kRows + first);
#pragma unroll
        for (int i = 0; i < kSub; ++i) own[i] = fmaf(column.get(i), by, own[i]);
      }
#pragma unroll
      for (int j = 0; j < kSub - 1; ++j) {
#pragma unroll
        for (int i = j + 1; i < kSub; ++i) {
          own[i] = fmaf(system_T[(first + j) * kRows + first + i], own[j], own[i]);
        }
        __syncwarp();  // or all coefficients would be loaded at once, into registers
      }
#pragma unroll
      for (int i = 0; i < kSub; ++i) x[(first + i) * V + e] = own[i];
    }
  }
}

/// Up to the corrections u (in r), for the chunk that enters with `state` [K, V]. Ends with a
/// barrier.
template <class T, int K, int V>
__device__ __forceinline__ void solve_chunk(const KdaArgs<T, float>& x, const Span& at,
                                            const float* state, Chunk<K, V>& c, float* shared) {
  load_chunk(x, at, c);
  // What no pair fills, of the tokens that are not there.
  for_elements<kRows>(kRows, [&](int i, int j) {
    if (j < c.n && i < c.n) return;
    c.p[i * kRows + j] = c.system_T[i * kRows + j] = 0.f;
    if (c.scores != nullptr) c.scores[i * kRows + j] = c.system[i * kRows + j] = 0.f;
  });
  chunk_decays(c);
  near_scores(c);
  far_scores(c, shared);
#pragma unroll 1
  for (int col = 0; col < V; col += kRows) {
    Tile tile;
    tile.clear();
    tile.add_product<Lies::kDeep, Lies::kWide>(
        K, [&](int i, int d) { return c.k_start(i, d); },
        [&](int d, int e) { return state[d * V + col + e]; }, shared);
    tile.for_each([&](int i, int e, float seen) {
      const int to = i * V + col + e;
      const float delta = c.delta[to] - seen;
      c.delta[to] = delta;
      c.r[to] = c.beta[i] * delta;
    });
  }
  __syncthreads();
  solve_lower<V>(c.system_T, c.r);
  __syncthreads();
}

/// state [K, V] after the chunk. Ends with a barrier.
template <int K, int V>
__device__ __forceinline__ void advance_state(const Chunk<K, V>& c, float* state, float* shared) {
  const float* const whole = c.whole();
#pragma unroll 1
  for (int tile_of = 0; tile_of < K / kRows * (V / kRows); ++tile_of) {
    const int row = tile_of / (V / kRows) * kRows, col = tile_of % (V / kRows) * kRows;
    Tile tile;
    tile.clear();
    tile.add_product<Lies::kWide, Lies::kWide>(
        kRows, [&](int d, int i) { return c.k_end(i, row + d); },
        [&](int i, int e) { return c.r[i * V + col + e]; }, shared);
    tile.for_each([&](int d, int e, float sum) {
      float& s = state[(row + d) * V + col + e];
      s = fmaf(whole[row + d], s, sum);
    });
  }
  __syncthreads();
}

}  // namespace k25::kernels::kda_cuda
