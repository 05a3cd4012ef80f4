#pragma once
// Private to kernels/moe: the ISA kernels behind balance.h, for tokens [begin, end) of one
// sequence.

#include <cstdint>

#include "kernels/core/isa.h"

namespace k25::kernels {

/// T: float or double.
template <class T>
struct MoeBalanceArgs {
  std::int64_t experts;
  T coefficient;
  const T* scores;
  std::int64_t scores_stride;
  const T* fraction;  ///< [E], of the sequence
  T* loss;            ///< null: not wanted
  T* dscores;         ///< null: not wanted
  std::int64_t dscores_stride;
};

K25_ISA_DECLARE(void moe_balance_cpu(const MoeBalanceArgs<float>& args, std::int64_t begin,
                                     std::int64_t end);
                void moe_balance_cpu(const MoeBalanceArgs<double>& args, std::int64_t begin,
                                     std::int64_t end);)

}  // namespace k25::kernels
