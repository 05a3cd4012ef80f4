#include "kernels/core/tensor.h"

#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <type_traits>
#include <vector>

#include "tests/kernels/op_test.h"

namespace k25 {
namespace {

using op_test::throws_error;

class TensorTest : public ::testing::Test {
 protected:
  TensorTest() { std::iota(values_.begin(), values_.end(), 0.f); }

  /// Element 0 of a view, which is its offset in values_.
  static float first(const Tensor& t) { return *t.data<float>(); }

  std::array<float, 24> values_{};
  Tensor t_{values_.data(), DType::kFloat32, {2, 3, 4}};
};

TEST_F(TensorTest, ContiguousViewHasRowMajorStrides) {
  EXPECT_EQ(t_.ndim(), 3);
  EXPECT_EQ(t_.stride(0), 12);
  EXPECT_EQ(t_.stride(1), 4);
  EXPECT_EQ(t_.stride(2), 1);
  EXPECT_EQ(t_.numel(), 24);
  EXPECT_EQ(t_.bytes(), Bytes{96});
  EXPECT_TRUE(t_.is_contiguous());
  EXPECT_EQ(t_.raw(), values_.data());
}

TEST_F(TensorTest, AbsentAndScalarViews) {
  EXPECT_FALSE(Tensor());
  EXPECT_TRUE(t_);
  const Tensor scalar(values_.data(), DType::kFloat32, {});
  EXPECT_EQ(scalar.ndim(), 0);
  EXPECT_EQ(scalar.numel(), 1);
}

TEST_F(TensorTest, ConvertsToConstOnly) {
  const ConstTensor c = t_;
  EXPECT_EQ(c.raw(), t_.raw());
  EXPECT_EQ(c.dim(2), 4);
  EXPECT_EQ(c.stride(0), 12);
  static_assert(std::is_convertible_v<Tensor, ConstTensor>);
  static_assert(!std::is_constructible_v<Tensor, ConstTensor>);
  static_assert(std::is_same_v<decltype(c.data<float>()), const float*>);
}

TEST_F(TensorTest, DataOfAnotherTypeIsRefused) {
  EXPECT_TRUE(
      throws_error([&] { t_.data<double>(); }, ErrorKind::kUsage, {"tensor holds fp32, not fp64"}));
  EXPECT_TRUE(throws_error([&] { t_.data<BFloat16>(); }, ErrorKind::kUsage, {"not bf16"}));
}

TEST_F(TensorTest, SliceKeepsStridesAndMovesTheStart) {
  const Tensor s = t_.slice(1, 1, 3);
  EXPECT_EQ(s.dim(0), 2);
  EXPECT_EQ(s.dim(1), 2);
  EXPECT_EQ(s.stride(0), 12);
  EXPECT_EQ(first(s), 4);
  EXPECT_FALSE(s.is_contiguous());
  EXPECT_EQ(first(s.slice(2, 3, 4)), 7);
  EXPECT_TRUE(t_.slice(0, 1, 2).is_contiguous());
}

TEST_F(TensorTest, EmptySlicesAreLegal) {
  for (const std::int64_t at : {0, 1, 3}) {
    const Tensor s = t_.slice(1, at, at);
    EXPECT_EQ(s.numel(), 0);
    EXPECT_TRUE(s.is_contiguous());
    EXPECT_EQ(s.view({0}).numel(), 0);
  }
}

TEST_F(TensorTest, SlicesOutsideAreRefused) {
  EXPECT_TRUE(throws_error([&] { t_.slice(1, 2, 4); }, ErrorKind::kUsage,
                           {"slice [2, 4) of dimension 1 lies outside [2, 3, 4]"}));
  EXPECT_TRUE(throws_error([&] { t_.slice(1, -1, 2); }, ErrorKind::kUsage, {"slice [-1, 2)"}));
  EXPECT_TRUE(throws_error([&] { t_.slice(1, 2, 1); }, ErrorKind::kUsage, {"slice [2, 1)"}));
  EXPECT_TRUE(throws_error([&] { t_.slice(3, 0, 0); }, ErrorKind::kUsage, {"dimension 3"}));
  EXPECT_TRUE(throws_error([&] { t_.slice(-1, 0, 0); }, ErrorKind::kUsage, {"dimension -1"}));
}

TEST_F(TensorTest, SelectDropsTheDimension) {
  const Tensor head = t_.select(1, 2);  // [2, 4]
  EXPECT_EQ(shape_string(head.shape()), "[2, 4]");
  EXPECT_EQ(head.stride(0), 12);
  EXPECT_EQ(head.stride(1), 1);
  EXPECT_EQ(first(head), 8);
  const Tensor column = t_.select(2, 3);  // [2, 3]
  EXPECT_EQ(column.stride(0), 12);
  EXPECT_EQ(column.stride(1), 4);
  EXPECT_EQ(first(column), 3);
  EXPECT_EQ(first(t_.select(0, 1).select(0, 1).select(0, 1)), 17);
  EXPECT_TRUE(throws_error([&] { t_.select(1, 3); }, ErrorKind::kUsage, {"slice [3, 4)"}));
  EXPECT_TRUE(throws_error([&] { t_.select(1, -1); }, ErrorKind::kUsage, {"slice [-1, 0)"}));
}

TEST_F(TensorTest, SplitDimOfAStridedView) {
  // 6 columns of an [3, 8]: 3 heads of 2.
  const Tensor wide(values_.data(), DType::kFloat32, {3, 8});
  const Tensor heads = wide.slice(1, 2, 8).split_dim(1, 3, 2);
  EXPECT_EQ(shape_string(heads.shape()), "[3, 3, 2]");
  EXPECT_EQ(heads.stride(0), 8);
  EXPECT_EQ(heads.stride(1), 2);
  EXPECT_EQ(heads.stride(2), 1);
  EXPECT_EQ(first(heads.select(0, 1).select(0, 2)), 8 + 2 + 4);
  const Tensor outer = t_.split_dim(0, 1, 2);
  EXPECT_EQ(shape_string(outer.shape()), "[1, 2, 3, 4]");
  EXPECT_TRUE(outer.is_contiguous());
}

TEST_F(TensorTest, BadSplitsAreRefused) {
  EXPECT_TRUE(throws_error([&] { t_.split_dim(2, 3, 2); }, ErrorKind::kUsage,
                           {"dimension 2 of [2, 3, 4]", "into 3 x 2"}));
  EXPECT_TRUE(throws_error([&] { t_.split_dim(2, -2, -2); }, ErrorKind::kUsage, {"-2 x -2"}));
  EXPECT_TRUE(throws_error([&] { t_.split_dim(3, 1, 1); }, ErrorKind::kUsage, {"dimension 3"}));
  const Tensor five(values_.data(), DType::kFloat32, {1, 2, 3, 4, 1});
  EXPECT_TRUE(
      throws_error([&] { five.split_dim(3, 2, 2); }, ErrorKind::kUsage, {"cannot be split"}));
}

TEST_F(TensorTest, ViewChangesTheShapeOfContiguousData) {
  const Tensor v = t_.view({6, 4});
  EXPECT_EQ(v.stride(0), 4);
  EXPECT_EQ(v.raw(), t_.raw());
  EXPECT_TRUE(throws_error([&] { t_.view({5, 5}); }, ErrorKind::kUsage, {"[2, 3, 4] to [5, 5]"}));
  EXPECT_TRUE(throws_error([&] { t_.slice(1, 0, 2).view({16}); }, ErrorKind::kUsage,
                           {"only a contiguous tensor", "[2, 2, 4]"}));
}

TEST_F(TensorTest, BadShapesAreRefused) {
  EXPECT_TRUE(throws_error([&] { Tensor(values_.data(), DType::kFloat32, {1, 1, 1, 1, 1, 1}); },
                           ErrorKind::kUsage, {"at most 5 dimensions"}));
  EXPECT_TRUE(throws_error([&] { Tensor(values_.data(), DType::kFloat32, {2, -3}); },
                           ErrorKind::kUsage, {"must not be negative", "[2, -3]"}));
}

TEST(Tensor, NullViewsCanBeCut) {
  // A measuring arena hands them out; the same code runs on them.
  const Tensor t(nullptr, DType::kBFloat16, {4, 6});
  EXPECT_EQ(t.slice(0, 2, 4).raw(), nullptr);
  EXPECT_EQ(t.slice(1, 2, 4).split_dim(1, 2, 1).select(0, 3).raw(), nullptr);
}

TEST(Tensor, ShapeString) {
  EXPECT_EQ(shape_string(std::vector<std::int64_t>{}), "[]");
  EXPECT_EQ(shape_string(std::vector<std::int64_t>{7}), "[7]");
  EXPECT_EQ(shape_string(std::vector<std::int64_t>{4, 256, 128}), "[4, 256, 128]");
}

}  // namespace
}  // namespace k25
