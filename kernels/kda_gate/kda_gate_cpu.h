#pragma once
// The ISA kernels behind kda_gate.h, for the rows [begin, end). Sums run in 16 lanes.

#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/core/isa.h"

namespace k25::kernels {

/// A [N, M, K] view with dense K; [N, M] with K left out.
template <class T>
struct KdaGateRows {
  T* data = nullptr;
  std::int64_t row_stride = 0, head_stride = 0;

  [[gnu::always_inline]] T* row(std::int64_t n, std::int64_t m) const {
    return data + n * row_stride + m * head_stride;
  }
};

/// T is the storage, A the arithmetic type; both directions.
template <class T, class A>
struct KdaGateArgs {
  std::int64_t heads = 0, cols = 0;
  bool bounded = false;  ///< kLowerBound
  A lower_bound = 0;
  KdaGateRows<const T> f;
  KdaGateRows<const A> dg;
  const A* a_log = nullptr;  ///< null: a = 1
  const A* dt_bias = nullptr;
  KdaGateRows<A> g;
  KdaGateRows<T> df;
};
template <class T, class A>
struct KdaBetaArgs {
  std::int64_t heads = 0;
  A top = 1;  ///< 1 or 2
  KdaGateRows<const T> b;
  KdaGateRows<const A> dbeta;
  KdaGateRows<A> beta;
  KdaGateRows<T> db;
};

#define K25_KDA_GATE_DECLARE(T, A)                                                                \
  void kda_gate_forward_cpu(const KdaGateArgs<T, A>& args, std::int64_t begin, std::int64_t end); \
  /* Overwrites partial: these rows' ddt_bias [M, K], then da_log [M]. */                         \
  void kda_gate_backward_cpu(const KdaGateArgs<T, A>& args, std::int64_t begin, std::int64_t end, \
                             A* partial);                                                         \
  void kda_beta_forward_cpu(const KdaBetaArgs<T, A>& args, std::int64_t begin, std::int64_t end); \
  void kda_beta_backward_cpu(const KdaBetaArgs<T, A>& args, std::int64_t begin, std::int64_t end);
K25_ISA_DECLARE(K25_KDA_GATE_DECLARE(float, float) K25_KDA_GATE_DECLARE(BFloat16, float)
                    K25_KDA_GATE_DECLARE(double, double))
#undef K25_KDA_GATE_DECLARE

}  // namespace k25::kernels
