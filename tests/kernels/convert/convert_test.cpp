#include "kernels/convert/convert.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/kernels/op_test.h"

namespace k25::kernels {
namespace {

using op_test::GuardedTensor;
using op_test::Layout;
using op_test::random_tensor;
using op_test::throws_error;

/// fp32 patterns around every bf16: the value itself, half a step, and one bit either side of both.
std::vector<float> float_patterns() {
  std::vector<float> x;
  for (std::uint32_t high = 0; high < 0x10000u; ++high) {
    for (const std::uint32_t low : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      x.push_back(std::bit_cast<float>(high << 16 | low));
    }
  }
  return x;
}

Tensor flat(std::vector<float>& x) {
  return Tensor(x.data(), DType::kFloat32, {static_cast<std::int64_t>(x.size())});
}

/// Round to nearest even by neighbours and distance, not by the bit trick under test.
std::uint16_t nearest_bf16(float x) {
  const auto u = std::bit_cast<std::uint32_t>(x);
  if (std::isnan(x)) return static_cast<std::uint16_t>(u >> 16 | 0x40u);
  const auto below = static_cast<std::uint16_t>(u >> 16);  // towards zero
  const std::uint32_t rest = u & 0xffffu;
  if (rest < 0x8000u) return below;
  if (rest > 0x8000u) return static_cast<std::uint16_t>(below + 1);
  return static_cast<std::uint16_t>(below + (below & 1));
}

TEST(Convert, Fp32ToBf16RoundsToNearestEvenForEveryPattern) {
  std::vector<float> x = float_patterns();
  op_test::for_each_context([&](Context& ctx) {
    std::vector<BFloat16> y(x.size());
    convert(ctx, flat(x),
            Tensor(y.data(), DType::kBFloat16, {static_cast<std::int64_t>(y.size())}));
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(y[i].bits, nearest_bf16(x[i])) << std::bit_cast<std::uint32_t>(x[i]);
      ASSERT_EQ(y[i].bits, BFloat16(x[i]).bits);
    }
  });
}

TEST(Convert, EveryBf16BecomesItsFp32AndBack) {
  op_test::for_each_context([](Context& ctx) {
    std::vector<BFloat16> x(0x10000);
    for (std::size_t i = 0; i < x.size(); ++i) x[i].bits = static_cast<std::uint16_t>(i);
    const Tensor x_view(x.data(), DType::kBFloat16, {0x10000});
    std::vector<float> y(x.size());
    convert(ctx, x_view, flat(y));
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(y[i]), static_cast<std::uint32_t>(i) << 16);
    }
    std::vector<BFloat16> back(x.size());
    convert(ctx, flat(y), Tensor(back.data(), DType::kBFloat16, {0x10000}));
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::uint16_t quiet = std::isnan(y[i]) ? 0x40 : 0;
      ASSERT_EQ(back[i].bits, x[i].bits | quiet);
    }
  });
}

TEST(Convert, Fp64ToFp32RoundsToNearestEven) {
  const double one_ulp = std::ldexp(1.0, -23);
  const double inf = std::numeric_limits<double>::infinity();
  const double largest = std::numeric_limits<float>::max();
  const std::vector<double> x{1 + one_ulp / 2,
                              1 + 1.5 * one_ulp,
                              1 + one_ulp * 0.5000001,
                              -0.0,
                              1e300,
                              -1e300,
                              largest,
                              1e-300,
                              0x1p-149,
                              0x1p-150,
                              0x1.8p-150,
                              inf,
                              -inf};
  const std::vector<double> expected{1, 1 + 2 * one_ulp, 1 + one_ulp, -0.0,     inf, -inf, largest,
                                     0, 0x1p-149,        0,           0x1p-149, inf, -inf};
  op_test::for_each_isa([&](Context& ctx) {
    const auto n = static_cast<std::int64_t>(x.size());
    const GuardedTensor from(DType::kFloat64, {n}, x);
    const GuardedTensor to(DType::kFloat32, {n});
    convert(ctx, from, to);
    EXPECT_EQ(to.get(), expected);
    EXPECT_TRUE(std::signbit(to.get(3)));
    const GuardedTensor nan(DType::kFloat64, {1}, std::vector<double>{std::nan("")});
    convert(ctx, nan, to.tensor().slice(0, 0, 1));
    EXPECT_TRUE(std::isnan(to.get(0)));
  });
}

TEST(Convert, Fp32ToFp64IsExact) {
  std::vector<float> x = float_patterns();
  op_test::for_each_context([&](Context& ctx) {
    std::vector<double> y(x.size());
    convert(ctx, flat(x), Tensor(y.data(), DType::kFloat64, {static_cast<std::int64_t>(y.size())}));
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (std::isnan(x[i])) {
        ASSERT_TRUE(std::isnan(y[i]));
      } else {
        ASSERT_EQ(std::bit_cast<std::uint64_t>(y[i]),
                  std::bit_cast<std::uint64_t>(static_cast<double>(x[i])));
      }
    }
  });
}

TEST(Convert, EverySizeAndShiftStaysInside) {
  const std::pair<DType, DType> pairs[] = {
      {DType::kFloat32, DType::kBFloat16}, {DType::kBFloat16, DType::kFloat32},
      {DType::kFloat32, DType::kFloat64},  {DType::kFloat64, DType::kFloat32},
      {DType::kFloat32, DType::kFloat32},  {DType::kBFloat16, DType::kBFloat16},
      {DType::kInt32, DType::kInt32},      {DType::kUInt8, DType::kUInt8}};
  for (const auto& [from, to] : pairs) {
    for (const std::int64_t n : {0, 1, 15, 16, 17, 31, 33, 64, 65, 65535, 65536, 65537}) {
      const GuardedTensor x = random_tensor("x", from, {n}, Layout{.shift = 1}, 0, 200);
      op_test::for_each_context([&, to = to](Context& ctx) {
        const GuardedTensor y(to, {n}, Layout{.shift = 3});
        convert(ctx, x, y);
        for (std::int64_t i = 0; i < n; ++i) {
          ASSERT_EQ(y.get(i), op_test::round_to(to, x.get(i)));
        }
        EXPECT_TRUE(y.guards_intact());
      });
    }
  }
}

TEST(Convert, ShapesMayDifferAndTheSameViewIsLeftAlone) {
  Context ctx = op_test::make_context();
  const GuardedTensor x = random_tensor("x", DType::kFloat32, {2, 6});
  const GuardedTensor y(DType::kBFloat16, {3, 4});
  convert(ctx, x, y);
  EXPECT_EQ(y.get(11), op_test::round_to(DType::kBFloat16, x.get(11)));
  const std::vector<std::uint8_t> before = x.bits();
  convert(ctx, x, x);
  EXPECT_EQ(x.bits(), before);
}

TEST(Convert, RefusesWhatDoesNotFit) {
  Context ctx = op_test::make_context();
  const ErrorKind usage = ErrorKind::kUsage;
  const GuardedTensor x(DType::kFloat32, {8});
  const GuardedTensor small(DType::kBFloat16, {7});
  const GuardedTensor wide(DType::kFloat64, {8});
  const GuardedTensor low(DType::kBFloat16, {8});
  const GuardedTensor integers(DType::kInt32, {8});
  const GuardedTensor strided(DType::kFloat32, {2, 4}, Layout{.row_padding = 1});
  const auto call = [&](const ConstTensor& from, const Tensor& to) {
    return [&ctx, from, to] { convert(ctx, from, to); };
  };
  EXPECT_TRUE(throws_error(call(x, small), usage, {"8 elements", "7 [7]", "as many"}));
  EXPECT_TRUE(throws_error(call(low, wide), usage, {"no conversion from bf16 to fp64"}));
  EXPECT_TRUE(throws_error(call(wide, low), usage, {"no conversion from fp64 to bf16"}));
  EXPECT_TRUE(throws_error(call(x, integers), usage, {"no conversion from fp32 to int32"}));
  EXPECT_TRUE(throws_error(call(strided, x), usage, {"x [2, 4] must be contiguous"}));
  EXPECT_TRUE(throws_error(call(x, strided), usage, {"y [2, 4] must be contiguous"}));
  const Tensor missing(nullptr, DType::kFloat32, {8});
  EXPECT_TRUE(throws_error(call(x, missing), usage, {"y is missing"}));
  const Tensor in_place(x.tensor().raw(), DType::kBFloat16, {8});
  EXPECT_TRUE(throws_error(call(x, in_place), usage, {"overlap"}));
  EXPECT_TRUE(
      throws_error(call(x.tensor().slice(0, 0, 5), x.tensor().slice(0, 1, 6)), usage, {"overlap"}));
  const Tensor device(x.tensor().raw(), DType::kFloat32, {8}, Device::kCuda);
  EXPECT_TRUE(throws_error(call(low, device), usage, {"y is on the GPU"}));
}

}  // namespace
}  // namespace k25::kernels
