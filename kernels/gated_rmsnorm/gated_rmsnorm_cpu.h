#pragma once
// The ISA kernels behind gated_rmsnorm.h, for the rows [begin, end). Sums run in 16 lanes.

#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/core/isa.h"
#include "kernels/core/rows.h"

namespace k25::kernels {

/// T is the storage, A the arithmetic type; both directions.
template <class T, class A>
struct GatedRmsNormArgs {
  std::int64_t heads = 0, cols = 0;
  A eps = 0;
  StridedRows<const T> x, gate, dy;
  const A* gain = nullptr;
  A* rstd = nullptr;              ///< written by forward
  const A* saved_rstd = nullptr;  ///< read by backward
  StridedRows<T> y, dx, dgate;
};

#define K25_GATED_RMSNORM_DECLARE(T, A)                                                   \
  void gated_rmsnorm_forward_cpu(const GatedRmsNormArgs<T, A>& args, std::int64_t begin,  \
                                 std::int64_t end);                                       \
  /* Overwrites partial[0 .. cols) with these rows' contribution to dgain. */             \
  void gated_rmsnorm_backward_cpu(const GatedRmsNormArgs<T, A>& args, std::int64_t begin, \
                                  std::int64_t end, A* partial);
K25_ISA_DECLARE(K25_GATED_RMSNORM_DECLARE(float, float) K25_GATED_RMSNORM_DECLARE(BFloat16, float)
                    K25_GATED_RMSNORM_DECLARE(double, double))
#undef K25_GATED_RMSNORM_DECLARE

}  // namespace k25::kernels
