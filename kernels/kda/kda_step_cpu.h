#pragma once
// Private to kda: the steps of kda_step.h as the dispatcher hands them to the ISA build.

#include "kernels/kda/kda_cpu.h"

namespace k25::kernels {

/// T is the storage, A the arithmetic type. Units are sequence x value head pairs.
template <class T, class A>
struct KdaStepArgs {
  std::int64_t tokens = 0, heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
  A scale = 1;
  KdaHeads<const T> q, k, v;
  KdaHeads<const A> g, beta;
  KdaHeads<const A> logged_u;              ///< commit
  const std::int32_t* accepted = nullptr;  ///< commit
  KdaHeads<T> out;
  KdaHeads<A> u;              ///< verify
  KdaStates<const A> before;  ///< verify
  KdaStates<A> state;         ///< decode, commit
};

/// Scratch of one worker, in elements of the arithmetic type.
constexpr std::int64_t kda_step_scratch(std::int64_t key_dim, std::int64_t value_dim) {
  return 3 * key_dim + 3 * value_dim + key_dim * value_dim;
}

#define K25_KDA_STEP_DECLARE(T, A)                                                         \
  void kda_decode_cpu(const KdaStepArgs<T, A>& args, std::int64_t begin, std::int64_t end, \
                      A* scratch);                                                         \
  void kda_verify_cpu(const KdaStepArgs<T, A>& args, std::int64_t begin, std::int64_t end, \
                      A* scratch);                                                         \
  void kda_commit_cpu(const KdaStepArgs<T, A>& args, std::int64_t begin, std::int64_t end, \
                      A* scratch);
K25_ISA_DECLARE(K25_KDA_STEP_DECLARE(float, float) K25_KDA_STEP_DECLARE(BFloat16, float)
                    K25_KDA_STEP_DECLARE(double, double))
#undef K25_KDA_STEP_DECLARE

}  // namespace k25::kernels
