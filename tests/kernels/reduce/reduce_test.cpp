#include "kernels/reduce/reduce.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/kernels/op_test.h"

namespace k25::kernels {
namespace {

using op_test::GuardedTensor;
using op_test::Layout;
using op_test::random_tensor;
using op_test::throws_error;

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNan = std::numeric_limits<double>::quiet_NaN();

std::vector<double> square_sums(Context& ctx, const ConstTensor& x) {
  const GuardedTensor sums(DType::kFloat64, {x.dim(0) / kChunk});
  chunk_square_sums(ctx, x, sums);
  EXPECT_TRUE(sums.guards_intact());
  return sums.get();
}

/// The order that reduce.h documents, written down lane by lane.
double naive_chunk(const GuardedTensor& x, std::int64_t chunk) {
  std::vector<double> lane(32, 0.0);
  for (std::size_t l = 0; l < 32; ++l) {
    for (std::int64_t i = static_cast<std::int64_t>(l); i < kChunk; i += 32) {
      const double v = x.get(chunk * kChunk + i);
      lane[l] = lane[l] + v * v;
    }
  }
  for (std::size_t half : {16u, 8u, 4u, 2u, 1u}) {
    for (std::size_t l = 0; l < half; ++l) lane[l] = lane[l] + lane[l + half];
  }
  return lane[0];
}

TEST(ChunkSquareSums, ByHand) {
  op_test::for_each_isa([](Context& ctx) {
    GuardedTensor x(DType::kFloat32, {2 * kChunk});
    x.fill(0);
    x.set(0, 3);
    x.set(kChunk - 1, -4);
    x.set(kChunk, 0.5);
    EXPECT_EQ(square_sums(ctx, x), (std::vector<double>{25, 0.25}));
  });
}

TEST(ChunkSquareSums, EqualsTheDocumentedOrderBitForBit) {
  for (const std::int64_t chunks : {0, 1, 7, 8, 9, 20}) {
    for (const std::int64_t shift : {0, 1, 13}) {
      GuardedTensor x =
          random_tensor("x", DType::kFloat32, {chunks * kChunk}, Layout{.shift = shift});
      // Wide exponents, so that another order would round differently.
      for (std::int64_t i = 0; i < x.count(); ++i) {
        x.set(i, std::ldexp(x.get(i), static_cast<int>(i * 7 % 40) - 20));
      }
      std::vector<double> expected;
      for (std::int64_t c = 0; c < chunks; ++c) expected.push_back(naive_chunk(x, c));
      op_test::for_each_context([&](Context& ctx) { EXPECT_EQ(square_sums(ctx, x), expected); });
    }
  }
}

TEST(ChunkSquareSums, TheWholeRangeOfFp32Fits) {
  op_test::for_each_isa([](Context& ctx) {
    GuardedTensor x(DType::kFloat32, {kChunk});
    x.fill(0x1p127);
    EXPECT_EQ(square_sums(ctx, x)[0], 0x1p254 * kChunk);
    x.fill(std::numeric_limits<float>::max());
    EXPECT_EQ(square_sums(ctx, x)[0], naive_chunk(x, 0));
    EXPECT_TRUE(std::isfinite(square_sums(ctx, x)[0]));
    const double smallest = std::numeric_limits<float>::denorm_min();
    x.fill(smallest);
    EXPECT_EQ(square_sums(ctx, x)[0], smallest * smallest * kChunk);
    EXPECT_GT(square_sums(ctx, x)[0], 0);
  });
}

TEST(ChunkSquareSums, NotFiniteInNotFiniteOutInThatChunkAlone) {
  op_test::for_each_isa([](Context& ctx) {
    for (const double bad : {kInf, -kInf, kNan}) {
      for (const std::int64_t at : {std::int64_t{0}, kChunk - 1, std::int64_t{2049}}) {
        GuardedTensor x(DType::kFloat32, {3 * kChunk});
        x.fill(1);
        x.set(kChunk + at, bad);
        const std::vector<double> sums = square_sums(ctx, x);
        EXPECT_EQ(sums[0], kChunk);
        EXPECT_FALSE(std::isfinite(sums[1]));
        EXPECT_EQ(sums[2], kChunk);
      }
    }
  });
}

TEST(ChunkSquareSums, RefusesWhatDoesNotFit) {
  Context ctx = op_test::make_context();
  const ErrorKind usage = ErrorKind::kUsage;
  const GuardedTensor odd(DType::kFloat32, {kChunk + 1});
  const GuardedTensor x(DType::kFloat32, {kChunk});
  const GuardedTensor sums(DType::kFloat64, {1});
  const GuardedTensor single(DType::kFloat32, {1});
  const GuardedTensor two(DType::kFloat64, {2});
  EXPECT_TRUE(throws_error([&] { chunk_square_sums(ctx, odd, sums); }, usage,
                           {"4097", "multiple", "4096"}));
  EXPECT_TRUE(throws_error([&] { chunk_square_sums(ctx, x, single); }, usage,
                           {"sums_c is fp32 [1]", "expected fp64 [1]"}));
  EXPECT_TRUE(throws_error([&] { chunk_square_sums(ctx, x, two); }, usage, {"sums_c is fp64 [2]"}));
  EXPECT_TRUE(throws_error([&] { chunk_square_sums(ctx, x.tensor().view({64, 64}), sums); }, usage,
                           {"x_n is [64, 64]", "one dimension"}));
  const Tensor device(sums.tensor().raw(), DType::kFloat64, {1}, Device::kCuda);
  EXPECT_TRUE(
      throws_error([&] { chunk_square_sums(ctx, x, device); }, usage, {"sums_c is on the GPU"}));
}

TEST(RowSums, AddsInTheDocumentedLanes) {
  for (const std::int64_t cols : {0, 1, 31, 32, 33, 1000}) {
    GuardedTensor x = random_tensor("x", DType::kFloat32, {5, cols}, Layout{.row_padding = 3});
    for (std::int64_t i = 0; i < x.count(); ++i) x.set(i, std::ldexp(x.get(i), i % 40));
    std::vector<double> want;
    for (std::int64_t r = 0; r < 5; ++r) {
      std::vector<double> lane(32, 0.0);
      for (std::int64_t i = 0; i < cols; ++i) {
        lane[static_cast<std::size_t>(i % 32)] += x.get(r * cols + i);
      }
      for (std::size_t half : {16u, 8u, 4u, 2u, 1u}) {
        for (std::size_t l = 0; l < half; ++l) lane[l] = lane[l] + lane[l + half];
      }
      want.push_back(lane[0]);
    }
    op_test::for_each_context([&](Context& ctx) {
      const GuardedTensor sums(DType::kFloat64, {5});
      row_sums(ctx, x, sums);
      EXPECT_EQ(sums.get(), want);
      EXPECT_TRUE(sums.guards_intact());
    });
  }
}

TEST(RowSums, RefusesWhatDoesNotFit) {
  Context ctx = op_test::make_context();
  const GuardedTensor x(DType::kFloat32, {4, 8}), sums(DType::kFloat64, {3});
  EXPECT_TRUE(throws_error([&] { row_sums(ctx, x, sums); }, ErrorKind::kUsage,
                           {"row_sums: x_rn is fp32 [4, 8]", "expected fp32 [3, 8]"}));
}

TEST(AddInOrder, AddsFromTheFirst) {
  // 1 + 1 + 2^53 is exact from the left, 2^53 + 1 + 1 loses both ones.
  const GuardedTensor up(DType::kFloat64, {3}, std::vector<double>{1, 1, 0x1p53});
  const GuardedTensor down(DType::kFloat64, {3}, std::vector<double>{0x1p53, 1, 1});
  EXPECT_EQ(add_in_order(up), 0x1p53 + 2);
  EXPECT_EQ(add_in_order(down), 0x1p53);
  EXPECT_EQ(add_in_order(GuardedTensor(DType::kFloat64, {0})), 0);
  const GuardedTensor bad(DType::kFloat64, {2}, std::vector<double>{1, kNan});
  EXPECT_TRUE(std::isnan(add_in_order(bad)));
  EXPECT_TRUE(throws_error([] { add_in_order(GuardedTensor(DType::kFloat32, {2})); },
                           ErrorKind::kUsage, {"sums_c is fp32 [2]", "expected fp64"}));
}

TEST(OrderedSum, AddsPartsInIndexOrder) {
  op_test::for_each_isa([](Context& ctx) {
    // acc + 1 + 1 with acc = 2^24 stays; parts 1, 1, 2^24 on acc = 0 give 2^24 + 2.
    const GuardedTensor parts(DType::kFloat32, {3, 2}, std::vector<double>{1, 1, 1, 1, 0, 0x1p24});
    const GuardedTensor acc(DType::kFloat32, {2}, std::vector<double>{0x1p24, 0});
    ordered_sum(ctx, parts, acc);
    EXPECT_EQ(acc.get(), (std::vector<double>{0x1p24, 0x1p24 + 2}));
  });
}

TEST(OrderedSum, EqualsTheOracleBitForBit) {
  for (const std::int64_t num_parts : {0, 1, 2, 5, 12}) {
    for (const std::int64_t n : {0, 1, 15, 16, 17, 1023, 1024, 1025, 32768, 40001}) {
      const GuardedTensor parts = random_tensor("parts", DType::kFloat32, {num_parts, n},
                                                Layout{.row_padding = 3, .shift = 1});
      std::vector<double> expected = random_tensor("acc", DType::kFloat32, {n}).get();
      for (std::int64_t p = 0; p < num_parts; ++p) {
        for (std::int64_t i = 0; i < n; ++i) {
          double& e = expected[static_cast<std::size_t>(i)];
          e = static_cast<float>(e) + static_cast<float>(parts.get(p * n + i));
        }
      }
      op_test::for_each_context([&](Context& ctx) {
        const GuardedTensor acc = random_tensor("acc", DType::kFloat32, {n}, Layout{.shift = 5});
        ordered_sum(ctx, parts, acc);
        EXPECT_EQ(acc.get(), expected);
        EXPECT_TRUE(acc.guards_intact());
      });
    }
  }
}

TEST(OrderedSum, RefusesWhatDoesNotFit) {
  Context ctx = op_test::make_context();
  const ErrorKind usage = ErrorKind::kUsage;
  const GuardedTensor parts(DType::kFloat32, {2, 3});
  const GuardedTensor acc(DType::kFloat32, {3});
  const GuardedTensor wide(DType::kFloat32, {4});
  const GuardedTensor low(DType::kBFloat16, {2, 3});
  EXPECT_TRUE(throws_error([&] { ordered_sum(ctx, parts, wide); }, usage,
                           {"parts_pn is fp32 [2, 3]", "expected fp32 [2, 4]"}));
  EXPECT_TRUE(throws_error([&] { ordered_sum(ctx, low, acc); }, usage, {"parts_pn is bf16"}));
  EXPECT_TRUE(
      throws_error([&] { ordered_sum(ctx, acc, acc); }, usage, {"parts_pn is [3]", "[parts, n]"}));
}

TEST(FirstNotFinite, FindsEveryKindAtEveryPlace) {
  op_test::for_each_context([](Context& ctx) {
    for (const std::int64_t n : {1, 511, 512, 513, 100000}) {
      GuardedTensor x = random_tensor("x", DType::kFloat32, {n}, Layout{.shift = 3});
      x.set(n - 1, std::numeric_limits<float>::max());
      x.set(0, n == 1 ? -std::numeric_limits<float>::denorm_min() : -0.0);
      const GuardedTensor first(DType::kInt64, {1});
      first_not_finite(ctx, x, first);
      EXPECT_EQ(first.get(0), n);
      for (const double bad : {kInf, -kInf, kNan, -kNan}) {
        for (const std::int64_t at : {std::int64_t{0}, n / 3, n / 2, n - 1}) {
          const double saved = x.get(at);
          const double last = x.get(n - 1);
          x.set(n - 1, kInf);  // a later one must not win
          x.set(at, bad);
          first_not_finite(ctx, x, first);
          EXPECT_EQ(first.get(0), at);
          x.set(n - 1, last);
          x.set(at, saved);
        }
      }
    }
  });
}

TEST(FirstNotFinite, WritesTheIndexOrTheCount) {
  op_test::for_each_context([](Context& ctx) {
    for (const std::int64_t n : {0, 1, 513, 100000}) {
      GuardedTensor x = random_tensor("x", DType::kFloat32, {n});
      const GuardedTensor first(DType::kInt64, {1});
      first_not_finite(ctx, x, first);
      EXPECT_EQ(first.get(0), n);
      for (const std::int64_t at : {std::int64_t{0}, n / 2, n - 1}) {
        if (n == 0) continue;
        x.set(n - 1, kInf);
        x.set(at, kNan);
        first_not_finite(ctx, x, first);
        EXPECT_EQ(first.get(0), at);
        x.set(at, 1);
      }
      EXPECT_TRUE(first.guards_intact());
    }
    const GuardedTensor x(DType::kFloat32, {3}), wrong(DType::kFloat32, {1});
    EXPECT_TRUE(throws_error([&] { first_not_finite(ctx, x, wrong); }, ErrorKind::kUsage,
                             {"first is fp32 [1]", "expected int64 [1]"}));
    const GuardedTensor wide(DType::kFloat64, {2}), first(DType::kInt64, {1});
    EXPECT_TRUE(throws_error([&] { first_not_finite(ctx, wide, first); }, ErrorKind::kUsage,
                             {"x_n is fp64 [2]", "expected fp32 [2]"}));
  });
}

}  // namespace
}  // namespace k25::kernels
