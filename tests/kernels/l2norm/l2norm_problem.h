#pragma once
// L2 norms in any scalar; and one test problem.

#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/l2norm/l2norm.h"
#include "tests/kernels/op_test.h"

namespace k25::kernels::l2norm_test {

using op_test::GuardedTensor;
using op_test::Layout;
using op_test::random_tensor;

inline DType sum_dtype(DType t) { return t == DType::kFloat64 ? t : DType::kFloat32; }

struct Sizes {
  std::int64_t rows, heads, cols;
};

struct Problem {
  L2NormDesc desc;
  GuardedTensor x, y, rstd, dy, dx;

  explicit Problem(Sizes s, DType dtype = DType::kFloat64, Layout layout = {})
      : desc{.rows = s.rows, .heads = s.heads, .cols = s.cols, .dtype = dtype},
        x(random_tensor("x", dtype, {s.rows, s.heads, s.cols}, layout, -2, 2)),
        y(dtype, {s.rows, s.heads, s.cols}, layout),
        rstd(sum_dtype(dtype), {s.rows, s.heads}),
        dy(random_tensor("dy", dtype, {s.rows, s.heads, s.cols}, layout)),
        dx(dtype, {s.rows, s.heads, s.cols}, layout) {}

  void forward(Context& ctx) const { l2norm_forward(ctx, l2norm_plan(desc), {x}, {y, rstd}, {}); }
  void backward(Context& ctx) const {
    l2norm_backward(ctx, l2norm_plan(desc), {dy, y, rstd}, {dx}, {});
  }
  template <class S>
  std::vector<double> naive() const {
    using std::sqrt;
    std::vector<double> out;
    for (std::int64_t r = 0; r < desc.rows * desc.heads; ++r) {
      S sum(0);
      for (std::int64_t i = 0; i < desc.cols; ++i) {
        const S v(x.get(r * desc.cols + i));
        sum += v * v;
      }
      for (std::int64_t i = 0; i < desc.cols; ++i) {
        out.push_back(static_cast<double>(S(x.get(r * desc.cols + i)) / sqrt(sum + S(desc.eps))));
      }
    }
    return out;
  }
};

}  // namespace k25::kernels::l2norm_test
