#pragma once
// The ISA kernels behind rmsnorm.h, for the rows [begin, end). Sums run in 32 lanes (element i in
// lane i mod 32, lanes added by halves), so all instruction sets give equal bits.

#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/core/isa.h"
#include "kernels/core/rows.h"

namespace k25::kernels {

/// gain, rstd and dgain point to float, for fp64 to double.
struct RmsNormForwardArgs {
  DType dtype;
  std::int64_t cols;
  double eps;
  ConstRows x;
  ConstRows residual;  ///< null data: none
  const void* gain;
  Rows sum;
  Rows y;
  void* rstd;
};

struct RmsNormBackwardArgs {
  DType dtype;
  std::int64_t cols;
  ConstRows dy;
  ConstRows sum;
  ConstRows d_sum;  ///< null data: none
  const void* gain;
  const void* rstd;
  Rows dx;
};

K25_ISA_DECLARE(void rmsnorm_forward_cpu(const RmsNormForwardArgs& args, std::int64_t begin,
                                         std::int64_t end);
                // Overwrites partial[0 .. cols) with these rows' contribution to dgain.
                void rmsnorm_backward_cpu(const RmsNormBackwardArgs& args, std::int64_t begin,
                                          std::int64_t end, void* partial);
                // dgain += partial[0] + partial[1] + ..., each of `cols` elements.
                void rmsnorm_add_partials_cpu(const float* partials, std::int64_t count,
                                              std::int64_t cols, float* dgain);
                void rmsnorm_add_partials_cpu(const double* partials, std::int64_t count,
                                              std::int64_t cols, double* dgain);)

}  // namespace k25::kernels
