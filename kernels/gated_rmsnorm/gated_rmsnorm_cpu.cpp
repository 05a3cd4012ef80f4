#include "kernels/gated_rmsnorm/gated_rmsnorm_cpu.h"

#include "kernels/core/vector_math.h"

namespace k25::kernels::K25_ISA {
namespace {

// Not std::sqrt: <cmath>'s inline overloads would be weak symbols in an unoptimised build.
float root(float x) { return __builtin_sqrtf(x); }
double root(double x) { return __builtin_sqrt(x); }

template <class A>
[[gnu::always_inline]] inline A sigmoid(A x) {
  return 1 / (1 + exp_approx(-x));
}

template <class A, class T>
A square_sum(const T* x, std::int64_t n) {
  A lanes[kReduceLanes] = {};
  for (std::int64_t i = 0; i < n; i += kReduceLanes) {
    const std::int64_t count = n - i < kReduceLanes ? n - i : kReduceLanes;
    for (std::int64_t l = 0; l < count; ++l) {
      const A v = load_value(x + i + l);
      lanes[l] += v * v;
    }
  }
  return row_sum(lanes, kReduceLanes);
}

template <class T, class A>
void forward(const GatedRmsNormArgs<T, A>& a, std::int64_t begin, std::int64_t end) {
  const auto count = static_cast<A>(a.cols);
  for (std::int64_t r = begin; r < end; ++r) {
    for (std::int64_t h = 0; h < a.heads; ++h) {
      const T* const x = a.x.row(r, h);
      const T* const gate = a.gate.row(r, h);
      const A rstd = 1 / root(square_sum<A>(x, a.cols) / count + a.eps);
      a.rstd[r * a.heads + h] = rstd;
      T* const y = a.y.row(r, h);
#pragma GCC ivdep  // y is an input, element by element, or apart from both
      for (std::int64_t i = 0; i < a.cols; ++i) {
        store_value(y + i, load_value(x + i) * rstd * a.gain[i] * sigmoid(load_value(gate + i)));
      }
    }
  }
}

/// sum of z n; adds dy n s to `partial`.
template <class T, class A>
A gather(const T* __restrict dy, const T* __restrict x, const T* __restrict gate,
         const A* __restrict gain, A rstd, std::int64_t n, A* __restrict partial) {
  A lanes[kReduceLanes] = {};
  for (std::int64_t i = 0; i < n; i += kReduceLanes) {
    const std::int64_t count = n - i < kReduceLanes ? n - i : kReduceLanes;
    for (std::int64_t l = 0; l < count; ++l) {
      const A p = load_value(dy + i + l) * (load_value(x + i + l) * rstd) *
                  sigmoid(load_value(gate + i + l));
      partial[i + l] += p;
      lanes[l] += gain[i + l] * p;
    }
  }
  return row_sum(lanes, kReduceLanes);
}

template <class T, class A>
void backward(const GatedRmsNormArgs<T, A>& a, std::int64_t begin, std::int64_t end, A* partial) {
  const auto count = static_cast<A>(a.cols);
  for (std::int64_t i = 0; i < a.cols; ++i) partial[i] = A(0);
  for (std::int64_t r = begin; r < end; ++r) {
    for (std::int64_t h = 0; h < a.heads; ++h) {
      const T* const dy = a.dy.row(r, h);
      const T* const x = a.x.row(r, h);
      const T* const gate = a.gate.row(r, h);
      const A rstd = a.saved_rstd[r * a.heads + h];
      const A mean = gather(dy, x, gate, a.gain, rstd, a.cols, partial) / count;
      T* const dx = a.dx.row(r, h);
      T* const dgate = a.dgate.row(r, h);
#pragma GCC ivdep  // outputs are inputs, element by element, or apart from them
      for (std::int64_t i = 0; i < a.cols; ++i) {
        const A n = load_value(x + i) * rstd;
        const A s = sigmoid(load_value(gate + i));
        const A z = load_value(dy + i) * a.gain[i] * s;
        store_value(dx + i, rstd * (z - n * mean));
        store_value(dgate + i, z * n * (1 - s));
      }
    }
  }
}

}  // namespace

#define K25_GATED_RMSNORM_DEFINE(T, A)                                                    \
  void gated_rmsnorm_forward_cpu(const GatedRmsNormArgs<T, A>& args, std::int64_t begin,  \
                                 std::int64_t end) {                                      \
    forward(args, begin, end);                                                            \
  }                                                                                       \
  void gated_rmsnorm_backward_cpu(const GatedRmsNormArgs<T, A>& args, std::int64_t begin, \
                                  std::int64_t end, A* partial) {                         \
    backward(args, begin, end, partial);                                                  \
  }
K25_GATED_RMSNORM_DEFINE(float, float)
K25_GATED_RMSNORM_DEFINE(BFloat16, float)
K25_GATED_RMSNORM_DEFINE(double, double)
#undef K25_GATED_RMSNORM_DEFINE

}  // namespace k25::kernels::K25_ISA
