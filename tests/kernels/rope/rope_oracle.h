#pragma once
// RoPE as the formula says it, in any scalar, and one test problem, for the CPU and the CUDA tests.

#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/rope/rope.h"
#include "tests/kernels/op_test.h"

namespace k25::rope_test {

using kernels::RopeDesc;
using op_test::GuardedTensor;
using op_test::Layout;
using op_test::random_tensor;

inline RopeDesc desc_of(std::int64_t rows, std::int64_t heads, std::int64_t head_dim,
                        DType dtype = DType::kFloat64) {
  RopeDesc d;
  d.rows = rows;
  d.heads = heads;
  d.head_dim = head_dim;
  d.max_position = 300;
  d.dtype = dtype;
  return d;
}

inline DType table_type(const RopeDesc& d) {
  return d.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
}

struct Problem {
  RopeDesc desc;
  GuardedTensor x, y, position, table;

  explicit Problem(const RopeDesc& d, Layout layout = {})
      : desc(d),
        x(random_tensor("x", d.dtype, {d.rows, d.heads, d.head_dim}, layout, -2, 2)),
        y(d.dtype, {d.rows, d.heads, d.head_dim}, layout),
        position(DType::kInt32, {d.rows}),
        table(table_type(d), {d.max_position, d.head_dim}, layout) {
    position.set(op_test::random_values("position", d.rows, 0, 299));
    kernels::rope_fill_table(d, table);
  }
  void forward(Context& ctx) {
    kernels::rope_forward(ctx, kernels::rope_plan(desc), {x, position, table}, {y}, {});
  }
  void backward(Context& ctx) {
    kernels::rope_backward(ctx, kernels::rope_plan(desc), {x, position, table}, {y}, {});
  }

  /// The formula in the scalar S; `turn` is 1 forward and -1 backward.
  template <class S>
  std::vector<double> naive(double turn) const {
    const std::int64_t half = desc.head_dim / 2;
    std::vector<double> out(static_cast<std::size_t>(x.count()));
    for (std::int64_t row = 0; row < desc.rows * desc.heads; ++row) {
      for (std::int64_t i = 0; i < half; ++i) {
        const double angle = turn * position.get(row / desc.heads) *
                             std::pow(desc.theta, -2.0 * static_cast<double>(i) /
                                                      static_cast<double>(desc.head_dim));
        const std::int64_t at = row * desc.head_dim + i;
        const S low(x.get(at)), high(x.get(at + half));
        const S c(std::cos(angle)), s(std::sin(angle));
        out[static_cast<std::size_t>(at)] = static_cast<double>(low * c - high * s);
        out[static_cast<std::size_t>(at + half)] = static_cast<double>(high * c + low * s);
      }
    }
    return out;
  }
};

}  // namespace k25::rope_test
