#pragma once
// Private to kda's CUDA sources: one chunk backward by a block. The formulas and names are those of
// kda_chunk_backward_cpu.h.

#include "kernels/kda/kda_walk_cuda.cuh"

namespace k25::kernels::kda_cuda {

template <int K, int V>
struct Gradients {
  // [C, K]
  float *dq_state, *dk_state, *dk_next;  ///< from S: of q Gam, k Gam; from S': of kg
  float *dq_pairs, *dk_late, *dk_early;  ///< k as the later, the earlier token
  float *dq, *dk;                        ///< sums over the group's value heads
  float* dsum;                           ///< with respect to G
  float *dout, *dx, *dr;                 ///< [C, V]; dr is -beta dX
  float *dp, *dl;                        ///< [C, C]
  float* last;                           ///< [K]

  __device__ __forceinline__ explicit Gradients(Bump& bump) {
    dq_state = bump.take(kRows * K);
    dk_state = bump.take(kRows * K);
    dk_next = bump.take(kRows * K);
    dq_pairs = bump.take(kRows * K);
    dk_late = bump.take(kRows * K);
    dk_early = bump.take(kRows * K);
    dq = bump.take(kRows * K);
    dk = bump.take(kRows * K);
    dsum = bump.take(kRows * K);
    dout = bump.take(kRows * V);
    dx = bump.take(kRows * V);
    dr = bump.take(kRows * V);
    dp = bump.take(kRows * kRows);
    dl = bump.take(kRows * kRows);
    last = bump.take(K);
  }
};

/// y [C, V] becomes (I + L)^-T y by substitution, a thread to a column. No barrier.
template <int V>
__device__ __forceinline__ void solve_upper(const float* system, float* y) {
  for (int e = static_cast<int>(threadIdx.x); e < V; e += kThreads) {
#pragma unroll 1
    for (int first = kRows - kSub; first >= 0; first -= kSub) {
      float own[kSub];
#pragma unroll
      for (int i = 0; i < kSub; ++i) own[i] = y[(first + i) * V + e];
#pragma unroll 1
      for (int j = first + kSub; j < kRows; ++j) {
        const float by = y[j * V + e];
        const auto row = cuda::load_aligned<float, kSub>(system + j * kRows + first);
#pragma unroll
        for (int i = 0; i < kSub; ++i) own[i] = fmaf(row.get(i), by, own[i]);
      }
#pragma unroll
      for (int j = kSub - 1; j > 0; --j) {
#pragma unroll
        for (int i = 0; i < j; ++i) {
          own[i] = fmaf(system[(first + j) * kRows + first + i], own[j], own[i]);
        }
        __syncwarp();  // or all coefficients would be loaded at once, into registers
      }
#pragma unroll
      for (int i = 0; i < kSub; ++i) y[(first + i) * V + e] = own[i];
    }
  }
}

/// to [C, C] = factor x y^T below the diagonal, on it where `self`, zero above. No barrier at the
/// end.
template <int V>
__device__ __forceinline__ void pair_products(const float* x, const float* y, float factor,
                                              int self, float* to, float* shared) {
  Tile tile;
  tile.clear();
  tile.add_product<Lies::kDeep, Lies::kDeep>(
      V, [&](int i, int e) { return x[i * V + e]; }, [&](int e, int j) { return y[j * V + e]; },
      shared);
  tile.for_each(
      [&](int i, int j, float sum) { to[i * kRows + j] = j < i + self ? factor * sum : 0.f; });
}

/// dp, dl (without beta), dx and dr from dout and dstate; stores dv. Ends with a barrier.
template <class T, int K, int V>
__device__ __forceinline__ void system_gradients(const KdaArgs<T, float>& x, const Span& at,
                                                 const Chunk<K, V>& c, const float* dstate,
                                                 Gradients<K, V>& d, float* shared) {
  pair_products<V>(d.dout, c.r, 1.f, 1, d.dp, shared);
#pragma unroll 1
  for (int col = 0; col < V; col += kRows) {
    Tile tile;
    tile.clear();
    tile.add_product<Lies::kDeep, Lies::kWide>(
        K, [&](int i, int k) { return c.k_end(i, k); },
        [&](int k, int e) { return dstate[k * V + col + e]; }, shared);
    tile.add_product<Lies::kWide, Lies::kWide, Terms::kFrom>(
        kRows, [&](int j, int i) { return c.p[i * kRows + j]; },
        [&](int i, int e) { return d.dout[i * V + col + e]; }, shared);
    tile.for_each([&](int i, int e, float sum) { d.dx[i * V + col + e] = sum; });
  }
  __syncthreads();
  solve_upper<V>(c.system, d.dx);
  __syncthreads();
  pair_products<V>(d.dx, c.r, -1.f, 0, d.dl, shared);
  T* const dv = head_row(x.dv, at.b, at.t, at.m);
  for_elements<V>(kRows, [&](int i, int e) {
    const float by = c.beta[i] * d.dx[i * V + e];
    d.dr[i * V + e] = -by;
    if (i < at.n) store_float(dv + i * x.dv.token_stride + e, by);
  });
  __syncthreads();
}

/// to [C, K] = x [C, V] state^T. No barrier at the end.
template <int K, int V>
__device__ __forceinline__ void times_state(const float* x, const float* state, float* to,
                                            float* shared) {
#pragma unroll 1
  for (int col = 0; col < K; col += kRows) {
    Tile tile;
    tile.clear();
    tile.add_product<Lies::kDeep, Lies::kDeep>(
        V, [&](int i, int e) { return x[i * V + e]; },
        [&](int e, int k) { return state[(col + k) * V + e]; }, shared);
    tile.for_each([&](int i, int k, float sum) { to[i * K + col + k] = sum; });
  }
}

/// What reaches q, k and the state through the products with the state; dstate becomes that of
/// `state`. Ends with a barrier.
template <int K, int V>
__device__ __forceinline__ void state_gradients(const Chunk<K, V>& c, const float* state,
                                                float* dstate, Gradients<K, V>& d, float* shared) {
  times_state<K, V>(d.dout, state, d.dq_state, shared);
  times_state<K, V>(d.dr, state, d.dk_state, shared);
  times_state<K, V>(c.r, dstate, d.dk_next, shared);
  const float* const whole = c.whole();
  const int lane = static_cast<int>(threadIdx.x) % cuda::kWarp;
  for (int k = static_cast<int>(threadIdx.x) / cuda::kWarp; k < K; k += kWarps) {
    float sum = 0.f;
#pragma unroll
    for (int e = 0; e < V; e += cuda::kWarp) {
      sum = fmaf(state[k * V + e + lane], dstate[k * V + e + lane], sum);
    }
    sum = cuda::warp_reduce<cuda::Add>(sum);
    if (lane == 0) d.last[k] = whole[k] * sum;
  }
#pragma unroll 1
  for (int tile_of = 0; tile_of < K / kRows * (V / kRows); ++tile_of) {
    const int row = tile_of / (V / kRows) * kRows, col = tile_of % (V / kRows) * kRows;
    Tile tile;
    tile.clear();
    tile.add_product<Lies::kWide, Lies::kWide>(
        kRows, [&](int k, int i) { return c.q_start(i, row + k); },
        [&](int i, int e) { return d.dout[i * V + col + e]; }, shared);
    tile.add_product<Lies::kWide, Lies::kWide>(
        kRows, [&](int k, int i) { return c.k_start(i, row + k); },
        [&](int i, int e) { return d.dr[i * V + col + e]; }, shared);
    tile.for_each([&](int k, int e, float sum) {
      float& s = dstate[(row + k) * V + col + e];
      s = fmaf(whole[row + k], s, sum);
    });
  }
  __syncthreads();
}

/// dbeta, and dl times beta: a warp to a row. Ends with a barrier.
template <class T, int K, int V>
__device__ __forceinline__ void beta_gradients(const KdaArgs<T, float>& x, const Span& at,
                                               const Chunk<K, V>& c, Gradients<K, V>& d) {
  const int lane = static_cast<int>(threadIdx.x) % cuda::kWarp;
  for (int i = static_cast<int>(threadIdx.x) / cuda::kWarp; i < kRows; i += kWarps) {
    float sum = 0.f;
#pragma unroll
    for (int e = 0; e < V; e += cuda::kWarp) {
      sum = fmaf(d.dx[i * V + e + lane], c.delta[i * V + e + lane], sum);
    }
    for (int j = lane; j < i; j += cuda::kWarp) {
      float& dl = d.dl[i * kRows + j];
      sum = fmaf(dl, c.scores[i * kRows + j], sum);
      dl *= c.beta[i];
    }
    sum = cuda::warp_reduce<cuda::Add>(sum);
    if (lane == 0 && i < at.n) *head_row(x.dbeta, at.b, at.t + i, at.m) = sum;
  }
  __syncthreads();
}

/// Pairs of different sub-chunks, for the rows of one sub-chunk as later and as earlier tokens: a
/// thread has a channel and kOwn of the rows. Sets dq_pairs, dk_late and dk_early. No barrier.
template <int K, int V>
__device__ __forceinline__ void far_gradients(const Chunk<K, V>& c, Gradients<K, V>& d) {
  constexpr int kOwn = kSub * K / kThreads;
  const int k = static_cast<int>(threadIdx.x) % K;
  const int row = static_cast<int>(threadIdx.x) / K * kOwn;
#pragma unroll 1
  for (int sub = 0; sub < kSubs; ++sub) {
    const int mine = sub * kSub + row;
    float query[kOwn] = {}, late[kOwn] = {}, early[kOwn] = {};
#pragma unroll 1
    for (int j = 0; j < sub * kSub; ++j) {
      const float w = c.ksuf[j * K + k] * c.between(j / kSub, sub, k);
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        query[i] = fmaf(d.dp[(mine + i) * kRows + j], w, query[i]);
        late[i] = fmaf(d.dl[(mine + i) * kRows + j], w, late[i]);
      }
    }
#pragma unroll 1
    for (int i = (sub + 1) * kSub; i < c.n; ++i) {
      const float by = c.between(sub, i / kSub, k);
      const float q = c.qpre[i * K + k] * by, key = c.kpre[i * K + k] * by;
#pragma unroll
      for (int j = 0; j < kOwn; ++j) {
        early[j] = fmaf(d.dp[i * kRows + mine + j], q, early[j]);
        early[j] = fmaf(d.dl[i * kRows + mine + j], key, early[j]);
      }
    }
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int at = (mine + i) * K + k;
      d.dq_pairs[at] = c.pre[at] * query[i];
      d.dk_late[at] = c.pre[at] * late[i];
      d.dk_early[at] = c.suf[at] * early[i];
    }
  }
}

/// Pairs within sub-chunks, but for those of a token with itself: a thread to a channel of a
/// sub-chunk. No barrier.
template <int K, int V>
__device__ __forceinline__ void near_gradients(const Chunk<K, V>& c, Gradients<K, V>& d) {
  for_elements<K, 1>(kSubs, [&](int sub, int k) {
    const int first = sub * kSub;
    float key[kSub], a[kSub], early[kSub] = {};
#pragma unroll
    for (int j = 0; j < kSub; ++j) {
      key[j] = c.k[(first + j) * K + k];
      a[j] = c.a[(first + j) * K + k];
    }
#pragma unroll 1
    for (int i = 1; i < kSub && first + i < c.n; ++i) {
      const int at = (first + i) * K + k;
      const float late_q = c.q[at], late_k = c.k[at];
      const auto dp = cuda::load_aligned<float, kSub>(d.dp + (first + i) * kRows + first);
      const auto dl = cuda::load_aligned<float, kSub>(d.dl + (first + i) * kRows + first);
      float decay = 1.f, query = 0.f, late = 0.f;
#pragma unroll
      for (int j = kSub - 2; j >= 0; --j) {
        if (j >= i) continue;
        decay *= a[j + 1];
        const float w = key[j] * decay;
        query = fmaf(dp.get(j), w, query);
        late = fmaf(dl.get(j), w, late);
        early[j] = fmaf(fmaf(dp.get(j), late_q, dl.get(j) * late_k), decay, early[j]);
      }
      d.dq_pairs[at] += query;
      d.dk_late[at] += late;
    }
#pragma unroll
    for (int j = 0; j < kSub; ++j) d.dk_early[(first + j) * K + k] += early[j];
  });
}

/// dq and dk grow, dg is stored. Begins and ends with a barrier.
template <class T, int K, int V>
__device__ __forceinline__ void token_gradients(const KdaArgs<T, float>& x, const Span& at,
                                                const Chunk<K, V>& c, Gradients<K, V>& d) {
  __syncthreads();
  for_elements<K>(kRows, [&](int i, int k) {
    const int e = i * K + k, sub = i / kSub * K + k;
    const float self = d.dp[i * kRows + i];
    const float gam = c.pre[e] * c.head[sub];
    const float query = fmaf(gam, d.dq_state[e], d.dq_pairs[e]);
    const float forward = fmaf(gam, d.dk_state[e], d.dk_late[e]);
    const float to_end = c.suf[e] * c.tail[sub] * d.dk_next[e];
    const float backward = to_end + d.dk_early[e];
    d.dsum[e] = fmaf(c.q[e], query, c.k[e] * (forward - backward));
    d.dk_next[e] = c.k[e] * to_end;
    // A token with itself meets no decay.
    d.dq[e] += fmaf(self, c.k[e], query);
    d.dk[e] += fmaf(self, c.q[e], forward + backward);
  });
  __syncthreads();
  float* const dg = head_row(x.dg, at.b, at.t, at.m);
  for (int k = static_cast<int>(threadIdx.x); k < K; k += kThreads) {
    float sum = d.last[k];
#pragma unroll 8
    for (int i = 0; i < kRows; ++i) sum += d.dk_next[i * K + k];
#pragma unroll 8
    for (int i = kRows - 1; i >= 0; --i) {
      sum += d.dsum[i * K + k];
      if (i < at.n) dg[i * x.dg.token_stride + k] = sum;
    }
  }
  __syncthreads();
}

/// One chunk for one value head: dstate becomes that of the state before the chunk; dv, dg and
/// dbeta are stored, d.dq and d.dk grow. Ends with a barrier.
template <class T, int K, int V>
__device__ __forceinline__ void backward_chunk(const KdaArgs<T, float>& x, const Span& at,
                                               const float* state, float* dstate, Chunk<K, V>& c,
                                               Gradients<K, V>& d, float* shared) {
  solve_chunk(x, at, state, c, shared);
  load_rows<V>(head_row(x.dout, at.b, at.t, at.m), x.dout.token_stride, at.n, 1.f, d.dout);
  system_gradients(x, at, c, dstate, d, shared);
  state_gradients(c, state, dstate, d, shared);
  beta_gradients(x, at, c, d);
  far_gradients(c, d);
  __syncthreads();
  near_gradients(c, d);
  token_gradients(x, at, c, d);
}

}  // namespace k25::kernels::kda_cuda
