#include "kernels/moe/experts.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "tests/kernels/op_test.h"

namespace k25::kernels {
namespace {

using op_test::all_near;
using op_test::GuardedTensor;
using op_test::low_precision_near;
using op_test::random_tensor;
using op_test::Scratch;
using op_test::throws_error;

DType sums_of(DType dtype) { return dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32; }

std::vector<double> offsets_of(const std::vector<std::int64_t>& counts) {
  std::vector<double> offset{0};
  for (const std::int64_t n : counts) offset.push_back(offset.back() + static_cast<double>(n));
  return offset;
}

struct Experts {
  Experts(const std::vector<std::int64_t>& counts, std::int64_t hidden, std::int64_t ffn,
          DType dtype, std::int64_t spare_rows = 0)
      : groups(static_cast<std::int64_t>(counts.size())),
        rows(static_cast<std::int64_t>(offsets_of(counts).back())),
        plan(moe_experts_plan({.experts = groups,
                               .max_rows = rows + spare_rows,
                               .hidden = hidden,
                               .ffn = ffn,
                               .dtype = dtype})),
        offset(DType::kInt64, {groups + 1}, offsets_of(counts)),
        x(random_tensor("x", dtype, {rows, hidden})),
        w_gate_up(random_tensor("gate_up", dtype, {groups, 2 * ffn, hidden})),
        w_down(random_tensor("down", dtype, {groups, hidden, ffn})),
        dy(random_tensor("dy", dtype, {rows, hidden})),
        y(dtype, {rows, hidden}),
        gate_up(dtype, {rows, 2 * ffn}),
        dx(dtype, {rows, hidden}),
        dw_gate_up(sums_of(dtype), {groups, 2 * ffn, hidden}),
        dw_down(sums_of(dtype), {groups, hidden, ffn}) {
    dw_gate_up.fill(0);
    dw_down.fill(0);
  }
  void forward(Context& ctx) const {
    const Scratch scratch(plan.workspace_bytes);
    moe_experts_forward(ctx, plan, {x, w_gate_up, w_down, offset}, {gate_up, y},
                        scratch.workspace());
  }
  void backward(Context& ctx) const {
    const Scratch scratch(plan.workspace_bytes);
    moe_experts_backward(ctx, plan, {dy, x, gate_up, w_gate_up, w_down, offset},
                         {dx, dw_gate_up, dw_down}, scratch.workspace());
  }

  std::int64_t groups, rows;
  MoeExpertsPlan plan;
  GuardedTensor offset, x, w_gate_up, w_down, dy, y, gate_up, dx, dw_gate_up, dw_down;
};

/// Both directions in a scalar S, row by row.
struct Naive {
  std::vector<double> y, dx, dw_gate_up, dw_down;
};

template <class S>
Naive naive(const Experts& p) {
  using std::exp;
  const std::int64_t hidden = p.plan.desc.hidden, ffn = p.plan.desc.ffn;
  const auto offset = p.offset.get();
  const auto at = [](const std::vector<double>& v, std::int64_t i) {
    return static_cast<S>(v[static_cast<std::size_t>(i)]);
  };
  const auto x = p.x.get(), up = p.w_gate_up.get(), down = p.w_down.get(), dy = p.dy.get();
  Naive out{std::vector<double>(x.size()), std::vector<double>(x.size()), {}, {}};
  std::vector<S> d_up(up.size(), S(0)), d_down(down.size(), S(0));
  std::int64_t e = 0;
  for (std::int64_t r = 0; r < p.rows; ++r) {
    while (static_cast<double>(r) >= offset[static_cast<std::size_t>(e + 1)]) ++e;
    std::vector<S> y(static_cast<std::size_t>(hidden), S(0)), dx = y;
    for (std::int64_t f = 0; f < ffn; ++f) {
      const std::int64_t gate_row = (e * 2 * ffn + f) * hidden,
                         up_row = (e * 2 * ffn + ffn + f) * hidden;
      S gate = 0, value = 0, da = 0;
      for (std::int64_t i = 0; i < hidden; ++i) {
        gate += at(up, gate_row + i) * at(x, r * hidden + i);
        value += at(up, up_row + i) * at(x, r * hidden + i);
        da += at(down, (e * hidden + i) * ffn + f) * at(dy, r * hidden + i);
      }
      const S one = 1, s = one / (one + exp(-gate)), act = gate * s * value;
      const S d_gate = da * value * (s * (one + gate * (one - s))), d_value = da * (gate * s);
      for (std::int64_t i = 0; i < hidden; ++i) {
        const auto d = static_cast<std::size_t>(i);
        y[d] += at(down, (e * hidden + i) * ffn + f) * act;
        d_down[static_cast<std::size_t>((e * hidden + i) * ffn + f)] +=
            at(dy, r * hidden + i) * act;
        dx[d] += at(up, gate_row + i) * d_gate;
        dx[d] += at(up, up_row + i) * d_value;
        d_up[static_cast<std::size_t>(gate_row + i)] += at(x, r * hidden + i) * d_gate;
        d_up[static_cast<std::size_t>(up_row + i)] += at(x, r * hidden + i) * d_value;
      }
    }
    for (std::int64_t i = 0; i < hidden; ++i) {
      out.y[static_cast<std::size_t>(r * hidden + i)] =
          static_cast<double>(y[static_cast<std::size_t>(i)]);
      out.dx[static_cast<std::size_t>(r * hidden + i)] =
          static_cast<double>(dx[static_cast<std::size_t>(i)]);
    }
  }
  for (const S v : d_up) out.dw_gate_up.push_back(static_cast<double>(v));
  for (const S v : d_down) out.dw_down.push_back(static_cast<double>(v));
  return out;
}

TEST(MoeExperts, HandComputed) {
  op_test::for_each_isa([](Context& ctx) {
    Experts p({0, 1}, 1, 1, DType::kFloat64);
    p.x.set({2});
    p.w_gate_up.set({9, 9, 0.5, 3});
    p.w_down.set({9, 10});
    p.forward(ctx);
    const double silu = 1 / (1 + std::exp(-1.0));
    EXPECT_TRUE(all_near(p.gate_up.get(), {1, 6}, 1e-15));
    EXPECT_TRUE(all_near(p.y.get(), {silu * 6 * 10}, 1e-14));
  });
}

TEST(MoeExperts, GradientsMatchFiniteDifferences) {
  op_test::for_each_isa([](Context& ctx) {
    for (const auto& counts : std::vector<std::vector<std::int64_t>>{{2, 0, 3}, {1}, {0, 0, 4}}) {
      Experts p(counts, 3, 4, DType::kFloat64, 5);
      p.forward(ctx);
      p.backward(ctx);
      const auto loss = [&] {
        p.forward(ctx);
        return op_test::weighted_sum(p.dy.get(), p.y.get());
      };
      EXPECT_TRUE(op_test::gradient_near(p.x, p.dx.get(), loss));
      EXPECT_TRUE(op_test::gradient_near(p.w_gate_up, p.dw_gate_up.get(), loss));
      EXPECT_TRUE(op_test::gradient_near(p.w_down, p.dw_down.get(), loss));
    }
  });
}

template <class Low>
void expect_low_precision(DType dtype, double floor) {
  Experts p({17, 0, 40, 3}, 24, 33, dtype);
  const Naive low = naive<Low>(p), ref = naive<double>(p);
  op_test::for_each_context([&](Context& ctx) {
    p.dw_gate_up.fill(0);
    p.dw_down.fill(0);
    p.forward(ctx);
    p.backward(ctx);
    EXPECT_TRUE(low_precision_near(p.y.get(), low.y, ref.y, floor));
    EXPECT_TRUE(low_precision_near(p.dx.get(), low.dx, ref.dx, floor));
    EXPECT_TRUE(low_precision_near(p.dw_gate_up.get(), low.dw_gate_up, ref.dw_gate_up, floor));
    EXPECT_TRUE(low_precision_near(p.dw_down.get(), low.dw_down, ref.dw_down, floor));
  });
}
TEST(MoeExperts, Fp32) { expect_low_precision<float>(DType::kFloat32, 1e-6); }
TEST(MoeExperts, Bf16) { expect_low_precision<op_test::NaiveBf16>(DType::kBFloat16, 1e-3); }

TEST(MoeExperts, MatchesTheDefinition) {
  op_test::for_each_context([](Context& ctx) {
    const Experts p({300, 0, 7, 1, 0}, 5, 6, DType::kFloat64, 11);
    p.forward(ctx);
    p.backward(ctx);
    const Naive expected = naive<double>(p);
    EXPECT_TRUE(all_near(p.y.get(), expected.y, 1e-13));
    EXPECT_TRUE(all_near(p.dx.get(), expected.dx, 1e-13));
    EXPECT_TRUE(all_near(p.dw_gate_up.get(), expected.dw_gate_up, 1e-12));
    EXPECT_TRUE(all_near(p.dw_down.get(), expected.dw_down, 1e-12));
  });
}

TEST(MoeExperts, NoRowsAtAllAddNothing) {
  Context ctx = op_test::make_context();
  const Experts p({0, 0}, 4, 3, DType::kFloat32, 9);
  p.forward(ctx);
  p.backward(ctx);
  EXPECT_EQ(p.dw_gate_up.get(), std::vector<double>(48, 0.0));
  EXPECT_EQ(p.dw_down.get(), std::vector<double>(24, 0.0));
}

TEST(MoeExperts, RefusesWhatDoesNotFit) {
  Context ctx = op_test::make_context();
  EXPECT_TRUE(
      throws_error([] { moe_experts_plan({.experts = 2, .max_rows = 1, .hidden = 4, .ffn = 0}); },
                   ErrorKind::kUsage, {"moe_experts", "ffn 0"}));
  Experts p({2, 3}, 4, 3, DType::kFloat32);
  p.plan = moe_experts_plan({.experts = 2, .max_rows = 4, .hidden = 4, .ffn = 3});
  EXPECT_TRUE(throws_error([&] { p.forward(ctx); }, ErrorKind::kUsage,
                           {"x_RD has 5 rows, the plan is for at most 4"}));
}

}  // namespace
}  // namespace k25::kernels
