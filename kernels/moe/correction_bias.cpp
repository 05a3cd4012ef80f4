#include "kernels/moe/correction_bias.h"

#include <cmath>
#include <string>

#include "kernels/core/operand.h"
#include "kernels/moe/moe_checks.h"

namespace k25::kernels {
namespace {

constexpr const char* kOp = "moe_update_correction_bias";

/// E times the mean count.
std::int64_t checked_sum(const std::int64_t* count, std::int64_t experts) {
  std::int64_t sum = 0, scaled = 0;
  for (std::int64_t e = 0; e < experts; ++e) {
    if (count[e] < 0) {
      fail(ErrorKind::kUsage, std::string(kOp) + ": the count of expert " + std::to_string(e) +
                                  " is " + std::to_string(count[e]) + "; counts are not negative");
    }
    if (__builtin_add_overflow(sum, count[e], &sum) ||
        __builtin_mul_overflow(sum, experts, &scaled)) {
      fail(ErrorKind::kUsage, std::string(kOp) + ": the counts of " + std::to_string(experts) +
                                  " experts overflow; update the bias more often");
    }
  }
  return sum;
}

template <class T>
void update(T* bias, const std::int64_t* count, std::int64_t experts, double rate) {
  const std::int64_t sum = checked_sum(count, experts);
  for (std::int64_t e = 0; e < experts; ++e) {
    const std::int64_t lack = sum - experts * count[e];
    if (lack != 0) bias[e] += static_cast<T>(lack > 0 ? rate : -rate);
  }
}

}  // namespace

void moe_update_correction_bias(const Tensor& bias_E, const ConstTensor& count_E, double rate) {
  const std::int64_t experts = bias_E.ndim() == 1 ? bias_E.dim(0) : 0;
  check_moe_routing_dtype(kOp, bias_E.dtype());
  check_operand(kOp, "bias_E", bias_E, bias_E.dtype(), {experts}, Density::kContiguous);
  check_operand(kOp, "count_E", count_E, DType::kInt64, {experts}, Density::kContiguous);
  if (!(std::isfinite(rate) && rate >= 0)) {
    fail(ErrorKind::kUsage, std::string(kOp) + ": rate is " + std::to_string(rate) +
                                ", it must be finite and not negative");
  }
  if (experts == 0) return;
  const auto* count = count_E.data<std::int64_t>();
  if (bias_E.dtype() == DType::kFloat64) {
    update(bias_E.data<double>(), count, experts, rate);
  } else {
    update(bias_E.data<float>(), count, experts, rate);
  }
}

}  // namespace k25::kernels
