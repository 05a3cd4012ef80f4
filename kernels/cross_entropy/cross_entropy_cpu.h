#pragma once
// Private to cross_entropy: the softmax passes over one tile of logits.

#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/core/isa.h"

namespace k25::kernels {

/// Logits of one row tile and one vocabulary chunk, and what the rows know so far.
template <class A>
struct LogitTile {
  const A* z = nullptr;  ///< [rows, cols], dense
  std::int64_t cols = 0;
  std::int64_t first_class = 0;         ///< the class of column 0
  const std::int32_t* label = nullptr;  ///< [rows]
  A* max = nullptr;                     ///< [rows] largest logit so far
  A* sum = nullptr;                     ///< [rows] sum of exp(z - max) so far
  A* target = nullptr;                  ///< [rows] the label's logit, once its chunk has come
  std::int32_t* argmax = nullptr;       ///< [rows], or null
};

/// T is what dz is stored in, A the arithmetic type. All work on rows [begin, end) of the tile.
#define K25_CROSS_ENTROPY_DECLARE_ARITHMETIC(A)                                       \
  void softmax_chunk(const LogitTile<A>& tile, std::int64_t begin, std::int64_t end); \
  void softmax_finish(const LogitTile<A>& tile, A* nll, A* lse, std::int64_t begin,   \
                      std::int64_t end);
#define K25_CROSS_ENTROPY_DECLARE_STORAGE(T, A)                                           \
  void logit_gradients(const LogitTile<A>& tile, const A* lse, T* dz, std::int64_t begin, \
                       std::int64_t end);
K25_ISA_DECLARE(K25_CROSS_ENTROPY_DECLARE_ARITHMETIC(float)
                    K25_CROSS_ENTROPY_DECLARE_ARITHMETIC(double)
                        K25_CROSS_ENTROPY_DECLARE_STORAGE(float, float)
                            K25_CROSS_ENTROPY_DECLARE_STORAGE(BFloat16, float)
                                K25_CROSS_ENTROPY_DECLARE_STORAGE(double, double))
/// Rows [begin, end) of dst = src, rounded.
K25_ISA_DECLARE(void round_rows(const float* src, std::int64_t src_stride, BFloat16* dst,
                                std::int64_t dst_stride, std::int64_t cols, std::int64_t begin,
                                std::int64_t end);)
#undef K25_CROSS_ENTROPY_DECLARE_ARITHMETIC
#undef K25_CROSS_ENTROPY_DECLARE_STORAGE

}  // namespace k25::kernels
