#include "kernels/rope/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <vector>

#include "tests/kernels/op_test.h"
#include "tests/kernels/rope/rope_oracle.h"

namespace k25 {
namespace {

using kernels::rope_backward;
using kernels::rope_fill_table;
using kernels::rope_forward;
using kernels::rope_plan;
using kernels::RopeDesc;
using op_test::all_near;
using op_test::for_each_context;
using op_test::for_each_isa;
using op_test::gradient_near;
using op_test::GuardedTensor;
using op_test::Layout;
using op_test::low_precision_near;
using op_test::make_context;
using op_test::random_tensor;
using op_test::throws_error;
using op_test::weighted_sum;
using rope_test::desc_of;
using rope_test::Problem;

// theta = (2 / pi)^2 and E = 4: pair 0 turns by one radian a position, pair 1 by a quarter circle.
TEST(Rope, HandComputed) {
  for_each_isa([](Context& ctx) {
    RopeDesc d = desc_of(2, 1, 4, DType::kFloat32);
    d.theta = std::pow(2 / std::numbers::pi, 2);
    Problem p(d);
    p.position.set({0, 1});
    p.x.set({1, 2, 3, 4, 1, 2, 3, 4});
    p.forward(ctx);
    const double c = std::cos(1.0), s = std::sin(1.0);
    EXPECT_TRUE(all_near(p.y.get(), {1, 2, 3, 4, c - 3 * s, -4, 3 * c + s, 2}, 1e-6));
    p.backward(ctx);
    EXPECT_TRUE(all_near(p.y.get(), {1, 2, 3, 4, c + 3 * s, 4, 3 * c - s, -2}, 1e-6));
  });
}

TEST(Rope, ShapesAgainstTheFormula) {
  for_each_context([](Context& ctx) {
    for (const std::int64_t rows : {0, 1, 7, 600}) {
      for (const std::int64_t dim : {2, 6, 32, 34}) {
        for (const Layout layout : {Layout{}, Layout{5, 3}}) {
          Problem p(desc_of(rows, 3, dim), layout);
          p.forward(ctx);
          EXPECT_TRUE(all_near(p.y.get(), p.naive<double>(1), 1e-12));
          p.backward(ctx);
          EXPECT_TRUE(all_near(p.y.get(), p.naive<double>(-1), 1e-12));
          EXPECT_TRUE(p.y.guards_intact());
          EXPECT_TRUE(p.table.guards_intact());
        }
      }
    }
  });
}

TEST(Rope, LowPrecision) {
  for_each_context([](Context& ctx) {
    Problem single(desc_of(90, 2, 32, DType::kFloat32));
    single.forward(ctx);
    EXPECT_TRUE(
        low_precision_near(single.y.get(), single.naive<float>(1), single.naive<double>(1), 1e-7));
    Problem half(desc_of(90, 2, 32, DType::kBFloat16));
    half.forward(ctx);
    EXPECT_TRUE(low_precision_near(half.y.get(), half.naive<op_test::NaiveBf16>(1),
                                   half.naive<double>(1), 1e-4));
  });
}

TEST(Rope, FiniteDifferences) {
  Context ctx = make_context();
  const GuardedTensor weights = random_tensor("w", DType::kFloat64, {5, 2, 6});
  Problem gradient(desc_of(5, 2, 6));
  gradient.x.set(weights.get());
  gradient.backward(ctx);
  Problem p(desc_of(5, 2, 6));
  EXPECT_TRUE(gradient_near(p.x, gradient.y.get(), [&] {
    p.forward(ctx);
    return weighted_sum(weights.get(), p.y.get());
  }));
}

TEST(Rope, InPlaceGivesTheSameBits) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat64}) {
    for_each_isa([&](Context& ctx) {
      Problem p(desc_of(40, 3, 34, dtype));
      p.forward(ctx);
      rope_forward(ctx, rope_plan(p.desc), {p.x, p.position, p.table}, {p.x}, {});
      EXPECT_EQ(p.x.bits(), p.y.bits());
    });
  }
}

// Only + - * of rounded numbers: the same bits everywhere.
TEST(Rope, BitsDoNotDependOnThreadsAlignmentOrInstructionSet) {
  Problem first(desc_of(900, 4, 36, DType::kFloat32));
  Context ctx = make_context();
  first.forward(ctx);
  for_each_context([&](Context& other) {
    Problem p(desc_of(900, 4, 36, DType::kFloat32), {3, 5});
    p.forward(other);
    EXPECT_EQ(p.y.bits(), first.y.bits());
  });
}

// Heads of q inside the [rows, (H + 2K) E] matrix of one projection.
TEST(Rope, SliceOfAFusedMatrix) {
  Context ctx = make_context();
  Problem p(desc_of(9, 2, 8, DType::kFloat32));
  p.forward(ctx);
  GuardedTensor fused(DType::kFloat32, {9, 32});
  fused.fill(7.0);
  const Tensor q = fused.tensor().slice(1, 8, 24).split_dim(1, 2, 8);
  for (std::int64_t n = 0; n < 9; ++n) {
    for (std::int64_t i = 0; i < 16; ++i) fused.set(n * 32 + 8 + i, p.x.get(n * 16 + i));
  }
  rope_forward(ctx, rope_plan(p.desc), {q, p.position, p.table}, {q}, {});
  for (std::int64_t n = 0; n < 9; ++n) {
    for (std::int64_t i = 0; i < 32; ++i) {
      const bool inside = i >= 8 && i < 24;
      EXPECT_EQ(fused.get(n * 32 + i), inside ? p.y.get(n * 16 + i - 8) : 7.0);
    }
  }
}

TEST(Rope, TheTableIsRoundedOnce) {
  RopeDesc d = desc_of(0, 1, 8, DType::kFloat32);
  d.max_position = 100000;
  GuardedTensor table(DType::kFloat32, {d.max_position, 8});
  rope_fill_table(d, table);
  const double angle = 99999 * std::pow(10000.0, -2.0 / 8);
  EXPECT_EQ(table.get(99999 * 8 + 1), static_cast<float>(std::cos(angle)));
  EXPECT_EQ(table.get(99999 * 8 + 5), static_cast<float>(std::sin(angle)));
}

TEST(Rope, Errors) {
  const auto refused = [](RopeDesc d, std::string_view part) {
    return throws_error([&] { rope_plan(d); }, ErrorKind::kUsage, {"rope", part});
  };
  EXPECT_TRUE(refused(desc_of(1, 1, 7), "head_dim 7 must be positive and even"));
  EXPECT_TRUE(refused(desc_of(1, 1, 0), "head_dim 0"));
  EXPECT_TRUE(refused(desc_of(-1, 1, 8), "rows -1"));
  EXPECT_TRUE(refused(desc_of(1, -1, 8), "heads -1"));
  EXPECT_TRUE(refused(desc_of(1, 1, 8, DType::kInt64), "int64"));
  RopeDesc d = desc_of(1, 1, 8);
  d.theta = 0;
  EXPECT_TRUE(refused(d, "theta 0"));
  d = desc_of(1, 1, 8);
  d.max_position = -1;
  EXPECT_TRUE(refused(d, "max_position -1"));

  Context ctx = make_context();
  Problem p(desc_of(4, 2, 8, DType::kFloat32));
  const auto call = [&](kernels::RopeIn in, kernels::RopeOut out, std::string_view part) {
    return throws_error([&] { rope_forward(ctx, rope_plan(p.desc), in, out, {}); },
                        ErrorKind::kUsage, {"rope", part});
  };
  EXPECT_TRUE(call({{}, p.position, p.table}, {p.y}, "x is missing"));
  EXPECT_TRUE(call({p.x, p.position, p.x}, {p.y}, "table is fp32 [4, 2, 8]"));
  EXPECT_TRUE(call({p.x, p.position, p.table}, {p.table}, "y is fp32 [300, 8]"));
  const ConstTensor cuda(p.x.tensor().raw(), DType::kFloat32, {4, 2, 8}, Device::kCuda);
  EXPECT_TRUE(call({cuda, p.position, p.table}, {p.y}, "is on the GPU"));
  for (const double bad : {-1.0, 300.0}) {
    p.position.set(2, bad);
    const std::string value = "row 2 has position " + std::to_string(static_cast<int>(bad));
    EXPECT_TRUE(call({p.x, p.position, p.table}, {p.y}, value));
    EXPECT_TRUE(call({p.x, p.position, p.table}, {p.y}, "[0, 300)"));
  }
}

}  // namespace
}  // namespace k25
