#include "kernels/l2norm/l2norm_cpu.h"

#include "kernels/core/vector_math.h"

namespace k25::kernels::K25_ISA {
namespace {

// Not std::sqrt: <cmath>'s inline overloads would be weak symbols in an unoptimised build.
float root(float x) { return __builtin_sqrtf(x); }
double root(double x) { return __builtin_sqrt(x); }

template <class A, class T>
A dot(const T* x, const T* y, std::int64_t n) {
  A lanes[kReduceLanes] = {};
  std::int64_t i = 0;
  for (; i + kReduceLanes <= n; i += kReduceLanes) {
    for (int l = 0; l < kReduceLanes; ++l)
      lanes[l] += load_value(x + i + l) * load_value(y + i + l);
  }
  for (int l = 0; i + l < n; ++l) lanes[l] += load_value(x + i + l) * load_value(y + i + l);
  return row_sum(lanes, kReduceLanes);
}

template <class T, class A>
void forward(const L2NormForwardArgs<T, A>& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t r = begin; r < end; ++r) {
    for (std::int64_t h = 0; h < a.heads; ++h) {
      const T* const x = a.x.row(r, h);
      const A rstd = 1 / root(dot<A>(x, x, a.cols) + a.eps);
      a.rstd[r * a.heads + h] = rstd;
      T* const y = a.y.row(r, h);
#pragma GCC ivdep  // y is x, or apart from it
      for (std::int64_t i = 0; i < a.cols; ++i) store_value(y + i, load_value(x + i) * rstd);
    }
  }
}

template <class T, class A>
void backward(const L2NormBackwardArgs<T, A>& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t r = begin; r < end; ++r) {
    for (std::int64_t h = 0; h < a.heads; ++h) {
      const T* const dy = a.dy.row(r, h);
      const T* const y = a.y.row(r, h);
      const A along = dot<A>(y, dy, a.cols), rstd = a.rstd[r * a.heads + h];
      T* const dx = a.dx.row(r, h);
#pragma GCC ivdep  // dx is dy, or apart from both
      for (std::int64_t i = 0; i < a.cols; ++i) {
        store_value(dx + i, rstd * (load_value(dy + i) - load_value(y + i) * along));
      }
    }
  }
}

}  // namespace

#define K25_L2NORM_DEFINE(T, A)                                                      \
  void l2norm_forward_cpu(const L2NormForwardArgs<T, A>& args, std::int64_t begin,   \
                          std::int64_t end) {                                        \
    forward(args, begin, end);                                                       \
  }                                                                                  \
  void l2norm_backward_cpu(const L2NormBackwardArgs<T, A>& args, std::int64_t begin, \
                           std::int64_t end) {                                       \
    backward(args, begin, end);                                                      \
  }
K25_L2NORM_DEFINE(float, float)
K25_L2NORM_DEFINE(BFloat16, float)
K25_L2NORM_DEFINE(double, double)
#undef K25_L2NORM_DEFINE

}  // namespace k25::kernels::K25_ISA
