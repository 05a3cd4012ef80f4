#pragma once
// One chunk backward. Only for ISA sources.
//
// Written with the scaled q, so that no factor `scale` occurs but in the dq that is stored. With
// X = beta (v - (k Gam) S), r = (I + L)^-1 X, out = (q Gam) S + P r, S' = diag(whole) S + kg^T r,
// where Gam is the decay from the chunk's start to a token and kg = k times that to its end:
//   dP = tril(dout r^T);  dr = P^T dout + kg dS';  dX = (I + L)^-T dr;  dL = -tril(dX r^T, -1);
//   dv = beta dX;  dS = diag(whole) dS' + (q Gam)^T dout - (k Gam)^T (beta dX);
// and with respect to the running sum G of g, from each product of a factor exp(G) with what it
// scales; dg is the sum of dsum from a token to the end of the chunk.

#include "kernels/kda/kda_chunk_cpu.h"

namespace k25::kernels::K25_ISA {

template <class A>
struct KdaChunkBackward {
  A *dstate_T = nullptr, *state_T = nullptr;  ///< [V, K]
  // [C, K]
  A *dq_state = nullptr, *dk_state = nullptr, *dk_next = nullptr;  ///< from S: of q Gam, k Gam; kg
  A *dq_pairs = nullptr, *dk_late = nullptr,
    *dk_early = nullptr;  ///< k as the later, earlier token
  A *between = nullptr, *late_q = nullptr, *late_k = nullptr;
  A *dq = nullptr, *dk = nullptr;                   ///< sums over the group's value heads
  A* dsum = nullptr;                                ///< with respect to G
  A *dout = nullptr, *dx = nullptr, *dr = nullptr;  ///< [C, V]; dr ends as -beta dX
  A *dp = nullptr, *dl = nullptr;                   ///< [C, C]; dl times beta of its row
  A* last = nullptr;                                ///< [K]

  KdaChunkBackward(const KdaSizes& s, Bump<A>& bump) {
    const std::int64_t key = s.padded_key, value = s.padded_value;
    for (A** x : {&dstate_T, &state_T}) *x = bump.take(key * value);
    for (A** x : {&dq_state, &dk_state, &dk_next, &dq_pairs, &dk_late, &dk_early, &between, &late_q,
                  &late_k, &dq, &dk, &dsum}) {
      *x = bump.take(kKdaRows * key);
    }
    for (A** x : {&dout, &dx, &dr}) *x = bump.take(kKdaRows * value);
    for (A** x : {&dp, &dl}) *x = bump.take(kKdaRows * kKdaRows);
    last = bump.take(key);
  }
};

/// dp, dl (without beta), dx and dr from dout and dstate.
template <class A>
inline void system_gradients(const KdaChunk<A>& c, const A* dstate, KdaChunkBackward<A>& d) {
  const std::int64_t value = c.value;
  transpose_rows(c.r, c.padded, value, value, c.r_T, kKdaRows);
  const TileOperands<A> scores{d.dout, value, 1, c.r_T, kKdaRows, d.dp, kKdaRows};
  tile_gemm<Triangle::kColumns, Store::kOverwrite>(scores, c.n, c.padded, value);

  // c.decayed still is k Gam, of which the caller has no more need.
  scale_sub_chunks(c.ksuf, c.tail, c.n, c.key, c.decayed);
  const TileOperands<A> from_next{c.decayed, c.key, 1, dstate, value, d.dx, value};
  tile_gemm<Triangle::kNone, Store::kOverwrite>(from_next, c.n, value, c.key);
  const TileOperands<A> from_out{c.p, 1, kKdaRows, d.dout, value, d.dx, value};
  tile_gemm<Triangle::kUpper, Store::kAdd>(from_out, c.n, value, c.n);
  solve_upper(c, d.dx);

  const TileOperands<A> pairs{d.dx, value, 1, c.r_T, kKdaRows, d.dl, kKdaRows};
  tile_gemm<Triangle::kColumns, Store::kOverwrite>(pairs, c.n, c.padded, value);
  for (std::int64_t i = 0; i < c.n; ++i) {
    A* const dl = d.dl + i * kKdaRows;
    A* const dp = d.dp + i * kKdaRows;
    for (std::int64_t j = 0; j < c.padded; ++j) {
      dl[j] = j < i ? -dl[j] : A(0);
      dp[j] = j <= i ? dp[j] : A(0);
    }
    const A* const __restrict dx = d.dx + i * value;
    A* const __restrict dr = d.dr + i * value;
    const A beta = c.beta[i];
    for (std::int64_t e = 0; e < value; ++e) dr[e] = -(beta * dx[e]);
  }
}

/// What reaches q, k and the state through the products with the state.
template <class A>
inline void state_gradients(KdaChunk<A>& c, const A* state, A* dstate, KdaChunkBackward<A>& d) {
  const std::int64_t key = c.key, value = c.value;
  transpose_rows(state, key, value, value, d.state_T, key);
  transpose_rows(dstate, key, value, value, d.dstate_T, key);
  const A* const rows[3] = {d.dout, d.dr, c.r};
  const A* const states[3] = {d.state_T, d.state_T, d.dstate_T};
  A* const results[3] = {d.dq_state, d.dk_state, d.dk_next};
  for (int i = 0; i < 3; ++i) {
    const TileOperands<A> o{rows[i], value, 1, states[i], key, results[i], key};
    tile_gemm<Triangle::kNone, Store::kOverwrite>(o, c.n, key, value);
  }
  const A* const whole = c.whole();
  for (std::int64_t k = 0; k < key; ++k) {
    A* const row = dstate + k * value;
    d.last[k] = whole[k] * dot_rows(state + k * value, row, value);
    for (std::int64_t e = 0; e < value; ++e) row[e] *= whole[k];
  }
  scale_sub_chunks(c.qpre, c.head, c.n, key, c.decayed);
  const TileOperands<A> from_out{c.decayed, 1, key, d.dout, value, dstate, value};
  tile_gemm<Triangle::kNone, Store::kAdd>(from_out, key, value, c.n);
  scale_sub_chunks(c.kpre, c.head, c.n, key, c.decayed);
  const TileOperands<A> from_delta{c.decayed, 1, key, d.dr, value, dstate, value};
  tile_gemm<Triangle::kNone, Store::kAdd>(from_delta, key, value, c.n);
}

/// rows *= factor, element by element, for `count` rows of `key`.
template <class A>
inline void scale_rows(A* rows, const A* __restrict factor, std::int64_t count, std::int64_t key) {
  for (std::int64_t r = 0; r < count; ++r) {
    A* const __restrict row = rows + r * key;
    for (std::int64_t e = 0; e < key; ++e) row[e] *= factor[e];
  }
}

/// Pairs of different sub-chunks. The three results get their first values.
template <class A>
inline void far_gradients(const KdaChunk<A>& c, KdaChunkBackward<A>& d) {
  const std::int64_t key = c.key, sub_rows = kKdaSubChunk;
  for (A* x : {d.dq_pairs, d.dk_late, d.dk_early}) fill_rows(x, c.padded * key, A(0));
  copy_rows(c.ksuf, c.padded * key, d.between);
  for (std::int64_t sub = 1; sub < c.subs; ++sub) {
    const std::int64_t first = sub * sub_rows, rows = smaller(sub_rows, c.n - first);
    scale_rows(d.between, c.total + (sub - 1) * key, first - sub_rows, key);
    const A* const pairs[2] = {d.dp, d.dl};
    A* const results[2] = {d.dq_pairs + first * key, d.dk_late + first * key};
    for (int i = 0; i < 2; ++i) {
      const TileOperands<A> o{
          pairs[i] + first * kKdaRows, kKdaRows, 1, d.between, key, results[i], key};
      tile_gemm<Triangle::kNone, Store::kOverwrite>(o, rows, key, first);
      multiply_rows(results[i], c.pre + first * key, rows * key, d.late_q);
      copy_rows(d.late_q, rows * key, results[i]);
    }
  }
  copy_rows(c.qpre, c.padded * key, d.late_q);
  copy_rows(c.kpre, c.padded * key, d.late_k);
  for (std::int64_t sub = c.subs - 2; sub >= 0; --sub) {
    const std::int64_t first = sub * sub_rows, late = first + sub_rows, count = c.n - late;
    const std::int64_t beyond = late + sub_rows;  // further than the next sub-chunk
    if (beyond < c.n) {
      for (A* x : {d.late_q, d.late_k}) {
        scale_rows(x + beyond * key, c.total + (sub + 1) * key, c.n - beyond, key);
      }
    }
    A* const result = d.dk_early + first * key;
    const TileOperands<A> from_q{
        d.dp + late * kKdaRows + first, 1, kKdaRows, d.late_q + late * key, key, result, key};
    tile_gemm<Triangle::kNone, Store::kOverwrite>(from_q, sub_rows, key, count);
    const TileOperands<A> from_k{
        d.dl + late * kKdaRows + first, 1, kKdaRows, d.late_k + late * key, key, result, key};
    tile_gemm<Triangle::kNone, Store::kAdd>(from_k, sub_rows, key, count);
    multiply_rows(result, c.suf + first * key, sub_rows * key, d.between);
    copy_rows(d.between, sub_rows * key, result);
  }
}

template <class A>
struct KdaPairGrad {
  A dp, dl;
};

/// One pair of a sub-chunk; `decay` is taken on by the later token.
template <class A>
inline void pair_gradients(const A* __restrict a, const A* __restrict early_k,
                           const A* __restrict late_k, const A* __restrict late_q, KdaPairGrad<A> g,
                           std::int64_t n, A* __restrict decay, A* __restrict dq,
                           A* __restrict dk_late, A* __restrict dk_early) {
  for (std::int64_t i = 0; i < n; ++i) {
    const A by = decay[i] * a[i];
    decay[i] = by;
    const A w = early_k[i] * by;
    dq[i] += g.dp * w;
    dk_late[i] += g.dl * w;
    dk_early[i] += (g.dp * late_q[i] + g.dl * late_k[i]) * by;
  }
}

/// Pairs within a sub-chunk, but for those of a token with itself.
template <class A>
inline void near_gradients(KdaChunk<A>& c, KdaChunkBackward<A>& d) {
  const std::int64_t key = c.key;
  for (std::int64_t j = 0; j < c.n; ++j) {
    const std::int64_t end = smaller(c.n, (j / kKdaSubChunk + 1) * kKdaSubChunk);
    fill_rows(c.row, key, A(1));
    for (std::int64_t i = j + 1; i < end; ++i) {
      const KdaPairGrad<A> g{d.dp[i * kKdaRows + j], d.dl[i * kKdaRows + j]};
      pair_gradients(c.a + i * key, c.k + j * key, c.k + i * key, c.q + i * key, g, key, c.row,
                     d.dq_pairs + i * key, d.dk_late + i * key, d.dk_early + j * key);
    }
  }
}

/// Token i: dq and dk grow, dsum is set and, for what acts at the chunk's end, `last` grows.
template <class A>
inline void token_gradients(const KdaChunk<A>& c, std::int64_t i, KdaChunkBackward<A>& d) {
  const std::int64_t key = c.key, at = i * key, sub = i / kKdaSubChunk * key;
  const A* const __restrict q = c.q + at;
  const A* const __restrict k = c.k + at;
  const A* const __restrict pre = c.pre + at;
  const A* const __restrict suf = c.suf + at;
  const A* const __restrict head = c.head + sub;
  const A* const __restrict tail = c.tail + sub;
  const A* const __restrict dq_state = d.dq_state + at;
  const A* const __restrict dk_state = d.dk_state + at;
  const A* const __restrict dk_next = d.dk_next + at;
  const A* const __restrict dq_pairs = d.dq_pairs + at;
  const A* const __restrict dk_late = d.dk_late + at;
  const A* const __restrict dk_early = d.dk_early + at;
  A* const __restrict dq = d.dq + at;
  A* const __restrict dk = d.dk + at;
  A* const __restrict dsum = d.dsum + at;
  A* const __restrict last = d.last;
  const A self = d.dp[i * kKdaRows + i];
  for (std::int64_t e = 0; e < key; ++e) {
    const A gam = pre[e] * head[e];
    const A query = gam * dq_state[e] + dq_pairs[e];
    const A forward = gam * dk_state[e] + dk_late[e];
    const A to_end = suf[e] * tail[e] * dk_next[e];
    const A backward = to_end + dk_early[e];
    dsum[e] = q[e] * query + k[e] * (forward - backward);
    last[e] += k[e] * to_end;
    // A token with itself meets no decay.
    dq[e] += query + self * k[e];
    dk[e] += forward + backward + self * q[e];
  }
}

/// One chunk backward for one value head: dstate becomes that of the state before the chunk; dv, dg
/// and dbeta are stored, d.dq and d.dk grow.
template <class T, class A>
inline void backward_chunk(const KdaArgs<T, A>& x, const KdaSpan& at, const A* state, A* dstate,
                           KdaChunk<A>& c, KdaChunkBackward<A>& d) {
  solve_chunk(x, at, state, c);
  pack_rows(x.dout.row(at.b, at.t, at.m), x.dout.token_stride, c.n, c.padded, x.sizes.value_dim,
            c.value, A(1), d.dout);
  system_gradients(c, dstate, d);
  state_gradients(c, state, dstate, d);
  unpack_rows(d.dr, c.n, x.sizes.value_dim, c.value, A(-1), x.dv.row(at.b, at.t, at.m),
              x.dv.token_stride);
  A dbeta[kKdaRows];
  for (std::int64_t i = 0; i < c.n; ++i) {
    dbeta[i] = dot_rows(d.dx + i * c.value, c.delta + i * c.value, c.value);
    for (std::int64_t j = 0; j < i; ++j) {
      dbeta[i] += d.dl[i * kKdaRows + j] * c.scores[i * kKdaRows + j];
      d.dl[i * kKdaRows + j] *= c.beta[i];
    }
  }
  far_gradients(c, d);
  near_gradients(c, d);
  for (std::int64_t i = 0; i < c.n; ++i) token_gradients(c, i, d);
  add_row(d.last, c.key, d.dsum + (c.n - 1) * c.key);
  for (std::int64_t i = c.n - 1; i > 0; --i)
    add_row(d.dsum + i * c.key, c.key, d.dsum + (i - 1) * c.key);
  unpack_rows(d.dsum, c.n, x.sizes.key_dim, c.key, A(1), x.dg.row(at.b, at.t, at.m),
              x.dg.token_stride);
  for (std::int64_t i = 0; i < c.n; ++i) *x.dbeta.row(at.b, at.t + i, at.m) = dbeta[i];
}

}  // namespace k25::kernels::K25_ISA
