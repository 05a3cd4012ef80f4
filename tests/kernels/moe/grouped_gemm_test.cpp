#include "kernels/moe/grouped_gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string_view>
#include <vector>

#include "kernels/gemm/gemm.h"
#include "tests/kernels/op_test.h"

namespace k25::kernels {
namespace {

using op_test::all_near;
using op_test::GuardedTensor;
using op_test::random_tensor;
using op_test::Scratch;
using op_test::throws_error;

DType sums_of(DType dtype) { return dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32; }

/// Ragged: none at all, empty groups first, last and between, one group only, a large one among
/// small ones.
const std::vector<std::vector<std::int64_t>> kCounts = {
    {0, 0, 0},
    {5},
    {0, 3, 0, 0, 7, 1, 0},
    {kGroupedGemmLarge + 1, 2, kGroupedGemmLarge, 0},
    {1, 1, 1, 1, 1},
    {0, 9},
    {kGroupedGemmLarge - 1, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}};

std::vector<double> offsets_of(const std::vector<std::int64_t>& counts) {
  std::vector<double> offset{0};
  for (const std::int64_t n : counts) offset.push_back(offset.back() + static_cast<double>(n));
  return offset;
}

struct Problem {
  Problem(const std::vector<std::int64_t>& c, std::int64_t n, std::int64_t k, DType dtype,
          op_test::Layout layout = {}, std::int64_t spare_rows = 0)
      : counts(c),
        groups(static_cast<std::int64_t>(c.size())),
        rows(static_cast<std::int64_t>(offsets_of(c).back())),
        plan(grouped_gemm_plan(
            {.groups = groups, .max_rows = rows + spare_rows, .n = n, .k = k, .dtype = dtype})),
        offset(DType::kInt64, {groups + 1}, offsets_of(c)),
        x(random_tensor("x", dtype, {rows, k}, layout)),
        weight(random_tensor("weight", dtype, {groups, n, k}, layout)),
        dy(random_tensor("dy", dtype, {rows, n}, layout)),
        y(dtype, {rows, n}, layout),
        dx(dtype, {rows, k}, layout),
        dweight(random_tensor("dweight", sums_of(dtype), {groups, n, k}, layout)) {}

  void forward(Context& ctx) const {
    const Scratch scratch(plan.workspace_bytes);
    grouped_gemm_forward(ctx, plan, {x, weight, offset}, {y}, scratch.workspace());
  }
  void backward(Context& ctx) const {
    const Scratch scratch(plan.workspace_bytes);
    grouped_gemm_backward(ctx, plan, {dy, x, weight, offset}, {dx, dweight}, scratch.workspace());
  }

  std::vector<std::int64_t> counts;
  std::int64_t groups, rows;
  GroupedGemmPlan plan;
  GuardedTensor offset, x, weight, dy, y, dx, dweight;
};

TEST(GroupedGemm, HandComputed) {
  op_test::for_each_isa([](Context& ctx) {
    Problem p({2, 0, 1}, 1, 2, DType::kFloat32);
    p.x.set({1, 2, 3, 4, 5, 6});
    p.weight.set({1, 10, 100, 100, -1, 2});
    p.dy.set({1, 2, 3});
    p.dweight.fill(0.5);
    p.forward(ctx);
    p.backward(ctx);
    EXPECT_EQ(p.y.get(), (std::vector<double>{21, 43, 7}));
    EXPECT_EQ(p.dx.get(), (std::vector<double>{1, 10, 2, 20, -3, 6}));
    EXPECT_EQ(p.dweight.get(), (std::vector<double>{7.5, 10.5, 0.5, 0.5, 15.5, 18.5}));
  });
}

TEST(GroupedGemm, MatchesTheDefinition) {
  op_test::for_each_context([](Context& ctx) {
    for (const auto& counts : kCounts) {
      const std::int64_t n = 5, k = 7;
      Problem p(counts, n, k, DType::kFloat64, {3, 1});
      const auto x = p.x.get(), w = p.weight.get(), dy = p.dy.get();
      std::vector<double> y(dy.size()), dx(x.size()), dweight = p.dweight.get();
      std::int64_t r = 0;
      for (std::int64_t e = 0; e < p.groups; ++e) {
        for (std::int64_t end = r + counts[static_cast<std::size_t>(e)]; r < end; ++r) {
          for (std::int64_t i = 0; i < n; ++i) {
            for (std::int64_t j = 0; j < k; ++j) {
              const auto at = static_cast<std::size_t>((e * n + i) * k + j);
              const auto to = static_cast<std::size_t>(r * n + i);
              const auto from = static_cast<std::size_t>(r * k + j);
              y[to] += w[at] * x[from];
              dx[from] += w[at] * dy[to];
              dweight[at] += dy[to] * x[from];
            }
          }
        }
      }
      p.forward(ctx);
      p.backward(ctx);
      EXPECT_TRUE(all_near(p.y.get(), y, 1e-13));
      EXPECT_TRUE(all_near(p.dx.get(), dx, 1e-13));
      EXPECT_TRUE(all_near(p.dweight.get(), dweight, 1e-13));
      EXPECT_TRUE(p.y.guards_intact() && p.dx.guards_intact() && p.dweight.guards_intact());
    }
  });
}

TEST(GroupedGemm, GradientsMatchFiniteDifferences) {
  op_test::for_each_isa([](Context& ctx) {
    Problem p({2, 0, 3}, 3, 4, DType::kFloat64);
    p.dweight.fill(0);
    p.backward(ctx);
    const auto loss = [&] {
      p.forward(ctx);
      return op_test::weighted_sum(p.dy.get(), p.y.get());
    };
    EXPECT_TRUE(op_test::gradient_near(p.x, p.dx.get(), loss));
    EXPECT_TRUE(op_test::gradient_near(p.weight, p.dweight.get(), loss));
  });
}

// Whatever the groups around it, with any spare rows in the plan and any number of threads: the
// bits of the repo's product of the group alone.
TEST(GroupedGemm, BitsAreThoseOfEachProductAlone) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    op_test::for_each_context([&](Context& ctx) {
      for (const auto& counts : kCounts) {
        const std::int64_t n = 33, k = 70;
        const Problem p(counts, n, k, dtype, {3, 5}, 77), alone(counts, n, k, dtype);
        p.forward(ctx);
        p.backward(ctx);
        Context single = op_test::make_context(ctx.isa);
        const auto* offset = alone.offset.tensor().data<std::int64_t>();
        for (std::int64_t e = 0; e < p.groups; ++e) {
          const std::int64_t begin = offset[e], end = offset[e + 1];
          const auto product = [&](GemmDesc d, const ConstTensor& a, const ConstTensor& b,
                                   const Tensor& to) {
            d.dtype_ab = dtype;
            d.dtype_d = to.dtype();
            const GemmPlan plan = gemm_plan(d);
            const Scratch scratch(plan.workspace_bytes);
            gemm_forward(single, plan, {a, b}, {to}, scratch.workspace());
          };
          const Tensor weight = alone.weight.tensor().select(0, e);
          product({.m = end - begin, .n = n, .k = k, .transpose_b = Transpose::kYes},
                  alone.x.tensor().slice(0, begin, end), weight,
                  alone.y.tensor().slice(0, begin, end));
          product({.m = end - begin, .n = k, .k = n}, alone.dy.tensor().slice(0, begin, end),
                  weight, alone.dx.tensor().slice(0, begin, end));
          product({.m = n,
                   .n = k,
                   .k = end - begin,
                   .transpose_a = Transpose::kYes,
                   .accumulate = Accumulate::kAdd},
                  alone.dy.tensor().slice(0, begin, end), alone.x.tensor().slice(0, begin, end),
                  alone.dweight.tensor().select(0, e));
        }
        EXPECT_EQ(p.y.bits(), alone.y.bits());
        EXPECT_EQ(p.dx.bits(), alone.dx.bits());
        EXPECT_EQ(p.dweight.bits(), alone.dweight.bits());
      }
    });
  }
}

TEST(GroupedGemm, EachGradientIsOptional) {
  Context ctx = op_test::make_context();
  const Problem both({3, 0, 4}, 5, 6, DType::kFloat32), one(both.counts, 5, 6, DType::kFloat32);
  both.backward(ctx);
  const Scratch scratch(one.plan.workspace_bytes);
  grouped_gemm_backward(ctx, one.plan, {one.dy, {}, one.weight, one.offset}, {one.dx, {}},
                        scratch.workspace());
  grouped_gemm_backward(ctx, one.plan, {one.dy, one.x, {}, one.offset}, {{}, one.dweight},
                        scratch.workspace());
  EXPECT_EQ(one.dx.bits(), both.dx.bits());
  EXPECT_EQ(one.dweight.bits(), both.dweight.bits());
}

// NaN in the weights of a group without rows, and in the rows of a neighbour, touches nothing else.
TEST(GroupedGemm, NanStaysInItsGroup) {
  Context ctx = op_test::make_context();
  Problem p({3, 0, 4, 2}, 5, 6, DType::kFloat32);
  for (std::int64_t i = 30; i < 60; ++i) p.weight.set(i, std::nan(""));
  p.x.set(8 * 6, std::nan(""));
  p.dy.set(8 * 5, std::nan(""));
  p.forward(ctx);
  p.backward(ctx);
  for (std::int64_t i = 0; i < 45; ++i) EXPECT_EQ(std::isnan(p.y.get(i)), i >= 40) << i;
  for (std::int64_t i = 0; i < 54; ++i) EXPECT_EQ(std::isnan(p.dx.get(i)), i >= 48) << i;
  for (std::int64_t i = 0; i < 90; ++i) EXPECT_FALSE(std::isnan(p.dweight.get(i))) << i;
}

TEST(GroupedGemm, RefusesWhatDoesNotFit) {
  Context ctx = op_test::make_context();
  const ErrorKind usage = ErrorKind::kUsage;
  EXPECT_TRUE(throws_error([] { grouped_gemm_plan({.groups = 0, .max_rows = 1, .n = 1, .k = 1}); },
                           usage, {"grouped_gemm", "groups is 0"}));
  EXPECT_TRUE(throws_error([] { grouped_gemm_plan({.groups = 1, .max_rows = -1, .n = 1, .k = 1}); },
                           usage, {"max_rows -1"}));
  EXPECT_TRUE(throws_error(
      [] {
        grouped_gemm_plan({.groups = 1, .max_rows = 1, .n = 1, .k = 1, .device = Device::kCuda});
      },
      usage, {"planned for the GPU"}));
  Problem p({3, 0, 4}, 5, 6, DType::kFloat32);
  const auto with_offsets = [&](const std::vector<double>& values, std::string_view part) {
    p.offset.set(values);
    return throws_error([&] { p.forward(ctx); }, usage, {part}) &&
           throws_error([&] { p.backward(ctx); }, usage, {part});
  };
  EXPECT_TRUE(with_offsets({1, 3, 3, 7}, "group 0 at rows 1 to 3"));
  EXPECT_TRUE(with_offsets({0, 4, 3, 7}, "group 1 at rows 4 to 3"));
  EXPECT_TRUE(with_offsets({0, 3, 9, 7}, "group 1 at rows 3 to 9"));
  EXPECT_TRUE(with_offsets({0, 3, 3, 6}, "offset_B ends at 6, there are 7 rows"));
  EXPECT_TRUE(with_offsets({0, -1, 3, 7}, "group 0 at rows 0 to -1"));
  p.offset.set(offsets_of(p.counts));
  p.plan = grouped_gemm_plan({.groups = 3, .max_rows = 6, .n = 5, .k = 6});
  EXPECT_TRUE(throws_error([&] { p.forward(ctx); }, usage, {"7 rows, the plan is for at most 6"}));
  p.plan = grouped_gemm_plan({.groups = 3, .max_rows = 7, .n = 5, .k = 6});
  EXPECT_TRUE(
      throws_error([&] { grouped_gemm_forward(ctx, p.plan, {p.x, p.weight, p.offset}, {p.y}, {}); },
                   usage, {"workspace"}));
}

}  // namespace
}  // namespace k25::kernels
