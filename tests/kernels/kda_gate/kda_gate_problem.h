#pragma once
// Gates by another formula; and one test problem.

#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/kda_gate/kda_gate.h"
#include "tests/kernels/op_test.h"

namespace k25::kernels::kda_gate_test {

using op_test::GuardedTensor;
using op_test::Layout;
using op_test::random_tensor;
using op_test::Scratch;

inline DType sum_dtype(DType t) { return t == DType::kFloat64 ? t : DType::kFloat32; }

enum class Kind { kSoftplus, kLowerBound, kLowerBoundWithoutA };
inline constexpr Kind kKinds[] = {Kind::kSoftplus, Kind::kLowerBound, Kind::kLowerBoundWithoutA};

struct Sizes {
  std::int64_t rows, heads, cols;
};

struct Problem {
  KdaGateDesc desc;
  Kind kind;
  GuardedTensor f, a_log, dt_bias, g, dg, df, da_log, ddt_bias;

  Problem(Kind k, Sizes s, DType dtype = DType::kFloat64, Layout layout = {})
      : desc{.rows = s.rows,
             .heads = s.heads,
             .cols = s.cols,
             .gate = k == Kind::kSoftplus ? KdaGate::kSoftplus : KdaGate::kLowerBound,
             .dtype = dtype},
        kind(k),
        f(random_tensor("f", dtype, {s.rows, s.heads, s.cols}, layout, -6, 6)),
        a_log(random_tensor("a_log", sum_dtype(dtype), {s.heads}, {}, -1, 2)),
        dt_bias(random_tensor("dt_bias", sum_dtype(dtype), {s.heads, s.cols}, {}, -4, 1)),
        g(sum_dtype(dtype), {s.rows, s.heads, s.cols}, layout),
        dg(random_tensor("dg", sum_dtype(dtype), {s.rows, s.heads, s.cols}, layout)),
        df(dtype, {s.rows, s.heads, s.cols}, layout),
        da_log(sum_dtype(dtype), {s.heads}),
        ddt_bias(sum_dtype(dtype), {s.heads, s.cols}) {
    da_log.fill(0);
    ddt_bias.fill(0);
  }

  ConstTensor rate() const {
    return kind == Kind::kLowerBoundWithoutA ? ConstTensor() : ConstTensor(a_log);
  }
  void forward(Context& ctx) const {
    kda_gate_forward(ctx, kda_gate_plan(desc), {f, rate(), dt_bias}, {g}, {});
  }
  void backward(Context& ctx) const {
    const KdaGatePlan plan = kda_gate_plan(desc);
    const Scratch scratch(plan.workspace_bytes);
    const Tensor da = kind == Kind::kLowerBoundWithoutA ? Tensor() : da_log.tensor();
    kda_gate_backward(ctx, plan, {dg, f, rate(), dt_bias}, {df, da, ddt_bias}, scratch.workspace());
  }
  /// Independent of the op: through log and tanh, in long double.
  std::vector<double> naive() const {
    std::vector<double> out;
    for (std::int64_t i = 0; i < f.count(); ++i) {
      const std::int64_t m = i / desc.cols % desc.heads;
      const long double x =
          f.get(i) + static_cast<long double>(dt_bias.get(m * desc.cols + i % desc.cols));
      const long double a =
          kind == Kind::kLowerBoundWithoutA ? 1 : std::exp(static_cast<long double>(a_log.get(m)));
      const long double y = kind == Kind::kSoftplus
                                ? -a * std::log(1 + std::exp(x))
                                : desc.lower_bound * (1 + std::tanh(a * x / 2)) / 2;
      out.push_back(static_cast<double>(y));
    }
    return out;
  }
};

}  // namespace k25::kernels::kda_gate_test
