#pragma once
// The ISA kernels behind l2norm.h, for the rows [begin, end). Sums run in 16 lanes.

#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/core/isa.h"

namespace k25::kernels {

/// A [N, H, D] view with dense D.
template <class T>
struct L2NormRows {
  T* data = nullptr;
  std::int64_t row_stride = 0, head_stride = 0;

  [[gnu::always_inline]] T* row(std::int64_t n, std::int64_t h) const {
    return data + n * row_stride + h * head_stride;
  }
};

/// T is the storage, A the arithmetic type. Forward: x to y and rstd. Backward: dy and y to dx.
template <class T, class A>
struct L2NormForwardArgs {
  std::int64_t heads, cols;
  A eps;
  L2NormRows<const T> x;
  L2NormRows<T> y;
  A* rstd;
};
template <class T, class A>
struct L2NormBackwardArgs {
  std::int64_t heads, cols;
  L2NormRows<const T> dy, y;
  const A* rstd;
  L2NormRows<T> dx;
};

#define K25_L2NORM_DECLARE(T, A)                                                     \
  void l2norm_forward_cpu(const L2NormForwardArgs<T, A>& args, std::int64_t begin,   \
                          std::int64_t end);                                         \
  void l2norm_backward_cpu(const L2NormBackwardArgs<T, A>& args, std::int64_t begin, \
                           std::int64_t end);
K25_ISA_DECLARE(K25_L2NORM_DECLARE(float, float) K25_L2NORM_DECLARE(BFloat16, float)
                    K25_L2NORM_DECLARE(double, double))
#undef K25_L2NORM_DECLARE

}  // namespace k25::kernels
