#include <cmath>
#include <limits>
#include <vector>

#include "kernels/reduce/reduce.h"
#include "tests/kernels/cuda_test.h"

namespace k25::kernels {
namespace {

using op_test::GuardedTensor;
using op_test::Layout;
using op_test::OnGpu;
using op_test::random_tensor;
using op_test::throws_error;
using ReduceCudaTest = op_test::CudaTest;

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNan = std::numeric_limits<double>::quiet_NaN();

/// Wide exponents, so that another order of addition would round differently.
GuardedTensor wide_tensor(std::vector<std::int64_t> shape, Layout layout) {
  GuardedTensor x = random_tensor("x", DType::kFloat32, shape, layout);
  for (std::int64_t i = 0; i < x.count(); ++i) {
    x.set(i, std::ldexp(x.get(i), static_cast<int>(i * 7 % 40) - 20));
  }
  return x;
}

TEST_F(ReduceCudaTest, SquareSumsEqualTheCpuBitForBit) {
  for (const std::int64_t chunks : {0, 1, 7, 8, 9, 500}) {
    for (const std::int64_t shift : {0, 1}) {
      GuardedTensor x = wide_tensor({chunks * kChunk}, Layout{.shift = shift});
      if (chunks > 1) x.set(1, std::numeric_limits<float>::max());
      if (chunks > 1) x.set(kChunk + 1, std::numeric_limits<float>::denorm_min());
      const GuardedTensor want(DType::kFloat64, {chunks}), sums(DType::kFloat64, {chunks});
      chunk_square_sums(cpu(), x, want);
      const OnGpu on_x(gpu(), x), on_sums(gpu(), sums);
      chunk_square_sums(gpu(), on_x, on_sums);
      EXPECT_EQ(on_sums.fetch().bits(), want.bits()) << chunks;
      EXPECT_TRUE(sums.guards_intact());
    }
  }
}

TEST_F(ReduceCudaTest, NotFiniteInNotFiniteOutInThatChunkAlone) {
  for (const double bad : {kInf, -kInf, kNan}) {
    GuardedTensor x(DType::kFloat32, {3 * kChunk});
    x.fill(1);
    x.set(kChunk + 2049, bad);
    const GuardedTensor sums(DType::kFloat64, {3});
    const OnGpu on_x(gpu(), x), on_sums(gpu(), sums);
    chunk_square_sums(gpu(), on_x, on_sums);
    on_sums.fetch();
    EXPECT_EQ(sums.get(0), kChunk);
    EXPECT_FALSE(std::isfinite(sums.get(1)));
    EXPECT_EQ(sums.get(2), kChunk);
  }
}

TEST_F(ReduceCudaTest, RowSumsEqualTheCpuBitForBit) {
  for (const std::int64_t cols : {0, 1, 31, 32, 33, 1000}) {
    const GuardedTensor x = wide_tensor({13, cols}, Layout{.row_padding = 3, .shift = 1});
    const GuardedTensor want(DType::kFloat64, {13}), sums(DType::kFloat64, {13});
    row_sums(cpu(), x, want);
    const OnGpu on_x(gpu(), x), on_sums(gpu(), sums);
    row_sums(gpu(), on_x, on_sums);
    EXPECT_EQ(on_sums.fetch().bits(), want.bits()) << cols;
    EXPECT_TRUE(sums.guards_intact());
  }
}

TEST_F(ReduceCudaTest, OrderedSumEqualsTheCpuBitForBit) {
  for (const std::int64_t num_parts : {0, 1, 2, 5, 12}) {
    for (const std::int64_t n : {0, 1, 3, 4, 5, 1024, 1025, 100003}) {
      for (const Layout layout : {Layout{}, Layout{.row_padding = 3, .shift = 1}}) {
        const GuardedTensor parts = random_tensor("parts", DType::kFloat32, {num_parts, n}, layout);
        const GuardedTensor want = random_tensor("acc", DType::kFloat32, {n});
        const GuardedTensor acc = random_tensor("acc", DType::kFloat32, {n}, layout);
        const OnGpu on_parts(gpu(), parts), on_acc(gpu(), acc);
        ordered_sum(cpu(), parts, want);
        ordered_sum(gpu(), on_parts, on_acc);
        EXPECT_EQ(on_acc.fetch().bits(), want.bits()) << num_parts << " x " << n;
        EXPECT_TRUE(acc.guards_intact());
      }
    }
  }
}

TEST_F(ReduceCudaTest, FirstNotFiniteIsTheFirst) {
  for (const std::int64_t n : {0, 1, 4, 5, 1023, 300001}) {
    for (const std::int64_t shift : {0, 3}) {
      GuardedTensor x = random_tensor("x", DType::kFloat32, {n}, Layout{.shift = shift});
      const GuardedTensor first(DType::kInt64, {1});
      const auto found = [&] {
        const OnGpu on_x(gpu(), x), on_first(gpu(), first);
        first_not_finite(gpu(), on_x, on_first);
        EXPECT_TRUE(on_first.fetch().guards_intact());
        return static_cast<std::int64_t>(first.get(0));
      };
      EXPECT_EQ(found(), n);
      if (n == 0) continue;
      x.set(n - 1, kInf);  // a later one must not win
      for (const double bad : {kInf, -kInf, kNan, -kNan}) {
        for (const std::int64_t at : {n - 1, n / 2, n / 3, std::int64_t{0}}) {
          const double saved = x.get(at);
          x.set(at, bad);
          EXPECT_EQ(found(), at);
          x.set(at, saved);
        }
      }
      x.fill(kNan);
      EXPECT_EQ(found(), 0);
    }
  }
}

TEST_F(ReduceCudaTest, RefusesWhatDoesNotFit) {
  const ErrorKind usage = ErrorKind::kUsage;
  const GuardedTensor x(DType::kFloat32, {kChunk}), sums(DType::kFloat64, {1});
  const GuardedTensor first(DType::kInt64, {1});
  const OnGpu on_x(gpu(), x), on_sums(gpu(), sums), on_first(gpu(), first);
  EXPECT_TRUE(throws_error([&] { chunk_square_sums(gpu(), on_x, sums); }, usage,
                           {"sums_c is in host memory"}));
  EXPECT_TRUE(
      throws_error([&] { chunk_square_sums(gpu(), x, on_sums); }, usage, {"sums_c is on the GPU"}));
  EXPECT_TRUE(throws_error([&] { first_not_finite(gpu(), on_x, first); }, usage,
                           {"first is in host memory"}));
  EXPECT_TRUE(
      throws_error([&] { first_not_finite(gpu(), x, on_first); }, usage, {"first is on the GPU"}));
  EXPECT_TRUE(throws_error([&] { ordered_sum(gpu(), x.tensor().view({1, kChunk}), on_x); }, usage,
                           {"parts_pn is in host memory"}));
  EXPECT_TRUE(throws_error([&] { add_in_order(on_sums); }, usage, {"sums_c is on the GPU"}));
}

}  // namespace
}  // namespace k25::kernels
