#include "kernels/moe/balance_cpu.h"

#include "kernels/core/vector_math.h"

namespace k25::kernels::K25_ISA {
namespace {

/// As in the router: a token whose scores are all 0 has shares of 0, not NaN.
constexpr double kTiny = 1e-20;

/// sum_i x_i y_i in the lanes of row_sum.
template <class T>
T product(const T* x, const T* y, std::int64_t n) {
  alignas(64) T lanes[kReduceLanes] = {};
  std::int64_t i = 0;
  for (; i + kReduceLanes <= n; i += kReduceLanes) {
    for (std::int64_t lane = 0; lane < kReduceLanes; ++lane)
      lanes[lane] += x[i + lane] * y[i + lane];
  }
  for (std::int64_t lane = 0; i < n; ++i, ++lane) lanes[lane] += x[i] * y[i];
  return row_sum(lanes, kReduceLanes);
}

template <class T>
void balance(const MoeBalanceArgs<T>& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t n = begin; n < end; ++n) {
    const T* const s = a.scores + n * a.scores_stride;
    const T sum = row_sum(s, a.experts) + static_cast<T>(kTiny);
    const T mean = product(s, a.fraction, a.experts) / sum;
    if (a.loss != nullptr) a.loss[n] = a.coefficient * mean;
    if (a.dscores == nullptr) continue;
    T* const ds = a.dscores + n * a.dscores_stride;
    for (std::int64_t i = 0; i < a.experts; ++i) {
      ds[i] = a.coefficient * (a.fraction[i] - mean) / sum;
    }
  }
}

}  // namespace

void moe_balance_cpu(const MoeBalanceArgs<float>& args, std::int64_t begin, std::int64_t end) {
  balance(args, begin, end);
}
void moe_balance_cpu(const MoeBalanceArgs<double>& args, std::int64_t begin, std::int64_t end) {
  balance(args, begin, end);
}

}  // namespace k25::kernels::K25_ISA
