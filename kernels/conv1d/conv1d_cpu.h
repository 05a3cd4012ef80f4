#pragma once
// Private to conv1d: what the dispatcher hands to the ISA build.

#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/core/isa.h"
#include "kernels/core/rows.h"
#include "kernels/sequences/sequence_view.h"

namespace k25::kernels {

/// One call, both directions. T is the storage, A the arithmetic type.
template <class T, class A>
struct Conv1dArgs {
  std::int64_t channels = 0, count = 0;  ///< count: sequences
  SequenceView sequences;
  StridedRows<const T> x, dy, initial, dfinal;
  const A* weight = nullptr;
  StridedRows<T> y, final, dx, dinitial;
  A* dweight = nullptr;  ///< null: not wanted
};

inline constexpr std::int64_t kConv1dChannels = 64;  ///< of a block

/// Forward: units [begin, end) of the sequence x block of channels pairs. Backward: blocks of
/// channels, each over all sequences.
#define K25_CONV1D_DECLARE(T, A)                                                               \
  void conv1d_forward_cpu(const Conv1dArgs<T, A>& args, std::int64_t begin, std::int64_t end); \
  void conv1d_backward_cpu(const Conv1dArgs<T, A>& args, std::int64_t begin, std::int64_t end);
K25_ISA_DECLARE(K25_CONV1D_DECLARE(float, float) K25_CONV1D_DECLARE(BFloat16, float)
                    K25_CONV1D_DECLARE(double, double))
#undef K25_CONV1D_DECLARE

}  // namespace k25::kernels
