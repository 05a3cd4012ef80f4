#pragma once
// The ISA kernels behind kda_gate.h, for the rows [begin, end). Sums run in 16 lanes.

#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/core/isa.h"
#include "kernels/core/rows.h"

namespace k25::kernels {

/// T is the storage, A the arithmetic type; both directions.
template <class T, class A>
struct KdaGateArgs {
  std::int64_t heads = 0, cols = 0;
  bool bounded = false;  ///< kLowerBound
  A lower_bound = 0;
  StridedRows<const T> f;
  StridedRows<const A> dg;
  const A* a_log = nullptr;  ///< null: a = 1
  const A* dt_bias = nullptr;
  StridedRows<A> g;
  StridedRows<T> df;
};
template <class T, class A>
struct KdaBetaArgs {
  std::int64_t heads = 0;
  A top = 1;  ///< 1 or 2
  StridedRows<const T> b;
  StridedRows<const A> dbeta;
  StridedRows<A> beta;
  StridedRows<T> db;
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
