#include "kernels/kda_gate/kda_gate_cpu.h"

#include "kernels/core/vector_math.h"

namespace k25::kernels::K25_ISA {
namespace {

[[gnu::always_inline]] inline float magnitude(float x) { return __builtin_fabsf(x); }
[[gnu::always_inline]] inline double magnitude(double x) { return __builtin_fabs(x); }

/// log(1 + e) for e in [0, 1]: 2 atanh(e / (2 + e)), whose series converges like 9^-n.
[[gnu::always_inline]] inline float log_one_plus(float e) {
  const float z = e / (2 + e), z2 = z * z;
  float sum = 1.0f / 15;
  sum = sum * z2 + 1.0f / 13;
  sum = sum * z2 + 1.0f / 11;
  sum = sum * z2 + 1.0f / 9;
  sum = sum * z2 + 1.0f / 7;
  sum = sum * z2 + 1.0f / 5;
  sum = sum * z2 + 1.0f / 3;
  return 2 * z + 2 * z * z2 * sum;
}
[[gnu::always_inline]] inline double log_one_plus(double e) { return __builtin_log1p(e); }

template <class A>
[[gnu::always_inline]] inline A softplus(A x) {
  // x < 0 is asked of x itself, so that NaN stays.
  return (x < A(0) ? A(0) : x) + log_one_plus(exp_approx(-magnitude(x)));
}

template <class A>
[[gnu::always_inline]] inline A sigmoid(A x) {
  return 1 / (1 + exp_approx(-x));
}

/// exp(a_log) that stays finite, so that it meets no slope of 0 as infinity.
template <class T, class A>
A rate_of(const KdaGateArgs<T, A>& x, std::int64_t m) {
  constexpr A kLargest = sizeof(A) == 4 ? A(80) : A(700);
  if (x.a_log == nullptr) return A(1);
  const A a_log = x.a_log[m];
  return exp_approx(a_log > kLargest ? kLargest : a_log);
}

template <class T, class A>
void forward(const KdaGateArgs<T, A>& x, std::int64_t begin, std::int64_t end) {
  for (std::int64_t r = begin; r < end; ++r) {
    for (std::int64_t m = 0; m < x.heads; ++m) {
      const T* const __restrict f = x.f.row(r, m);
      const A* const __restrict bias = x.dt_bias + m * x.cols;
      A* const __restrict g = x.g.row(r, m);
      const A rate = rate_of(x, m);
      if (x.bounded) {
        for (std::int64_t i = 0; i < x.cols; ++i) {
          g[i] = x.lower_bound * sigmoid(rate * (load_value(f + i) + bias[i]));
        }
      } else {
        for (std::int64_t i = 0; i < x.cols; ++i) {
          g[i] = -rate * softplus(load_value(f + i) + bias[i]);
        }
      }
    }
  }
}

/// df of a channel, and what it adds to da_log.
template <class A>
struct GateGradient {
  A df, da;
};

template <class A>
[[gnu::always_inline]] inline GateGradient<A> bounded_gradient(A in, A rate, A lower_bound, A dg) {
  const A e = exp_approx(-magnitude(rate * in));
  const A slope = e / ((1 + e) * (1 + e));
  const A df = dg * lower_bound * slope * rate;
  return {df, df * in};
}
template <class A>
[[gnu::always_inline]] inline GateGradient<A> softplus_gradient(A in, A rate, A dg) {
  return {-rate * sigmoid(in) * dg, dg * (-rate * softplus(in))};
}

template <class T, class A>
void backward(const KdaGateArgs<T, A>& x, std::int64_t begin, std::int64_t end, A* partial) {
  A* const da_log = partial + x.heads * x.cols;
  for (std::int64_t i = 0; i < x.heads * (x.cols + 1); ++i) partial[i] = A(0);
  for (std::int64_t r = begin; r < end; ++r) {
    for (std::int64_t m = 0; m < x.heads; ++m) {
      const T* const f = x.f.row(r, m);
      const A* const __restrict bias = x.dt_bias + m * x.cols;
      const A* const __restrict dg = x.dg.row(r, m);
      T* const df = x.df.row(r, m);
      A* const __restrict dbias = partial + m * x.cols;
      const A rate = rate_of(x, m);
      A lanes[kReduceLanes] = {};
      for (std::int64_t first = 0; first < x.cols; first += kReduceLanes) {
        const std::int64_t left = x.cols - first, n = left < kReduceLanes ? left : kReduceLanes;
#pragma GCC ivdep  // df is f, element by element, or apart from it
        for (std::int64_t l = 0; l < n; ++l) {
          const A in = load_value(f + first + l) + bias[first + l];
          const GateGradient<A> d = x.bounded
                                        ? bounded_gradient(in, rate, x.lower_bound, dg[first + l])
                                        : softplus_gradient(in, rate, dg[first + l]);
          store_value(df + first + l, d.df);
          dbias[first + l] += d.df;
          lanes[l] += d.da;
        }
      }
      da_log[m] += row_sum(lanes, kReduceLanes);
    }
  }
}

template <class T, class A>
void beta_forward(const KdaBetaArgs<T, A>& x, std::int64_t begin, std::int64_t end) {
  for (std::int64_t r = begin; r < end; ++r) {
    const T* const __restrict b = x.b.row(r, 0);
    A* const __restrict beta = x.beta.row(r, 0);
    for (std::int64_t m = 0; m < x.heads; ++m) beta[m] = x.top * sigmoid(load_value(b + m));
  }
}

template <class T, class A>
void beta_backward(const KdaBetaArgs<T, A>& x, std::int64_t begin, std::int64_t end) {
  for (std::int64_t r = begin; r < end; ++r) {
    const T* const b = x.b.row(r, 0);
    const A* const __restrict dbeta = x.dbeta.row(r, 0);
    T* const db = x.db.row(r, 0);
#pragma GCC ivdep  // db is b, element by element, or apart from it
    for (std::int64_t m = 0; m < x.heads; ++m) {
      const A s = sigmoid(load_value(b + m));
      store_value(db + m, dbeta[m] * x.top * s * (1 - s));
    }
  }
}

}  // namespace

#define K25_KDA_GATE_DEFINE(T, A)                                                                  \
  void kda_gate_forward_cpu(const KdaGateArgs<T, A>& args, std::int64_t begin, std::int64_t end) { \
    forward(args, begin, end);                                                                     \
  }                                                                                                \
  void kda_gate_backward_cpu(const KdaGateArgs<T, A>& args, std::int64_t begin, std::int64_t end,  \
                             A* partial) {                                                         \
    backward(args, begin, end, partial);                                                           \
  }                                                                                                \
  void kda_beta_forward_cpu(const KdaBetaArgs<T, A>& args, std::int64_t begin, std::int64_t end) { \
    beta_forward(args, begin, end);                                                                \
  }                                                                                                \
  void kda_beta_backward_cpu(const KdaBetaArgs<T, A>& args, std::int64_t begin,                    \
                             std::int64_t end) {                                                   \
    beta_backward(args, begin, end);                                                               \
  }
K25_KDA_GATE_DEFINE(float, float)
K25_KDA_GATE_DEFINE(BFloat16, float)
K25_KDA_GATE_DEFINE(double, double)
#undef K25_KDA_GATE_DEFINE

}  // namespace k25::kernels::K25_ISA
