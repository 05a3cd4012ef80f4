#pragma once
// The ISA kernels behind l2norm.h, for the rows [begin, end). Sums run in 16 lanes.

#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/core/isa.h"
#include "kernels/core/rows.h"

namespace k25::kernels {

/// T is the storage, A the arithmetic type. Forward: x to y and rstd. Backward: dy and y to dx.
template <class T, class A>
struct L2NormForwardArgs {
  std::int64_t heads, cols;
  A eps;
  StridedRows<const T> x;
  StridedRows<T> y;
  A* rstd;
};
template <class T, class A>
struct L2NormBackwardArgs {
  std::int64_t heads, cols;
  StridedRows<const T> dy, y;
  const A* rstd;
  StridedRows<T> dx;
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
