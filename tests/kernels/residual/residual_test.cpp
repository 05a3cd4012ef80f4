#include "kernels/residual/residual.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/kernels/op_test.h"

namespace k25::kernels {
namespace {

using op_test::GuardedTensor;
using op_test::Layout;
using op_test::random_tensor;
using op_test::throws_error;

void add(Context& ctx, const ConstTensor& a, const ConstTensor& b, const Tensor& y) {
  const ResidualPlan plan = residual_plan({.count = y.numel(), .dtype = y.dtype()});
  EXPECT_EQ(plan.workspace_bytes, Bytes{0});
  residual_forward(ctx, plan, {.a = a, .b = b}, {.y = y}, {});
}

TEST(Residual, AddsByHand) {
  op_test::for_each_isa([](Context& ctx) {
    const GuardedTensor a(DType::kFloat32, {3}, std::vector<double>{1, -2, 0.5});
    const GuardedTensor b(DType::kFloat32, {3}, std::vector<double>{10, 2, 0.25});
    const GuardedTensor y(DType::kFloat32, {3});
    add(ctx, a, b, y);
    EXPECT_EQ(y.get(), (std::vector<double>{11, 0, 0.75}));
    EXPECT_TRUE(y.guards_intact());
  });
}

// dy goes to both inputs as it is.
TEST(Residual, GradientMatchesFiniteDifferences) {
  op_test::for_each_isa([](Context& ctx) {
    GuardedTensor a = random_tensor("a", DType::kFloat64, {7});
    GuardedTensor b = random_tensor("b", DType::kFloat64, {7});
    const std::vector<double> dy = op_test::random_values("dy", 7);
    const auto loss = [&] {
      const GuardedTensor y(DType::kFloat64, {7});
      add(ctx, a, b, y);
      return op_test::weighted_sum(dy, y.get());
    };
    EXPECT_TRUE(op_test::gradient_near(a, dy, loss));
    EXPECT_TRUE(op_test::gradient_near(b, dy, loss));
  });
}

TEST(Residual, RoundsBf16OnceToNearestEven) {
  op_test::for_each_isa([](Context& ctx) {
    // 256 + 1 lies between the bf16 neighbours 256 and 258: even is 256. 258 + 1 rounds up to 260.
    const GuardedTensor a(DType::kBFloat16, {2}, std::vector<double>{256, 258});
    const GuardedTensor b(DType::kBFloat16, {2}, std::vector<double>{1, 1});
    const GuardedTensor y(DType::kBFloat16, {2});
    add(ctx, a, b, y);
    EXPECT_EQ(y.get(), (std::vector<double>{256, 260}));
  });
}

TEST(Residual, EqualsTheOracleForEverySizeAndShift) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat64}) {
    for (const std::int64_t n : {0, 1, 2, 15, 16, 17, 63, 64, 65, 32767, 32768, 32769, 70001}) {
      for (const std::int64_t shift : {0, 3}) {
        const GuardedTensor a = random_tensor("a", dtype, {n}, Layout{.shift = shift});
        const GuardedTensor b = random_tensor("b", dtype, {n}, Layout{.shift = 1});
        std::vector<double> expected;
        for (std::int64_t i = 0; i < n; ++i) {
          // One rounding: fp32 and bf16 sums are exact in fp64 at these magnitudes, or close enough
          // that rounding twice (fp64, then the dtype) gives the same neighbour.
          expected.push_back(op_test::round_to(dtype, a.get(i) + b.get(i)));
        }
        op_test::for_each_context([&](Context& ctx) {
          const GuardedTensor y(dtype, {n}, Layout{.shift = shift});
          add(ctx, a, b, y);
          EXPECT_EQ(y.get(), expected);
          EXPECT_TRUE(y.guards_intact());
        });
      }
    }
  }
}

TEST(Residual, ResultMayBeEitherInput) {
  op_test::for_each_context([](Context& ctx) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat64}) {
      GuardedTensor a = random_tensor("a", dtype, {257});
      GuardedTensor b = random_tensor("b", dtype, {257});
      const GuardedTensor y(dtype, {257});
      add(ctx, a, b, y);
      const GuardedTensor a2 = random_tensor("a", dtype, {257});
      add(ctx, a2, b, a2);
      EXPECT_EQ(a2.bits(), y.bits());
      add(ctx, a, b, b);
      EXPECT_EQ(b.bits(), y.bits());
      const GuardedTensor doubled(dtype, {257});
      add(ctx, a, a, doubled);
      add(ctx, a, a, a);
      EXPECT_EQ(a.bits(), doubled.bits());
    }
  });
}

TEST(Residual, TakesAnyShape) {
  Context ctx = op_test::make_context();
  const GuardedTensor a = random_tensor("a", DType::kFloat32, {2, 3, 4});
  const GuardedTensor y(DType::kFloat32, {2, 3, 4});
  add(ctx, a, a, y);
  for (std::int64_t i = 0; i < 24; ++i) EXPECT_EQ(y.get(i), 2 * a.get(i));
}

TEST(Residual, RefusesWhatDoesNotFit) {
  Context ctx = op_test::make_context();
  const ErrorKind usage = ErrorKind::kUsage;
  EXPECT_TRUE(throws_error([] { residual_plan({.count = -1}); }, usage, {"residual", "-1"}));
  EXPECT_TRUE(throws_error([] { residual_plan({.count = 1, .dtype = DType::kInt32}); }, usage,
                           {"int32", "fp32, bf16 or fp64"}));

  const ResidualPlan plan = residual_plan({.count = 6});
  const GuardedTensor a(DType::kFloat32, {6});
  const GuardedTensor y(DType::kFloat32, {6});
  const auto call = [&](const ConstTensor& first, const ConstTensor& second, const Tensor& out) {
    return [&ctx, &plan, first, second, out] {
      residual_forward(ctx, plan, {.a = first, .b = second}, {.y = out}, {});
    };
  };
  const GuardedTensor small(DType::kFloat32, {5});
  const GuardedTensor other(DType::kBFloat16, {6});
  const GuardedTensor matrix(DType::kFloat32, {2, 3});
  const GuardedTensor strided(DType::kFloat32, {2, 3}, Layout{.row_padding = 1});
  EXPECT_TRUE(throws_error(call(small, a, y), usage, {"a is fp32 [5]", "6 elements"}));
  EXPECT_TRUE(throws_error(call(a, other, y), usage, {"b is bf16 [6]", "expected fp32"}));
  EXPECT_TRUE(throws_error(call(a, {}, y), usage, {"b is missing"}));
  EXPECT_TRUE(throws_error(call(a, a, {}), usage, {"y is missing"}));
  EXPECT_TRUE(throws_error(call(matrix, a, y), usage, {"[2, 3]", "one shape"}));
  EXPECT_TRUE(throws_error(call(strided, matrix, matrix), usage, {"a [2, 3]", "contiguous"}));
  const Tensor device(y.tensor().raw(), DType::kFloat32, {6}, Device::kCuda);
  EXPECT_TRUE(throws_error(call(a, a, device), usage, {"y is on the GPU"}));

  const GuardedTensor wide(DType::kFloat32, {7});
  EXPECT_TRUE(throws_error(call(wide.tensor().slice(0, 0, 6), a, wide.tensor().slice(0, 1, 7)),
                           usage, {"overlaps an input in part"}));
}

}  // namespace
}  // namespace k25::kernels
