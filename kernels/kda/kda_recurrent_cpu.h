#pragma once
// The formula token by token, forward and its adjoint, for a run of at most kKdaRows tokens. Only
// for ISA sources.
//
// Loops over the state go row by row (a key channel), so that sums over key channels run in order.

#include "kernels/kda/kda_chunk_backward_cpu.h"

namespace k25::kernels::K25_ISA {

/// One token: state [K, V] in place, rows row_stride apart; u [V] gets the correction, out [V] the
/// output.
template <class A>
inline void recurrent_token(const A* __restrict q, const A* __restrict k, const A* __restrict v,
                            const A* __restrict a, A beta, std::int64_t key, std::int64_t value,
                            A* state, std::int64_t row_stride, A* __restrict u, A* __restrict out) {
  for (std::int64_t e = 0; e < value; ++e) u[e] = out[e] = A(0);
  for (std::int64_t d = 0; d < key; ++d) {
    A* const __restrict row = state + d * row_stride;
    for (std::int64_t e = 0; e < value; ++e) {
      row[e] *= a[d];
      u[e] += k[d] * row[e];
    }
  }
  for (std::int64_t e = 0; e < value; ++e) u[e] = beta * (v[e] - u[e]);
  for (std::int64_t d = 0; d < key; ++d) {
    A* const __restrict row = state + d * row_stride;
    for (std::int64_t e = 0; e < value; ++e) {
      row[e] += k[d] * u[e];
      out[e] += q[d] * row[e];
    }
  }
}

/// c's rows of q, k, v, a and beta, and the state, forward; u in r, outputs in out.
template <class T, class A>
inline void recurrent_forward(const KdaArgs<T, A>& x, const KdaSpan& at, A* state, KdaChunk<A>& c) {
  load_chunk(x, at, c);
  exp_rows(c.a, c.n * c.key);
  for (std::int64_t i = 0; i < c.n; ++i) {
    recurrent_token(c.q + i * c.key, c.k + i * c.key, c.delta + i * c.value, c.a + i * c.key,
                    c.beta[i], c.key, c.value, state, c.value, c.r + i * c.value,
                    c.out + i * c.value);
  }
  if (x.out.data == nullptr) return;
  unpack_rows(c.out, c.n, x.sizes.value_dim, c.value, A(1), x.out.row(at.b, at.t, at.m),
              x.out.token_stride);
}

/// The adjoint of one token. `before` [K, V]: the state that it found. dstate in place; dq and dk
/// [K] grow, dg [K] and dv [V] are set; returns dbeta. `residual` and `du` [V] are scratch.
template <class A>
inline A recurrent_token_backward(const A* __restrict q, const A* __restrict k,
                                  const A* __restrict v, const A* __restrict a, A beta,
                                  std::int64_t key, std::int64_t value, const A* __restrict before,
                                  const A* __restrict dout, A* __restrict dstate,
                                  A* __restrict residual, A* __restrict du, A* __restrict u,
                                  A* __restrict dq, A* __restrict dk, A* __restrict dg,
                                  A* __restrict dv) {
  for (std::int64_t e = 0; e < value; ++e) {
    residual[e] = v[e];
    du[e] = A(0);
  }
  for (std::int64_t d = 0; d < key; ++d) {
    const A* const __restrict row = before + d * value;
    A* const __restrict drow = dstate + d * value;
    for (std::int64_t e = 0; e < value; ++e) {
      residual[e] -= k[d] * (a[d] * row[e]);
      drow[e] += q[d] * dout[e];
      du[e] += k[d] * drow[e];
    }
  }
  for (std::int64_t e = 0; e < value; ++e) {
    u[e] = beta * residual[e];
    dv[e] = beta * du[e];
  }
  for (std::int64_t d = 0; d < key; ++d) {
    const A* const __restrict row = before + d * value;
    A* const __restrict drow = dstate + d * value;
    A query[kKdaPad] = {}, late[kKdaPad] = {}, decay[kKdaPad] = {};
    for (std::int64_t e = 0; e < value; e += kKdaPad) {
      for (std::int64_t l = 0; l < kKdaPad; ++l) {
        const A decayed = a[d] * row[e + l];
        query[l] += (decayed + k[d] * u[e + l]) * dout[e + l];
        late[l] += drow[e + l] * u[e + l] - decayed * dv[e + l];
        const A ddecayed = drow[e + l] - k[d] * dv[e + l];
        decay[l] += ddecayed * decayed;
        drow[e + l] = a[d] * ddecayed;
      }
    }
    dq[d] += row_sum(query, kKdaPad);
    dk[d] += row_sum(late, kKdaPad);
    dg[d] = row_sum(decay, kKdaPad);
  }
  return dot_rows(du, residual, value);
}

/// A run backward; `states` holds kKdaRows states of scratch.
template <class T, class A>
inline void recurrent_backward(const KdaArgs<T, A>& x, const KdaSpan& at, const A* state, A* dstate,
                               A* states, KdaChunk<A>& c, KdaChunkBackward<A>& d) {
  load_chunk(x, at, c);
  exp_rows(c.a, c.n * c.key);
  pack_rows(x.dout.row(at.b, at.t, at.m), x.dout.token_stride, c.n, c.padded, x.sizes.value_dim,
            c.value, A(1), d.dout);
  const std::int64_t key = c.key, value = c.value, size = key * value;
  copy_rows(state, size, states);
  for (std::int64_t i = 0; i + 1 < c.n; ++i) {
    A* const next = states + (i + 1) * size;
    copy_rows(states + i * size, size, next);
    recurrent_token(c.q + i * key, c.k + i * key, c.delta + i * value, c.a + i * key, c.beta[i],
                    key, value, next, value, c.r, c.out);
  }
  for (std::int64_t i = c.n - 1; i >= 0; --i) {
    *x.dbeta.row(at.b, at.t + i, at.m) = recurrent_token_backward(
        c.q + i * key, c.k + i * key, c.delta + i * value, c.a + i * key, c.beta[i], key, value,
        states + i * size, d.dout + i * value, dstate, c.r, c.out, d.dx, d.dq + i * key,
        d.dk + i * key, d.dsum + i * key, d.dr + i * value);
  }
  unpack_rows(d.dr, c.n, x.sizes.value_dim, value, A(1), x.dv.row(at.b, at.t, at.m),
              x.dv.token_stride);
  unpack_rows(d.dsum, c.n, x.sizes.key_dim, key, A(1), x.dg.row(at.b, at.t, at.m),
              x.dg.token_stride);
}

}  // namespace k25::kernels::K25_ISA
