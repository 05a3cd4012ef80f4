// Permute and combine: each the adjoint of the other, so they are tested together.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/moe/combine.h"
#include "kernels/moe/permute.h"
#include "tests/kernels/op_test.h"

namespace k25::kernels {
namespace {

using op_test::all_near;
using op_test::GuardedTensor;
using op_test::random_tensor;
using op_test::throws_error;

struct Shape {
  std::int64_t tokens, experts, top_k, hidden;
};

/// One expert, all experts chosen, far more experts than rows (most get none), widths round a tile.
const std::vector<Shape> kShapes = {{0, 4, 2, 8},  {1, 1, 1, 1},   {5, 3, 3, 7},   {33, 4, 2, 16},
                                    {6, 64, 2, 5}, {70, 8, 3, 17}, {9, 4, 2, 255}, {9, 4, 2, 257}};

/// Distinct experts for each token, skewed: low experts get more, the highest none in most shapes.
std::vector<double> choices(const Shape& s) {
  const auto random = op_test::random_values("choices", s.tokens * s.experts, 0, 1);
  std::vector<double> index;
  for (std::int64_t n = 0; n < s.tokens; ++n) {
    std::vector<std::pair<double, std::int64_t>> order;
    for (std::int64_t e = 0; e < s.experts; ++e) {
      const double u = random[static_cast<std::size_t>(n * s.experts + e)];
      order.emplace_back(u + 0.3 * static_cast<double>(e), e);
    }
    std::sort(order.begin(), order.end());
    std::vector<double> chosen;
    for (std::int64_t k = 0; k < s.top_k; ++k) {
      chosen.push_back(static_cast<double>(order[static_cast<std::size_t>(k)].second));
    }
    std::sort(chosen.begin(), chosen.end());
    index.insert(index.end(), chosen.begin(), chosen.end());
  }
  return index;
}

DType weights_of(DType dtype) {
  return dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
}

struct Problem {
  Problem(const Shape& shape, DType dtype, op_test::Layout layout = {})
      : s(shape),
        permute(moe_permute_plan({.tokens = s.tokens,
                                  .experts = s.experts,
                                  .top_k = s.top_k,
                                  .hidden = s.hidden,
                                  .dtype = dtype})),
        combine(moe_combine_plan(
            {.tokens = s.tokens, .top_k = s.top_k, .hidden = s.hidden, .dtype = dtype})),
        index(DType::kInt32, {s.tokens, s.top_k}, choices(s), layout),
        count(DType::kInt64, {s.experts}),
        offset(DType::kInt64, {s.experts + 1}),
        row(DType::kInt32, {s.tokens, s.top_k}, layout),
        choice(DType::kInt32, {permute.rows}),
        x(random_tensor("x", dtype, {s.tokens, s.hidden}, layout)),
        rows(random_tensor("rows", dtype, {permute.rows, s.hidden}, layout)),
        weight(random_tensor("weight", weights_of(dtype), {s.tokens, s.top_k}, layout)),
        y(dtype, {s.tokens, s.hidden}, layout),
        dx(dtype, {s.tokens, s.hidden}, layout),
        permuted(dtype, {permute.rows, s.hidden}, layout),
        drows(dtype, {permute.rows, s.hidden}, layout),
        dweight(weights_of(dtype), {s.tokens, s.top_k}, layout) {}

  void sort(Context& ctx) const {
    moe_sort(ctx, permute, {index}, {count, offset, row, choice}, {});
  }
  void forward(Context& ctx) const {
    moe_permute_forward(ctx, permute, {x, choice}, {permuted}, {});
    moe_combine_forward(ctx, combine, {rows, weight, row}, {y}, {});
  }
  /// With the gradient of the combined tokens in x, that of the permuted rows in `rows`.
  void backward(Context& ctx) const {
    moe_permute_backward(ctx, permute, {rows, row}, {dx}, {});
    moe_combine_backward(ctx, combine, {x, rows, weight, row, choice}, {drows, dweight}, {});
  }
  std::size_t at(std::int64_t n, std::int64_t k) const {
    return static_cast<std::size_t>(n * s.top_k + k);
  }
  bool guards_intact() const {
    return row.guards_intact() && choice.guards_intact() && count.guards_intact() &&
           offset.guards_intact() && y.guards_intact() && dx.guards_intact() &&
           permuted.guards_intact() && drows.guards_intact() && dweight.guards_intact();
  }

  Shape s;
  MoePermutePlan permute;
  MoeCombinePlan combine;
  GuardedTensor index, count, offset, row, choice;
  GuardedTensor x, rows, weight, y, dx, permuted, drows, dweight;
};

TEST(MoePermute, HandComputed) {
  op_test::for_each_isa([](Context& ctx) {
    Problem p({3, 4, 2, 1}, DType::kFloat32);
    p.index.set({1, 3, 0, 1, 1, 3});
    p.sort(ctx);
    EXPECT_EQ(p.count.get(), (std::vector<double>{1, 3, 0, 2}));
    EXPECT_EQ(p.offset.get(), (std::vector<double>{0, 1, 4, 4, 6}));
    EXPECT_EQ(p.row.get(), (std::vector<double>{1, 4, 0, 2, 3, 5}));
    EXPECT_EQ(p.choice.get(), (std::vector<double>{2, 0, 3, 4, 1, 5}));
    p.x.set({10, 20, 30});
    p.rows.set({1, 2, 3, 4, 5, 6});
    p.weight.set({1, 10, 100, 1000, -1, 0.5});
    p.forward(ctx);
    EXPECT_EQ(p.permuted.get(), (std::vector<double>{20, 10, 20, 30, 10, 30}));
    EXPECT_EQ(p.y.get(), (std::vector<double>{2 + 50, 100 + 3000, -4 + 3}));
    p.backward(ctx);
    EXPECT_EQ(p.dx.get(), (std::vector<double>{2 + 5, 1 + 3, 4 + 6}));
    EXPECT_EQ(p.drows.get(), (std::vector<double>{2000, 10, 20000, -30, 100, 15}));
    EXPECT_EQ(p.dweight.get(), (std::vector<double>{20, 50, 20, 60, 120, 180}));
  });
}

TEST(MoePermute, SortedByExpertThenToken) {
  Context ctx = op_test::make_context();
  for (const Shape& s : kShapes) {
    const Problem p(s, DType::kFloat32, {2, 1});
    p.sort(ctx);
    const auto index = p.index.get(), row = p.row.get(), choice = p.choice.get();
    const auto count = p.count.get(), offset = p.offset.get();
    std::vector<double> expected(static_cast<std::size_t>(p.permute.rows));
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = static_cast<double>(i);
    std::stable_sort(expected.begin(), expected.end(), [&](double a, double b) {
      return index[static_cast<std::size_t>(a)] < index[static_cast<std::size_t>(b)];
    });
    EXPECT_EQ(choice, expected);
    for (std::size_t i = 0; i < row.size(); ++i) {
      EXPECT_EQ(choice[static_cast<std::size_t>(row[i])], static_cast<double>(i));
    }
    EXPECT_EQ(offset[0], 0);
    for (std::size_t e = 0; e < count.size(); ++e) {
      EXPECT_EQ(count[e], std::count(index.begin(), index.end(), static_cast<double>(e)));
      EXPECT_EQ(offset[e + 1], offset[e] + count[e]);
    }
    EXPECT_TRUE(p.guards_intact());
  }
}

TEST(MoePermute, MatchesTheDefinition) {
  op_test::for_each_context([](Context& ctx) {
    for (const Shape& s : kShapes) {
      SCOPED_TRACE(std::to_string(s.tokens) + " tokens, width " + std::to_string(s.hidden));
      const Problem p(s, DType::kFloat64, {3, 1});
      p.sort(ctx);
      p.forward(ctx);
      p.backward(ctx);
      const auto row = p.row.get(), x = p.x.get(), rows = p.rows.get(), w = p.weight.get();
      std::vector<double> y(x.size()), dx(x.size()), permuted(rows.size()), drows(rows.size());
      std::vector<double> dweight(w.size());
      for (std::int64_t n = 0; n < s.tokens; ++n) {
        for (std::int64_t k = 0; k < s.top_k; ++k) {
          for (std::int64_t d = 0; d < s.hidden; ++d) {
            const auto t = static_cast<std::size_t>(n * s.hidden + d);
            const auto r = static_cast<std::size_t>(row[p.at(n, k)] * s.hidden + d);
            permuted[r] = x[t];
            dx[t] += rows[r];
            y[t] += w[p.at(n, k)] * rows[r];
            drows[r] = w[p.at(n, k)] * x[t];
            dweight[p.at(n, k)] += rows[r] * x[t];
          }
        }
      }
      EXPECT_EQ(p.permuted.get(), permuted);
      EXPECT_TRUE(all_near(p.dx.get(), dx, 1e-14));
      EXPECT_TRUE(all_near(p.y.get(), y, 1e-14));
      EXPECT_EQ(p.drows.get(), drows);
      EXPECT_TRUE(all_near(p.dweight.get(), dweight, 1e-13));
      EXPECT_TRUE(p.guards_intact());
    }
  });
}

TEST(MoePermute, EachIsTheOthersAdjoint) {
  Context ctx = op_test::make_context();
  for (const Shape& s : kShapes) {
    Problem p(s, DType::kFloat64);
    p.sort(ctx);
    p.weight.fill(1);
    p.forward(ctx);
    p.backward(ctx);
    // With weights of one, combine is the permutation's backward and the reverse, bit by bit.
    EXPECT_EQ(p.y.bits(), p.dx.bits());
    EXPECT_EQ(p.drows.bits(), p.permuted.bits());
    // <P x, rows> = <x, P^T rows>.
    const double left = op_test::weighted_sum(p.permuted.get(), p.rows.get());
    const double right = op_test::weighted_sum(p.x.get(), p.dx.get());
    EXPECT_NEAR(left, right, 1e-12 * std::max(1.0, std::abs(left)));
  }
}

TEST(MoePermute, GradientsMatchFiniteDifferences) {
  op_test::for_each_isa([](Context& ctx) {
    Problem p({6, 5, 2, 3}, DType::kFloat64);
    p.sort(ctx);
    const GuardedTensor to_rows = random_tensor("to rows", DType::kFloat64, {12, 3});
    const GuardedTensor to_y = random_tensor("to y", DType::kFloat64, {6, 3});
    moe_permute_backward(ctx, p.permute, {to_rows, p.row}, {p.dx}, {});
    moe_combine_backward(ctx, p.combine, {to_y, p.rows, p.weight, p.row, p.choice},
                         {p.drows, p.dweight}, {});
    const auto loss = [&] {
      p.forward(ctx);
      return op_test::weighted_sum(to_rows.get(), p.permuted.get()) +
             op_test::weighted_sum(to_y.get(), p.y.get());
    };
    EXPECT_TRUE(op_test::gradient_near(p.x, p.dx.get(), loss));
    EXPECT_TRUE(op_test::gradient_near(p.rows, p.drows.get(), loss));
    EXPECT_TRUE(op_test::gradient_near(p.weight, p.dweight.get(), loss));
  });
}

// A token's k rows are added in fp32 and rounded once: with bf16 storage 256 + 1 - 256 is 1, where
// rounding after each term would leave 0.
TEST(MoePermute, Bf16SumsInFp32) {
  op_test::for_each_isa([](Context& ctx) {
    Problem p({1, 3, 3, 1}, DType::kBFloat16);
    p.sort(ctx);
    p.rows.set({256, 1, -256});
    p.weight.fill(1);
    p.forward(ctx);
    p.backward(ctx);
    EXPECT_EQ(p.y.get(0), 1);
    EXPECT_EQ(p.dx.get(0), 1);
  });
}

TEST(MoePermute, LowPrecisionAgainstDouble) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    op_test::for_each_context([&](Context& ctx) {
      const Shape s{40, 8, 4, 33};
      const Problem p(s, dtype);
      p.sort(ctx);
      p.forward(ctx);
      p.backward(ctx);
      const auto row = p.row.get(), x = p.x.get(), rows = p.rows.get(), w = p.weight.get();
      std::vector<double> y(x.size()), dweight(w.size());
      for (std::int64_t n = 0; n < s.tokens; ++n) {
        for (std::int64_t k = 0; k < s.top_k; ++k) {
          for (std::int64_t d = 0; d < s.hidden; ++d) {
            const auto t = static_cast<std::size_t>(n * s.hidden + d);
            const auto r = static_cast<std::size_t>(row[p.at(n, k)] * s.hidden + d);
            y[t] += w[p.at(n, k)] * rows[r];
            dweight[p.at(n, k)] += rows[r] * x[t];
          }
        }
      }
      EXPECT_TRUE(all_near(p.y.get(), y, dtype == DType::kFloat32 ? 5e-7 : 0.004));
      EXPECT_TRUE(all_near(p.dweight.get(), dweight, 5e-6));
    });
  }
}

TEST(MoePermute, BitsDoNotDependOnThreadsAlignmentOrInstructionSet) {
  ThreadPool pool(3);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const Problem first({200, 16, 4, 77}, dtype);
    Context base = op_test::make_context(CpuIsa::kV1);
    first.sort(base);
    first.forward(base);
    first.backward(base);
    op_test::for_each_isa([&](Context& ctx) {
      const Problem other(first.s, dtype, {3, 5});
      Context threaded = op_test::make_context(ctx.isa, &pool);
      other.sort(threaded);
      other.forward(threaded);
      other.backward(threaded);
      EXPECT_EQ(other.choice.bits(), first.choice.bits());
      EXPECT_EQ(other.permuted.bits(), first.permuted.bits());
      EXPECT_EQ(other.y.bits(), first.y.bits());
      EXPECT_EQ(other.dx.bits(), first.dx.bits());
      EXPECT_EQ(other.drows.bits(), first.drows.bits());
      EXPECT_EQ(other.dweight.bits(), first.dweight.bits());
    });
  }
}

TEST(MoeCombine, RowGradientsMayOverwriteTheRows) {
  op_test::for_each_context([](Context& ctx) {
    const Problem apart({70, 8, 3, 17}, DType::kFloat32), in_place(apart.s, DType::kFloat32);
    apart.sort(ctx);
    in_place.sort(ctx);
    apart.backward(ctx);
    moe_combine_backward(
        ctx, in_place.combine,
        {in_place.x, in_place.rows, in_place.weight, in_place.row, in_place.choice},
        {in_place.rows, in_place.dweight}, {});
    EXPECT_EQ(in_place.rows.bits(), apart.drows.bits());
    EXPECT_EQ(in_place.dweight.bits(), apart.dweight.bits());
  });
}

// A NaN in one expert's row reaches the tokens that chose it and no other.
TEST(MoeCombine, NanStaysInItsToken) {
  Context ctx = op_test::make_context();
  Problem p({8, 4, 2, 3}, DType::kFloat32);
  p.sort(ctx);
  p.rows.set(5 * 3, std::nan(""));
  p.forward(ctx);
  const auto token = static_cast<std::int64_t>(p.choice.get(5)) / 2;
  for (std::int64_t i = 0; i < 24; ++i) EXPECT_EQ(std::isnan(p.y.get(i)), i == token * 3);
}

TEST(MoePermute, RefusesWhatDoesNotFit) {
  Context ctx = op_test::make_context();
  const ErrorKind usage = ErrorKind::kUsage;
  EXPECT_TRUE(throws_error([] { moe_permute_plan({.tokens = 1, .experts = 0, .top_k = 1}); }, usage,
                           {"moe_permute", "experts 0"}));
  EXPECT_TRUE(throws_error([] { moe_combine_plan({.tokens = 1, .top_k = 0}); }, usage,
                           {"moe_combine", "top_k 0"}));
  EXPECT_TRUE(throws_error(
      [] { moe_permute_plan({.tokens = std::int64_t{1} << 29, .experts = 8, .top_k = 4}); }, usage,
      {"536870912 tokens x 4 choices", "below 2^31"}));
  EXPECT_TRUE(throws_error(
      [] { moe_combine_plan({.tokens = 1, .top_k = 1, .hidden = 1, .device = Device::kCuda}); },
      usage, {"planned for the GPU"}));

  Problem p({3, 4, 2, 5}, DType::kFloat32);
  for (const double bad : {-1.0, 4.0, 1e9}) {
    p.index.set(3, bad);
    p.count.fill(-5);
    EXPECT_TRUE(throws_error([&] { p.sort(ctx); }, usage,
                             {"moe_sort", "choice 1 of token 1 is expert", "there are 4"}));
    EXPECT_EQ(p.count.get(), std::vector<double>(4, -5.0));
  }
  p.index.set(choices(p.s));
  p.sort(ctx);
  const double row = p.row.get(2), choice = p.choice.get(4);
  for (const double bad : {-1.0, 6.0}) {
    p.row.set(2, bad);
    EXPECT_TRUE(throws_error([&] { p.backward(ctx); }, usage, {"row_NK says", "of token 1"}));
    p.row.set(2, row);
    p.choice.set(4, bad);
    EXPECT_TRUE(throws_error([&] { p.forward(ctx); }, usage, {"choice_R says", "for row 4"}));
    p.choice.set(4, choice);
  }
  const GuardedTensor narrow(DType::kFloat32, {6, 4});
  EXPECT_TRUE(
      throws_error([&] { moe_permute_forward(ctx, p.permute, {p.x, p.choice}, {narrow}, {}); },
                   usage, {"rows_RD is fp32 [6, 4]", "expected fp32 [6, 5]"}));
}

}  // namespace
}  // namespace k25::kernels
