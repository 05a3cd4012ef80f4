#pragma once
// Private to kernels/moe: the ISA kernels behind router.h, for the tokens [begin, end).

#include <cstdint>

#include "kernels/core/isa.h"
#include "kernels/core/rows.h"

namespace k25::kernels {

/// Chosen groups are bits of one word.
inline constexpr std::int64_t kMoeMaxGroups = 64;

/// T: float or double, of every matrix but the indices.
template <class T>
struct MoeRouterForwardArgs {
  std::int64_t experts, top_k, groups, top_groups;
  bool normalize;
  T scale;
  const T* logits;
  std::int64_t logits_stride;
  const T* bias;  ///< null: zero
  T* scores;
  std::int64_t scores_stride;
  T* weight;
  std::int64_t weight_stride;
  std::int32_t* index;
  std::int64_t index_stride;
};
template <class T>
struct MoeRouterBackwardArgs {
  std::int64_t experts, top_k;
  bool normalize;
  T scale;
  const T* dweight;
  std::int64_t dweight_stride;
  const T* scores;
  std::int64_t scores_stride;
  const T* dscores;  ///< null: zero
  std::int64_t dscores_stride;
  const std::int32_t* index;
  std::int64_t index_stride;
  T* dlogits;
  std::int64_t dlogits_stride;
};

#define K25_MOE_ROUTER_DECLARE(T)                                                        \
  void moe_router_forward_cpu(const MoeRouterForwardArgs<T>& args, std::int64_t begin,   \
                              std::int64_t end);                                         \
  void moe_router_backward_cpu(const MoeRouterBackwardArgs<T>& args, std::int64_t begin, \
                               std::int64_t end);
K25_ISA_DECLARE(K25_MOE_ROUTER_DECLARE(float) K25_MOE_ROUTER_DECLARE(double))
#undef K25_MOE_ROUTER_DECLARE

}  // namespace k25::kernels
