#include "kernels/moe/correction_bias.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/kernels/op_test.h"

namespace k25::kernels {
namespace {

using op_test::all_near;
using op_test::GuardedTensor;
using op_test::throws_error;

GuardedTensor counts(const std::vector<double>& values) {
  return GuardedTensor(DType::kInt64, {static_cast<std::int64_t>(values.size())}, values);
}

TEST(MoeCorrectionBias, RaisesWhatHasLessAndLowersWhatHasMore) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    const GuardedTensor bias(dtype, {4}, std::vector<double>{0.5, 0, -0.5, 0.25});
    moe_update_correction_bias(bias, counts({0, 3, 4, 9}), 0.125);
    EXPECT_EQ(bias.get(), (std::vector<double>{0.625, 0.125, -0.5, 0.125}));
    EXPECT_TRUE(bias.guards_intact());
  }
}

// The mean is 7/3 and 2 is below it by a third: no rounding decides.
TEST(MoeCorrectionBias, TheMeanIsExact) {
  const GuardedTensor bias(DType::kFloat32, {3}, std::vector<double>{0, 0, 0});
  moe_update_correction_bias(bias, counts({2, 3, 2}), 1);
  EXPECT_EQ(bias.get(), (std::vector<double>{1, -1, 1}));
  const double large = 0x1p53 + 2;
  moe_update_correction_bias(bias, counts({large, large, large - 4}), 1);
  EXPECT_EQ(bias.get(), (std::vector<double>{0, -2, 2}));
}

TEST(MoeCorrectionBias, EvenOrNoLoadMovesNothing) {
  const GuardedTensor bias(DType::kFloat32, {3}, std::vector<double>{0.1, 0.2, 0.3});
  const auto before = bias.bits();
  for (const double count : {0.0, 17.0}) {
    moe_update_correction_bias(bias, counts({count, count, count}), 0.001);
    EXPECT_EQ(bias.bits(), before);
  }
  moe_update_correction_bias(bias, counts({5, 0, 1}), 0);
  EXPECT_EQ(bias.bits(), before);
  const GuardedTensor one(DType::kFloat32, {1}, std::vector<double>{0.5});
  moe_update_correction_bias(one, counts({12}), 0.25);
  EXPECT_EQ(one.get(), std::vector<double>{0.5});
}

TEST(MoeCorrectionBias, RefusesWhatDoesNotFit) {
  const GuardedTensor bias(DType::kFloat32, {2}, std::vector<double>{0, 0});
  const ErrorKind usage = ErrorKind::kUsage;
  EXPECT_TRUE(throws_error([&] { moe_update_correction_bias(bias, counts({1, -2}), 0.1); }, usage,
                           {"the count of expert 1 is -2"}));
  EXPECT_TRUE(throws_error([&] { moe_update_correction_bias(bias, counts({1, 2, 3}), 0.1); }, usage,
                           {"count_E is int64 [3]", "expected int64 [2]"}));
  for (const double rate : {-0.1, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_TRUE(throws_error([&] { moe_update_correction_bias(bias, counts({1, 2}), rate); }, usage,
                             {"rate is"}));
  }
  EXPECT_TRUE(throws_error([&] { moe_update_correction_bias(bias, counts({0x1p62, 5}), 0.1); },
                           usage, {"overflow"}));
  EXPECT_TRUE(throws_error(
      [&] {
        moe_update_correction_bias(GuardedTensor(DType::kBFloat16, {2}), counts({1, 2}), 0.1);
      },
      usage, {"dtype is bf16"}));
  EXPECT_EQ(bias.get(), (std::vector<double>{0, 0}));
}

}  // namespace
}  // namespace k25::kernels
