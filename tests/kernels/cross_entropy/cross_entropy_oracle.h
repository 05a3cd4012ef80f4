#pragma once
// Operands and the naive formula, shared by the CPU and the CUDA tests of cross-entropy.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/cross_entropy/cross_entropy.h"
#include "tests/kernels/op_test.h"

namespace k25::cross_entropy_test {

using kernels::Accumulate;
using kernels::cross_entropy_backward;
using kernels::cross_entropy_forward;
using kernels::cross_entropy_plan;
using kernels::CrossEntropyDesc;
using kernels::kIgnoredLabel;
using op_test::GuardedTensor;
using op_test::Layout;
using op_test::random_tensor;
using op_test::random_values;
using op_test::Scratch;

inline CrossEntropyDesc desc_of(std::int64_t rows, std::int64_t hidden, std::int64_t vocab,
                                DType dtype = DType::kFloat64, std::int64_t chunk = 0) {
  CrossEntropyDesc d;
  d.rows = rows;
  d.hidden = hidden;
  d.vocab = vocab;
  d.dtype = dtype;
  d.vocab_chunk = chunk;
  return d;
}

inline DType wide_type(const CrossEntropyDesc& d) {
  return d.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
}

struct Naive {
  std::vector<double> nll, lse, dx, dweight;
};

/// Operands of one problem; each fifth row carries no label.
struct Problem {
  CrossEntropyDesc desc;
  GuardedTensor x, weight, label, nll, lse, argmax, dx, dweight;

  explicit Problem(const CrossEntropyDesc& d, Layout layout = {})
      : desc(d),
        x(random_tensor("x", d.dtype, {d.rows, d.hidden}, layout, -2, 2)),
        weight(random_tensor("weight", d.dtype, {d.vocab, d.hidden}, layout)),
        label(DType::kInt32, {d.rows}),
        nll(wide_type(d), {d.rows}),
        lse(wide_type(d), {d.rows}),
        argmax(DType::kInt32, {d.rows}),
        dx(d.dtype, {d.rows, d.hidden}, layout),
        dweight(wide_type(d), {d.vocab, d.hidden}, layout) {
    label.set(random_values("label", d.rows, 0, static_cast<double>(d.vocab)));
    for (std::int64_t n = 4; n < d.rows; n += 5) label.set(n, kIgnoredLabel);
    dweight.fill(0.0);
  }
  void forward(Context& ctx) {
    const auto plan = cross_entropy_plan(desc);
    const Scratch scratch(plan.workspace_bytes);
    cross_entropy_forward(ctx, plan, {x, weight, label}, {nll, lse, argmax}, scratch.workspace());
  }
  void backward(Context& ctx, Accumulate mode = Accumulate::kAdd) {
    const auto plan = cross_entropy_plan(desc);
    const Scratch scratch(plan.workspace_bytes);
    cross_entropy_backward(ctx, plan, {x, weight, label, lse}, {dx, dweight, mode},
                           scratch.workspace());
  }
  void train(Context& ctx, Accumulate mode = Accumulate::kAdd) {
    const auto plan = cross_entropy_plan(desc);
    const Scratch scratch(plan.workspace_bytes);
    cross_entropy_train(ctx, plan, {x, weight, label}, {nll, lse, argmax, dx, dweight, mode},
                        scratch.workspace());
  }
  bool guards_intact() const {
    for (const GuardedTensor* t : {&x, &weight, &label, &nll, &lse, &argmax, &dx, &dweight}) {
      if (!t->guards_intact()) return false;
    }
    return true;
  }
  template <class S>
  Naive naive() const;
};

template <class S>
Naive Problem::naive() const {
  using std::exp;
  using std::log;
  const std::int64_t dim = desc.hidden, vocab = desc.vocab;
  const auto index = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  std::vector<S> gx(index(x.count()), S(0)), gw(index(weight.count()), S(0));
  Naive result;
  for (std::int64_t n = 0; n < desc.rows; ++n) {
    std::vector<S> z(index(vocab), S(0));
    double largest = -HUGE_VAL;
    for (std::int64_t v = 0; v < vocab; ++v) {
      for (std::int64_t i = 0; i < dim; ++i) {
        z[index(v)] += S(x.get(n * dim + i)) * S(weight.get(v * dim + i));
      }
      largest = std::max(largest, static_cast<double>(z[index(v)]));
    }
    S sum(0);
    for (const S& value : z) sum += exp(value - S(largest));
    const S total = S(largest) + log(sum);
    const auto target = static_cast<std::int64_t>(label.get(n));
    result.lse.push_back(static_cast<double>(total));
    result.nll.push_back(target < 0 ? 0.0 : static_cast<double>(total - z[index(target)]));
    for (std::int64_t v = 0; v < vocab && target >= 0; ++v) {
      const S dz = exp(z[index(v)] - total) - S(v == target ? 1.0 : 0.0);
      for (std::int64_t i = 0; i < dim; ++i) {
        gx[index(n * dim + i)] += dz * S(weight.get(v * dim + i));
        gw[index(v * dim + i)] += dz * S(x.get(n * dim + i));
      }
    }
  }
  for (const S& g : gx) result.dx.push_back(static_cast<double>(g));
  for (const S& g : gw) result.dweight.push_back(static_cast<double>(g));
  return result;
}

/// Logits (log 1, log 2, log 5): softmax (1, 2, 5) / 8.
inline Problem hand_computed() {
  Problem p(desc_of(2, 1, 3, DType::kFloat32, 2));
  p.x.set({1, 1});
  p.weight.set({0, std::log(2.0), std::log(5.0)});
  p.label.set({1, kIgnoredLabel});
  return p;
}

/// After both directions of hand_computed().
inline void expect_hand_computed(const Problem& p) {
  EXPECT_TRUE(op_test::all_near(p.lse.get(), {std::log(8.0), std::log(8.0)}, 1e-6));
  EXPECT_TRUE(op_test::all_near(p.nll.get(), {std::log(4.0), 0.0}, 1e-6));
  EXPECT_EQ(p.nll.get(1), 0.0);
  EXPECT_TRUE(op_test::all_near(p.argmax.get(), {2, 2}, 0));
  EXPECT_TRUE(op_test::all_near(p.dweight.get(), {0.125, -0.75, 0.625}, 1e-6));
  const double dx = -0.75 * std::log(2.0) + 0.625 * std::log(5.0);
  EXPECT_TRUE(op_test::all_near(p.dx.get(), {dx, 0.0}, 1e-6));
  EXPECT_EQ(p.dx.get(1), 0.0);
}

inline void expect_same_bits(const Problem& ours, const Problem& want) {
  EXPECT_EQ(ours.nll.bits(), want.nll.bits());
  EXPECT_EQ(ours.lse.bits(), want.lse.bits());
  EXPECT_EQ(ours.argmax.bits(), want.argmax.bits());
  EXPECT_EQ(ours.dx.bits(), want.dx.bits());
  EXPECT_EQ(ours.dweight.bits(), want.dweight.bits());
  EXPECT_TRUE(ours.guards_intact());
}

}  // namespace k25::cross_entropy_test
