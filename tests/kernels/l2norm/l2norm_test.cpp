#include "kernels/l2norm/l2norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/kernels/l2norm/l2norm_problem.h"
#include "tests/kernels/op_test.h"

namespace k25::kernels::l2norm_test {
namespace {

using op_test::all_near;
using op_test::for_each_context;
using op_test::for_each_isa;
using op_test::throws_error;

constexpr Sizes kSizes[] = {{0, 2, 4},   {1, 1, 1},   {3, 2, 15},   {31, 1, 16},
                            {32, 3, 17}, {33, 2, 64}, {65, 1, 130}, {5, 4, 128}};

TEST(L2Norm, ByHand) {
  for_each_isa([](Context& ctx) {
    Problem p({1, 2, 2});
    p.desc.eps = 11;  // inside the root: 9 + 16 + 11 = 36, and 0 + 25 + 11
    p.x.set({3, 4, 0, -5});
    p.dy.set({6, 0, 0, 6});
    p.forward(ctx);
    EXPECT_TRUE(all_near(p.y.get(), {0.5, 4.0 / 6, 0, -5.0 / 6}, 1e-15));
    EXPECT_TRUE(all_near(p.rstd.get(), {1.0 / 6, 1.0 / 6}, 1e-15));
    p.backward(ctx);  // sum(y dy) = 3 and -5
    EXPECT_TRUE(all_near(p.dx.get(), {0.75, -1.0 / 3, 0, 1 - 25.0 / 36}, 1e-15));
  });
}

TEST(L2Norm, EveryShapeAndDType) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat64}) {
    for (const Sizes s : kSizes) {
      SCOPED_TRACE(std::to_string(s.rows) + " x " + std::to_string(s.cols));
      const Layout layout{.row_padding = 3, .shift = 1};
      const Problem operands(s, dtype, layout);
      const std::vector<double> ref = operands.naive<double>();
      std::vector<std::uint8_t> y_bits, dx_bits;
      for_each_context([&](Context& ctx) {
        const Problem p(s, dtype, layout);
        p.forward(ctx);
        p.backward(ctx);
        EXPECT_TRUE(p.y.guards_intact());
        EXPECT_TRUE(p.rstd.guards_intact());
        EXPECT_TRUE(p.dx.guards_intact());
        if (dtype == DType::kFloat64) {
          EXPECT_TRUE(all_near(p.y.get(), ref, 1e-14));
        } else {
          const auto low =
              dtype == DType::kFloat32 ? p.naive<float>() : p.naive<op_test::NaiveBf16>();
          EXPECT_TRUE(op_test::low_precision_near(p.y.get(), low, ref, 1e-7));
        }
        // Backward from what is stored.
        for (std::int64_t r = 0; r < s.rows * s.heads; ++r) {
          double along = 0;
          for (std::int64_t i = r * s.cols; i < (r + 1) * s.cols; ++i) {
            along += p.y.get(i) * p.dy.get(i);
          }
          for (std::int64_t i = r * s.cols; i < (r + 1) * s.cols; ++i) {
            const double dx = p.rstd.get(r) * (p.dy.get(i) - p.y.get(i) * along);
            const double allowed =
                (dtype == DType::kBFloat16 ? 0x1p-8 : 1e-5) * std::abs(dx) + 1e-5;
            ASSERT_NEAR(p.dx.get(i), dx, allowed);
          }
        }
        if (y_bits.empty()) y_bits = p.y.bits();
        if (dx_bits.empty()) dx_bits = p.dx.bits();
        EXPECT_EQ(p.y.bits(), y_bits);
        EXPECT_EQ(p.dx.bits(), dx_bits);
      });
    }
  }
}

TEST(L2Norm, FiniteDifferences) {
  for_each_isa([](Context& ctx) {
    Problem p({3, 2, 19});
    p.forward(ctx);
    p.backward(ctx);
    EXPECT_TRUE(op_test::gradient_near(p.x, p.dx.get(), [&] {
      p.forward(ctx);
      return op_test::weighted_sum(p.dy.get(), p.y.get());
    }));
  });
}

TEST(L2Norm, OverItsInput) {
  for_each_context([](Context& ctx) {
    const Problem apart({40, 2, 33}, DType::kBFloat16), in_place({40, 2, 33}, DType::kBFloat16);
    apart.forward(ctx);
    apart.backward(ctx);
    const L2NormPlan plan = l2norm_plan(apart.desc);
    l2norm_forward(ctx, plan, {in_place.x}, {in_place.x, in_place.rstd}, {});
    EXPECT_EQ(in_place.x.bits(), apart.y.bits());
    l2norm_backward(ctx, plan, {in_place.dy, in_place.x, in_place.rstd}, {in_place.dy}, {});
    EXPECT_EQ(in_place.dy.bits(), apart.dx.bits());
  });
}

TEST(L2Norm, ZeroRowsAndNan) {
  for_each_isa([](Context& ctx) {
    Problem p({2, 1, 20}, DType::kFloat32);
    p.x.fill(0);
    p.x.set(25, std::numeric_limits<double>::quiet_NaN());
    p.forward(ctx);
    p.backward(ctx);
    for (std::int64_t i = 0; i < 20; ++i) {
      EXPECT_EQ(p.y.get(i), 0);
      EXPECT_TRUE(std::isfinite(p.dx.get(i)));
      EXPECT_TRUE(std::isnan(p.y.get(20 + i)));
    }
  });
}

TEST(L2Norm, RefusesWhatDoesNotFit) {
  Context ctx = op_test::make_context();
  const ErrorKind usage = ErrorKind::kUsage;
  const auto no_plan = [&](const L2NormDesc& d, std::initializer_list<std::string_view> parts) {
    EXPECT_TRUE(throws_error([&] { l2norm_plan(d); }, usage, parts));
  };
  no_plan({.rows = -1, .cols = 4}, {"l2norm: rows -1"});
  no_plan({.rows = 1, .heads = 0, .cols = 4}, {"heads 0"});
  no_plan({.rows = 1, .cols = 0}, {"cols 0"});
  no_plan({.rows = 1, .cols = 4, .dtype = DType::kUInt8}, {"uint8"});
  no_plan({.rows = 1, .cols = 4, .eps = 0}, {"eps", "positive"});
  no_plan({.rows = 1, .cols = 4, .eps = std::nan("")}, {"eps"});
  no_plan({.rows = 1, .cols = 4, .dtype = DType::kFloat64, .device = Device::kCuda},
          {"fp64 runs on the CPU only"});
  const Problem p({2, 3, 4}, DType::kBFloat16);
  const L2NormPlan plan = l2norm_plan(p.desc);
  EXPECT_EQ(plan.saved_bytes.n, 24);
  const GuardedTensor flat(DType::kBFloat16, {6, 4});
  EXPECT_TRUE(throws_error([&] { l2norm_forward(ctx, plan, {flat}, {p.y, p.rstd}, {}); }, usage,
                           {"x_NHD is bf16 [6, 4]", "expected bf16 [2, 3, 4]"}));
  EXPECT_TRUE(throws_error([&] { l2norm_forward(ctx, plan, {p.x}, {p.y, p.y}, {}); }, usage,
                           {"rstd_NH", "expected fp32 [2, 3]"}));
  EXPECT_TRUE(throws_error([&] { l2norm_backward(ctx, plan, {p.dy, {}, p.rstd}, {p.dx}, {}); },
                           usage, {"y_NHD is missing"}));
}

}  // namespace
}  // namespace k25::kernels::l2norm_test
