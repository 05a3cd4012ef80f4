#include "kernels/kda/kda_step_cpu.h"

#include "kernels/kda/kda_recurrent_cpu.h"

namespace k25::kernels::K25_ISA {
namespace {

/// Rows of one token in the arithmetic type.
template <class A>
struct Token {
  A *q, *k, *a, *v, *u, *out, *state;
};

template <class T, class A>
Token<A> token_of(const KdaStepArgs<T, A>& x, A* scratch) {
  Bump<A> bump{scratch};
  Token<A> w{};
  for (A** row : {&w.q, &w.k, &w.a}) *row = bump.take(x.key_dim);
  for (A** row : {&w.v, &w.u, &w.out}) *row = bump.take(x.value_dim);
  w.state = bump.take(x.key_dim * x.value_dim);
  return w;
}

template <class T, class A>
void load_row(const T* src, std::int64_t n, A factor, A* dst) {
  pack_rows(src, 0, 1, 1, n, n, factor, dst);
}

template <class T, class A>
void load_key(const KdaStepArgs<T, A>& x, std::int64_t s, std::int64_t t, std::int64_t m,
              const Token<A>& w) {
  load_row(x.k.row(s, t, m / (x.value_heads / x.heads)), x.key_dim, A(1), w.k);
  load_row(x.g.row(s, t, m), x.key_dim, A(1), w.a);
  exp_rows(w.a, x.key_dim);
}

/// All tokens of one sequence and value head on `state`.
template <class T, class A>
void run_tokens(const KdaStepArgs<T, A>& x, std::int64_t s, std::int64_t m, A* state,
                std::int64_t row_stride, const Token<A>& w) {
  for (std::int64_t t = 0; t < x.tokens; ++t) {
    load_key(x, s, t, m, w);
    load_row(x.q.row(s, t, m / (x.value_heads / x.heads)), x.key_dim, x.scale, w.q);
    load_row(x.v.row(s, t, m), x.value_dim, A(1), w.v);
    recurrent_token(w.q, w.k, w.v, w.a, *x.beta.row(s, t, m), x.key_dim, x.value_dim, state,
                    row_stride, w.u, w.out);
    unpack_rows(w.out, 1, x.value_dim, x.value_dim, A(1), x.out.row(s, t, m), 0);
    if (x.u.data != nullptr) copy_rows(w.u, x.value_dim, x.u.row(s, t, m));
  }
}

template <class T, class A>
[[gnu::noinline]] void decode(const KdaStepArgs<T, A>& x, std::int64_t begin, std::int64_t end,
                              A* scratch) {
  const Token<A> w = token_of(x, scratch);
  for (std::int64_t unit = begin; unit < end; ++unit) {
    const std::int64_t s = unit / x.value_heads, m = unit % x.value_heads;
    run_tokens(x, s, m, x.state.at(s, 0, m), x.state.row_stride, w);
  }
}

template <class T, class A>
[[gnu::noinline]] void verify(const KdaStepArgs<T, A>& x, std::int64_t begin, std::int64_t end,
                              A* scratch) {
  const Token<A> w = token_of(x, scratch);
  for (std::int64_t unit = begin; unit < end; ++unit) {
    const std::int64_t s = unit / x.value_heads, m = unit % x.value_heads;
    pack_rows(x.before.at(s, 0, m), x.before.row_stride, x.key_dim, x.key_dim, x.value_dim,
              x.value_dim, A(1), w.state);
    run_tokens(x, s, m, w.state, x.value_dim, w);
  }
}

template <class T, class A>
[[gnu::noinline]] void commit(const KdaStepArgs<T, A>& x, std::int64_t begin, std::int64_t end,
                              A* scratch) {
  const Token<A> w = token_of(x, scratch);
  for (std::int64_t unit = begin; unit < end; ++unit) {
    const std::int64_t s = unit / x.value_heads, m = unit % x.value_heads;
    for (std::int64_t t = 0; t < x.accepted[s]; ++t) {
      load_key(x, s, t, m, w);
      const A* const __restrict u = x.logged_u.row(s, t, m);
      for (std::int64_t d = 0; d < x.key_dim; ++d) {
        A* const __restrict row = x.state.at(s, 0, m) + d * x.state.row_stride;
        for (std::int64_t e = 0; e < x.value_dim; ++e) {
          row[e] *= w.a[d];
          row[e] += w.k[d] * u[e];
        }
      }
    }
  }
}

}  // namespace

#define K25_KDA_STEP_DEFINE(T, A)                                                          \
  void kda_decode_cpu(const KdaStepArgs<T, A>& args, std::int64_t begin, std::int64_t end, \
                      A* scratch) {                                                        \
    const FlushDenormals flush;                                                            \
    decode(args, begin, end, scratch);                                                     \
  }                                                                                        \
  void kda_verify_cpu(const KdaStepArgs<T, A>& args, std::int64_t begin, std::int64_t end, \
                      A* scratch) {                                                        \
    const FlushDenormals flush;                                                            \
    verify(args, begin, end, scratch);                                                     \
  }                                                                                        \
  void kda_commit_cpu(const KdaStepArgs<T, A>& args, std::int64_t begin, std::int64_t end, \
                      A* scratch) {                                                        \
    const FlushDenormals flush;                                                            \
    commit(args, begin, end, scratch);                                                     \
  }
K25_KDA_STEP_DEFINE(float, float)
K25_KDA_STEP_DEFINE(BFloat16, float)
K25_KDA_STEP_DEFINE(double, double)
#undef K25_KDA_STEP_DEFINE

}  // namespace k25::kernels::K25_ISA
