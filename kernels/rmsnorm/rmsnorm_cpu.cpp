#include "kernels/rmsnorm/rmsnorm_cpu.h"

#include "kernels/core/vector_math.h"

namespace k25::kernels::K25_ISA {
namespace {

constexpr int kLanes = 32;  // join() spells out the halves

template <class T>
using Sum = decltype(load_value(static_cast<const T*>(nullptr)));

// Not std::sqrt: <cmath>'s inline overloads would be weak symbols in an unoptimised build.
float root(float x) { return __builtin_sqrtf(x); }
double root(double x) { return __builtin_sqrt(x); }

template <int kHalf, class A>
void add_half(A* lanes) {
  for (int l = 0; l < kHalf; ++l) lanes[l] += lanes[l + kHalf];
}

// With constant bounds it stays in registers.
template <class A>
A join(A* lanes) {
  add_half<16>(lanes);
  add_half<8>(lanes);
  add_half<4>(lanes);
  add_half<2>(lanes);
  return lanes[0] + lanes[1];
}

template <class T>
Sum<T> square_sum(const T* x, std::int64_t n) {
  Sum<T> lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) {
      const Sum<T> v = load_value(x + i + l);
      lanes[l] += v * v;
    }
  }
  for (int l = 0; i + l < n; ++l) {
    const Sum<T> v = load_value(x + i + l);
    lanes[l] += v * v;
  }
  return join(lanes);
}

template <class T>
void add_row(const T* x, const T* residual, T* sum, std::int64_t n) {
#pragma GCC ivdep  // sum is x, residual, or apart from both
  for (std::int64_t i = 0; i < n; ++i) {
    store_value(sum + i, load_value(x + i) + load_value(residual + i));
  }
}

template <class T>
void forward(const RmsNormForwardArgs& a, std::int64_t begin, std::int64_t end) {
  const auto* gain = static_cast<const Sum<T>*>(a.gain);
  auto* rstd = static_cast<Sum<T>*>(a.rstd);
  const auto count = static_cast<Sum<T>>(a.cols);
  const auto eps = static_cast<Sum<T>>(a.eps);
  for (std::int64_t r = begin; r < end; ++r) {
    const T* s = static_cast<const T*>(a.x.data) + r * a.x.stride;
    if (a.residual.data != nullptr) {
      T* sum = static_cast<T*>(a.sum.data) + r * a.sum.stride;
      add_row(s, static_cast<const T*>(a.residual.data) + r * a.residual.stride, sum, a.cols);
      s = sum;
    }
    const Sum<T> scale = 1 / root(square_sum(s, a.cols) / count + eps);
    rstd[r] = scale;
    T* y = static_cast<T*>(a.y.data) + r * a.y.stride;
#pragma GCC ivdep  // y is apart from the inputs
    for (std::int64_t i = 0; i < a.cols; ++i) {
      store_value(y + i, load_value(s + i) * scale * gain[i]);
    }
  }
}

/// sum of gain dy x_hat; adds dy x_hat to `partial`.
template <class T>
Sum<T> gather(const T* __restrict dy, const T* __restrict s, const Sum<T>* __restrict gain,
              Sum<T> rstd, std::int64_t n, Sum<T>* __restrict partial) {
  Sum<T> lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) {
      const Sum<T> p = load_value(dy + i + l) * (load_value(s + i + l) * rstd);
      partial[i + l] += p;
      lanes[l] += gain[i + l] * p;
    }
  }
  for (int l = 0; i + l < n; ++l) {
    const Sum<T> p = load_value(dy + i + l) * (load_value(s + i + l) * rstd);
    partial[i + l] += p;
    lanes[l] += gain[i + l] * p;
  }
  return join(lanes);
}

enum class ResidualGrad { kAbsent, kAdded };

template <ResidualGrad kResidual, class T>
void backward_row(const T* dy, const T* s, const Sum<T>* gain, const T* d_sum, Sum<T> rstd,
                  Sum<T> mean, std::int64_t n, T* dx) {
#pragma GCC ivdep  // dx is dy, d_sum, or apart from the inputs
  for (std::int64_t i = 0; i < n; ++i) {
    const Sum<T> x_hat = load_value(s + i) * rstd;
    Sum<T> d = rstd * (gain[i] * load_value(dy + i) - x_hat * mean);
    if constexpr (kResidual == ResidualGrad::kAdded) d += load_value(d_sum + i);
    store_value(dx + i, d);
  }
}

template <class T>
void backward(const RmsNormBackwardArgs& a, std::int64_t begin, std::int64_t end, Sum<T>* partial) {
  const auto* gain = static_cast<const Sum<T>*>(a.gain);
  const auto* rstd = static_cast<const Sum<T>*>(a.rstd);
  const auto count = static_cast<Sum<T>>(a.cols);
  for (std::int64_t i = 0; i < a.cols; ++i) partial[i] = 0;
  for (std::int64_t r = begin; r < end; ++r) {
    const T* dy = static_cast<const T*>(a.dy.data) + r * a.dy.stride;
    const T* s = static_cast<const T*>(a.sum.data) + r * a.sum.stride;
    T* dx = static_cast<T*>(a.dx.data) + r * a.dx.stride;
    const Sum<T> mean = gather(dy, s, gain, rstd[r], a.cols, partial) / count;
    if (a.d_sum.data != nullptr) {
      const T* d_sum = static_cast<const T*>(a.d_sum.data) + r * a.d_sum.stride;
      backward_row<ResidualGrad::kAdded>(dy, s, gain, d_sum, rstd[r], mean, a.cols, dx);
    } else {
      backward_row<ResidualGrad::kAbsent, T>(dy, s, gain, nullptr, rstd[r], mean, a.cols, dx);
    }
  }
}

template <class A>
void add_partials(const A* __restrict partials, std::int64_t count, std::int64_t cols,
                  A* __restrict dgain) {
  constexpr std::int64_t kBlock = 64;
  for (std::int64_t begin = 0; begin < cols; begin += kBlock) {
    const std::int64_t n = cols - begin < kBlock ? cols - begin : kBlock;
    A total[kBlock] = {};
    for (std::int64_t b = 0; b < count; ++b) {
      const A* __restrict row = partials + b * cols + begin;
      for (std::int64_t i = 0; i < n; ++i) total[i] += row[i];
    }
    for (std::int64_t i = 0; i < n; ++i) dgain[begin + i] += total[i];
  }
}

}  // namespace

void rmsnorm_forward_cpu(const RmsNormForwardArgs& args, std::int64_t begin, std::int64_t end) {
  switch (args.dtype) {
    case DType::kFloat32:
      return forward<float>(args, begin, end);
    case DType::kBFloat16:
      return forward<BFloat16>(args, begin, end);
    default:
      return forward<double>(args, begin, end);
  }
}

void rmsnorm_backward_cpu(const RmsNormBackwardArgs& args, std::int64_t begin, std::int64_t end,
                          void* partial) {
  switch (args.dtype) {
    case DType::kFloat32:
      return backward<float>(args, begin, end, static_cast<float*>(partial));
    case DType::kBFloat16:
      return backward<BFloat16>(args, begin, end, static_cast<float*>(partial));
    default:
      return backward<double>(args, begin, end, static_cast<double*>(partial));
  }
}

void rmsnorm_add_partials_cpu(const float* partials, std::int64_t count, std::int64_t cols,
                              float* dgain) {
  add_partials(partials, count, cols, dgain);
}
void rmsnorm_add_partials_cpu(const double* partials, std::int64_t count, std::int64_t cols,
                              double* dgain) {
  add_partials(partials, count, cols, dgain);
}

}  // namespace k25::kernels::K25_ISA
