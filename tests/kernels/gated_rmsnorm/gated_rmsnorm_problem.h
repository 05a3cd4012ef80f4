#pragma once
// Gated norms in any scalar; and one test problem.

#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/gated_rmsnorm/gated_rmsnorm.h"
#include "tests/kernels/op_test.h"

namespace k25::kernels::gated_rmsnorm_test {

using op_test::GuardedTensor;
using op_test::Layout;
using op_test::random_tensor;
using op_test::Scratch;

inline DType sum_dtype(DType t) { return t == DType::kFloat64 ? t : DType::kFloat32; }

struct Sizes {
  std::int64_t rows, heads, cols;
};

struct Problem {
  GatedRmsNormDesc desc;
  GuardedTensor x, gate, gain, y, rstd, dy, dx, dgate, dgain;

  explicit Problem(Sizes s, DType dtype = DType::kFloat64, Layout layout = {})
      : desc{.rows = s.rows, .heads = s.heads, .cols = s.cols, .dtype = dtype},
        x(random_tensor("x", dtype, {s.rows, s.heads, s.cols}, layout, -2, 2)),
        gate(random_tensor("gate", dtype, {s.rows, s.heads, s.cols}, layout, -3, 3)),
        gain(random_tensor("gain", sum_dtype(dtype), {s.cols}, {}, 0.5, 1.5)),
        y(dtype, {s.rows, s.heads, s.cols}, layout),
        rstd(sum_dtype(dtype), {s.rows, s.heads}),
        dy(random_tensor("dy", dtype, {s.rows, s.heads, s.cols}, layout)),
        dx(dtype, {s.rows, s.heads, s.cols}, layout),
        dgate(dtype, {s.rows, s.heads, s.cols}, layout),
        dgain(sum_dtype(dtype), {s.cols}) {
    dgain.fill(0);
  }

  void forward(Context& ctx) const {
    gated_rmsnorm_forward(ctx, gated_rmsnorm_plan(desc), {x, gate, gain}, {y, rstd}, {});
  }
  void backward(Context& ctx) const {
    const GatedRmsNormPlan plan = gated_rmsnorm_plan(desc);
    const Scratch scratch(plan.workspace_bytes);
    gated_rmsnorm_backward(ctx, plan, {dy, x, gate, gain, rstd}, {dx, dgate, dgain},
                           scratch.workspace());
  }
  template <class S>
  std::vector<double> naive() const {
    using std::exp;
    using std::sqrt;
    std::vector<double> out;
    for (std::int64_t r = 0; r < desc.rows * desc.heads; ++r) {
      S sum(0);
      for (std::int64_t i = 0; i < desc.cols; ++i) {
        const S v(x.get(r * desc.cols + i));
        sum += v * v;
      }
      const S root = sqrt(sum / S(static_cast<double>(desc.cols)) + S(desc.eps));
      for (std::int64_t i = 0; i < desc.cols; ++i) {
        const S s = S(1) / (S(1) + exp(-S(gate.get(r * desc.cols + i))));
        out.push_back(static_cast<double>(S(x.get(r * desc.cols + i)) / root * S(gain.get(i)) * s));
      }
    }
    return out;
  }
};

}  // namespace k25::kernels::gated_rmsnorm_test
