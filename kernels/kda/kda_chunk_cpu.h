#pragma once
// One chunk of the chunked form: its decays, its triangular system, and forward. Only for ISA
// sources.
//
// With G_i the sum of g over the chunk's tokens up to i, two tokens i >= j meet with the decay
// exp(G_i - G_j), of which neither exp(G_i) / exp(G_j) nor the difference can be formed: the first
// overflows, the second cancels. All factors here are therefore exponentials of sums over runs of
// tokens, none above 1. Between sub-chunks: exp(G_i - G_j) = pre_i mid suf_j, where pre_i runs from
// the sub-chunk's first token to i, suf_j from after j to the end of its sub-chunk, and mid over
// the sub-chunks between. Within a sub-chunk: the product of exp(g) from after j to i.

#include "kernels/core/tile_gemm.h"
#include "kernels/kda/kda_rows_cpu.h"

namespace k25::kernels::K25_ISA {

/// Scratch of a chunk. Rows of K (`key`) or V (`value`) padded elements; matrices of pairs have
/// rows of kKdaRows.
template <class A>
struct KdaChunk {
  std::int64_t n = 0, padded = 0, subs = 0;  ///< tokens, up to a whole sub-chunk; sub-chunks
  std::int64_t key = 0, value = 0;
  A* state = nullptr;                                    ///< [K, V], the caller's to use
  A *k = nullptr, *q = nullptr, *a = nullptr;            ///< q is scaled; a = exp g
  A *pre = nullptr, *suf = nullptr;                      ///< see above
  A *kpre = nullptr, *qpre = nullptr, *ksuf = nullptr;   ///< times k and q
  A* decayed = nullptr;                                  ///< [C, K] of the moment
  A *delta = nullptr, *r = nullptr, *out = nullptr;      ///< [C, V]; delta: v, then v - R^T k
  A *scores = nullptr, *system = nullptr, *p = nullptr;  ///< k with k, that times -beta; q with k
  A *keys_T = nullptr, *r_T = nullptr;                   ///< [K, C], [V, C]
  A *total = nullptr, *head = nullptr, *tail = nullptr;  ///< exp of sums over whole sub-chunks:
                                                         ///< of one, of all before, of all after
  A *row = nullptr, *beta = nullptr;

  KdaChunk(const KdaSizes& s, Bump<A>& bump) : key(s.padded_key), value(s.padded_value) {
    constexpr std::int64_t kSubs = kKdaRows / kKdaSubChunk;
    state = bump.take(key * value);
    for (A** x : {&k, &q, &a, &pre, &suf, &kpre, &qpre, &ksuf, &decayed}) {
      *x = bump.take(kKdaRows * key);
    }
    for (A** x : {&delta, &r, &out}) *x = bump.take(kKdaRows * value);
    for (A** x : {&scores, &system, &p}) *x = bump.take(kKdaRows * kKdaRows);
    keys_T = bump.take(key * kKdaRows);
    r_T = bump.take(value * kKdaRows);
    total = bump.take(kSubs * key);
    head = bump.take((kSubs + 1) * key);
    tail = bump.take(kSubs * key);
    row = bump.take(key);
    beta = bump.take(kKdaRows);
  }
  /// Decay of the whole chunk, [K].
  const A* whole() const { return head + subs * key; }
};

/// The tokens [t, t + n) of row b for value head m.
struct KdaSpan {
  std::int64_t b, t, n, m;
};

/// Packs q, k, v, g (into a) and beta.
template <class T, class A>
inline void load_chunk(const KdaArgs<T, A>& x, const KdaSpan& at, KdaChunk<A>& c) {
  const std::int64_t h = at.m / x.sizes.group;
  c.n = at.n;
  c.padded = pad_up(at.n);
  c.subs = c.padded / kKdaSubChunk;
  pack_rows(x.q.row(at.b, at.t, h), x.q.token_stride, c.n, c.padded, x.sizes.key_dim, c.key,
            x.scale, c.q);
  pack_rows(x.k.row(at.b, at.t, h), x.k.token_stride, c.n, c.padded, x.sizes.key_dim, c.key, A(1),
            c.k);
  pack_rows(x.v.row(at.b, at.t, at.m), x.v.token_stride, c.n, c.padded, x.sizes.value_dim, c.value,
            A(1), c.delta);
  pack_rows(x.g.row(at.b, at.t, at.m), x.g.token_stride, c.n, c.padded, x.sizes.key_dim, c.key,
            A(1), c.a);
  for (std::int64_t i = 0; i < c.padded; ++i) {
    c.beta[i] = i < c.n ? *x.beta.row(at.b, at.t + i, at.m) : A(0);
  }
}

template <class A>
inline void exp_rows(A* x, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) x[i] = exp_approx(x[i]);
}

template <class A>
inline void add_row(const A* __restrict x, std::int64_t n, A* __restrict sum) {
  for (std::int64_t i = 0; i < n; ++i) sum[i] += x[i];
}

/// pre, suf, total, head and tail from g, which becomes a.
template <class A>
inline void chunk_decays(KdaChunk<A>& c) {
  const std::int64_t key = c.key;
  for (std::int64_t sub = 0; sub < c.subs; ++sub) {
    A* const sum = c.total + sub * key;
    const std::int64_t first = sub * kKdaSubChunk, end = first + kKdaSubChunk;
    fill_rows(sum, key, A(0));
    for (std::int64_t i = end - 1; i >= first; --i) {
      copy_rows(sum, key, c.suf + i * key);
      add_row(c.a + i * key, key, sum);
    }
    fill_rows(sum, key, A(0));
    for (std::int64_t i = first; i < end; ++i) {
      add_row(c.a + i * key, key, sum);
      copy_rows(sum, key, c.pre + i * key);
    }
  }
  fill_rows(c.head, key, A(0));
  for (std::int64_t sub = 0; sub < c.subs; ++sub) {
    copy_rows(c.head + sub * key, key, c.head + (sub + 1) * key);
    add_row(c.total + sub * key, key, c.head + (sub + 1) * key);
  }
  fill_rows(c.tail + (c.subs - 1) * key, key, A(0));
  for (std::int64_t sub = c.subs - 1; sub > 0; --sub) {
    copy_rows(c.tail + sub * key, key, c.tail + (sub - 1) * key);
    add_row(c.total + sub * key, key, c.tail + (sub - 1) * key);
  }
  for (A* rows : {c.a, c.pre, c.suf}) exp_rows(rows, c.padded * key);
  for (A* rows : {c.total, c.tail}) exp_rows(rows, c.subs * key);
  exp_rows(c.head, (c.subs + 1) * key);
}

template <class A>
inline void multiply_rows(const A* __restrict x, const A* __restrict y, std::int64_t n,
                          A* __restrict z) {
  for (std::int64_t i = 0; i < n; ++i) z[i] = x[i] * y[i];
}

template <class A>
struct KdaPair {
  A key, query;
};

/// Takes the decay on by one token and meets the later token's k and q.
template <class A>
inline KdaPair<A> pair_scores(const A* __restrict a, const A* __restrict early_k,
                              const A* __restrict late_k, const A* __restrict late_q,
                              std::int64_t n, A* __restrict decay) {
  A key[kKdaPad] = {}, query[kKdaPad] = {};
  for (std::int64_t i = 0; i < n; i += kKdaPad) {
    for (std::int64_t l = 0; l < kKdaPad; ++l) {
      const A d = decay[i + l] * a[i + l];
      decay[i + l] = d;
      const A w = early_k[i + l] * d;
      key[l] += late_k[i + l] * w;
      query[l] += late_q[i + l] * w;
    }
  }
  return {row_sum(key, kKdaPad), row_sum(query, kKdaPad)};
}

/// k_i . k_j and q_i . k_j with the decay between, into scores and p.
template <class A>
inline void chunk_scores(KdaChunk<A>& c) {
  const std::int64_t key = c.key;
  for (std::int64_t j = 0; j < c.n; ++j) {
    c.p[j * kKdaRows + j] = dot_rows(c.q + j * key, c.k + j * key, key);
    fill_rows(c.row, key, A(1));
    const std::int64_t end = smaller(c.n, (j / kKdaSubChunk + 1) * kKdaSubChunk);
    for (std::int64_t i = j + 1; i < end; ++i) {
      const KdaPair<A> s =
          pair_scores(c.a + i * key, c.k + j * key, c.k + i * key, c.q + i * key, key, c.row);
      c.scores[i * kKdaRows + j] = s.key;
      c.p[i * kKdaRows + j] = s.query;
    }
  }
  transpose_rows(c.ksuf, c.padded, key, key, c.keys_T, kKdaRows);
  for (std::int64_t sub = 1; sub < c.subs; ++sub) {
    const std::int64_t first = sub * kKdaSubChunk, rows = smaller(kKdaSubChunk, c.n - first);
    const A* const between = c.total + (sub - 1) * key;
    for (std::int64_t d = 0; d < key; ++d) {
      A* const column = c.keys_T + d * kKdaRows;
      for (std::int64_t j = 0; j < first - kKdaSubChunk; ++j) column[j] *= between[d];
    }
    A* const pairs[2] = {c.scores, c.p};
    const A* const late[2] = {c.kpre, c.qpre};
    for (int i = 0; i < 2; ++i) {
      const TileOperands<A> o{late[i] + first * key,       key,     1, c.keys_T, kKdaRows,
                              pairs[i] + first * kKdaRows, kKdaRows};
      tile_gemm<Triangle::kNone, Store::kOverwrite>(o, rows, first, key);
    }
  }
}

/// x becomes (I + L)^-1 x by substitution; `system` is -L.
template <class A>
inline void solve_lower(const KdaChunk<A>& c, A* x) {
  const std::int64_t value = c.value;
  for (std::int64_t first = 0; first < c.n; first += kKdaSubChunk) {
    const A* const block = c.system + first * kKdaRows;
    const std::int64_t rows = smaller(kKdaSubChunk, c.n - first);
    if (first > 0) {
      const TileOperands<A> o{block, kKdaRows, 1, x, value, x + first * value, value};
      tile_gemm<Triangle::kNone, Store::kAdd>(o, rows, value, first);
    }
    for (std::int64_t i = 1; i < rows; ++i) {
      for (std::int64_t j = 0; j < i; ++j) {
        add_scaled(block[i * kKdaRows + first + j], x + (first + j) * value, value,
                   x + (first + i) * value);
      }
    }
  }
}

/// y becomes (I + L)^-T y.
template <class A>
inline void solve_upper(const KdaChunk<A>& c, A* y) {
  const std::int64_t value = c.value;
  for (std::int64_t first = c.padded - kKdaSubChunk; first >= 0; first -= kKdaSubChunk) {
    const std::int64_t end = smaller(c.n, first + kKdaSubChunk);
    if (end < c.n) {
      const TileOperands<A> o{c.system + end * kKdaRows + first,
                              1,
                              kKdaRows,
                              y + end * value,
                              value,
                              y + first * value,
                              value};
      tile_gemm<Triangle::kNone, Store::kAdd>(o, end - first, value, c.n - end);
    }
    for (std::int64_t i = end - 1; i >= first; --i) {
      for (std::int64_t j = i + 1; j < end; ++j) {
        add_scaled(c.system[j * kKdaRows + i], y + j * value, value, y + i * value);
      }
    }
  }
}

/// Everything up to the corrections u (in r), for the chunk that enters with `state`.
template <class T, class A>
inline void solve_chunk(const KdaArgs<T, A>& x, const KdaSpan& at, const A* state, KdaChunk<A>& c) {
  load_chunk(x, at, c);
  chunk_decays(c);
  multiply_rows(c.k, c.pre, c.padded * c.key, c.kpre);
  multiply_rows(c.q, c.pre, c.padded * c.key, c.qpre);
  multiply_rows(c.k, c.suf, c.padded * c.key, c.ksuf);
  chunk_scores(c);
  for (std::int64_t i = 0; i < c.n; ++i) {
    for (std::int64_t j = 0; j < i; ++j) {
      c.system[i * kKdaRows + j] = -c.beta[i] * c.scores[i * kKdaRows + j];
    }
  }
  scale_sub_chunks(c.kpre, c.head, c.n, c.key, c.decayed);
  const TileOperands<A> o{c.decayed, c.key, 1, state, c.value, c.r, c.value};
  tile_gemm<Triangle::kNone, Store::kOverwrite>(o, c.n, c.value, c.key);
  for (std::int64_t i = 0; i < c.n; ++i) {
    A* const __restrict delta = c.delta + i * c.value;
    A* const __restrict r = c.r + i * c.value;
    const A beta = c.beta[i];
    for (std::int64_t e = 0; e < c.value; ++e) {
      delta[e] -= r[e];
      r[e] = beta * delta[e];
    }
  }
  fill_rows(c.r + c.n * c.value, (c.padded - c.n) * c.value, A(0));
  solve_lower(c, c.r);
}

/// state [K, V] after the chunk.
template <class A>
inline void advance_state(KdaChunk<A>& c, A* state) {
  scale_sub_chunks(c.ksuf, c.tail, c.n, c.key, c.decayed);
  const A* const whole = c.whole();
  for (std::int64_t d = 0; d < c.key; ++d) {
    A* const row = state + d * c.value;
    for (std::int64_t e = 0; e < c.value; ++e) row[e] *= whole[d];
  }
  const TileOperands<A> o{c.decayed, 1, c.key, c.r, c.value, state, c.value};
  tile_gemm<Triangle::kNone, Store::kAdd>(o, c.key, c.value, c.n);
}

/// One chunk forward; writes out unless its data is null.
template <class T, class A>
inline void forward_chunk(const KdaArgs<T, A>& x, const KdaSpan& at, A* state, KdaChunk<A>& c) {
  solve_chunk(x, at, state, c);
  if (x.out.data != nullptr) {
    scale_sub_chunks(c.qpre, c.head, c.n, c.key, c.decayed);
    const TileOperands<A> from_state{c.decayed, c.key, 1, state, c.value, c.out, c.value};
    tile_gemm<Triangle::kNone, Store::kOverwrite>(from_state, c.n, c.value, c.key);
    const TileOperands<A> from_chunk{c.p, kKdaRows, 1, c.r, c.value, c.out, c.value};
    tile_gemm<Triangle::kLower, Store::kAdd>(from_chunk, c.n, c.value, c.n);
    unpack_rows(c.out, c.n, x.sizes.value_dim, c.value, A(1), x.out.row(at.b, at.t, at.m),
                x.out.token_stride);
  }
  advance_state(c, state);
}

}  // namespace k25::kernels::K25_ISA
