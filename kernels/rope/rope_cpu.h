#pragma once
// Private to rope: what the dispatcher hands to the ISA build.

#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/core/isa.h"

namespace k25::kernels {

/// T is the storage, A the arithmetic type and that of the table.
template <class T, class A>
struct RopeArgs {
  std::int64_t heads = 0, head_dim = 0;
  const T* x = nullptr;
  std::int64_t x_row_stride = 0, x_head_stride = 0;
  T* y = nullptr;  ///< x itself, or apart from it
  std::int64_t y_row_stride = 0, y_head_stride = 0;
  const std::int32_t* position = nullptr;
  const A* table = nullptr;
  std::int64_t table_stride = 0;
  A direction = 1;  ///< 1 forward, -1 backward
};

/// Rows [begin, end).
#define K25_ROPE_DECLARE(T, A) \
  void rope_cpu(const RopeArgs<T, A>& args, std::int64_t begin, std::int64_t end);
K25_ISA_DECLARE(K25_ROPE_DECLARE(float, float) K25_ROPE_DECLARE(BFloat16, float)
                    K25_ROPE_DECLARE(double, double))
#undef K25_ROPE_DECLARE

}  // namespace k25::kernels
