#include "kernels/embedding/embedding.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/kernels/op_test.h"

namespace k25::kernels {
namespace {

using op_test::GuardedTensor;
using op_test::Layout;
using op_test::random_tensor;
using op_test::throws_error;

constexpr DType kFloats[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat64};

DType gradient_dtype(DType t) { return t == DType::kFloat64 ? t : DType::kFloat32; }

GuardedTensor tokens_of(const std::vector<double>& values) {
  return GuardedTensor(DType::kInt32, {static_cast<std::int64_t>(values.size())}, values);
}

/// `count` tokens below `vocab`, with repeats.
GuardedTensor random_tokens(std::int64_t count, std::int64_t vocab) {
  std::vector<double> values = op_test::random_values("tokens", count, 0, 1);
  for (double& v : values)
    v = static_cast<double>(static_cast<std::int64_t>(v * static_cast<double>(vocab)));
  return tokens_of(values);
}

struct Sizes {
  std::int64_t tokens, vocab, hidden;
};
constexpr Sizes kSizes[] = {{0, 5, 4},    {1, 1, 1},      {7, 3, 5},       {63, 10, 127},
                            {64, 9, 128}, {65, 100, 129}, {200, 1000, 257}};

TEST(Embedding, LooksUpByHand) {
  op_test::for_each_isa([](Context& ctx) {
    const GuardedTensor table(DType::kFloat32, {3, 2}, std::vector<double>{1, 2, 3, 4, 5, 6});
    const GuardedTensor token = tokens_of({2, 0, 2});
    const GuardedTensor out(DType::kFloat32, {3, 2});
    const EmbeddingPlan plan = embedding_plan({.tokens = 3, .vocab = 3, .hidden = 2});
    EXPECT_EQ(plan.workspace_bytes, Bytes{0});
    embedding_forward(ctx, plan, {.token_N = token, .table_VD = table}, {.out_ND = out}, {});
    EXPECT_EQ(out.get(), (std::vector<double>{5, 6, 1, 2, 5, 6}));
  });
}

TEST(Embedding, BackwardAddsRepeatedTokensToWhatIsThere) {
  op_test::for_each_isa([](Context& ctx) {
    const GuardedTensor token = tokens_of({2, 0, 2});
    const GuardedTensor dout(DType::kFloat32, {3, 2}, std::vector<double>{1, 2, 3, 4, 5, 6});
    const GuardedTensor dtable(DType::kFloat32, {3, 2},
                               std::vector<double>{10, 10, 20, 20, 30, 30});
    const EmbeddingPlan plan = embedding_plan({.tokens = 3, .vocab = 3, .hidden = 2});
    embedding_backward(ctx, plan, {.token_N = token, .dout_ND = dout}, {.dtable_VD = dtable}, {});
    EXPECT_EQ(dtable.get(), (std::vector<double>{13, 14, 20, 20, 36, 38}));
  });
}

TEST(Embedding, BackwardAddsInTokenOrder) {
  // 2^24 + 1 + 1 stays 2^24 in fp32 from the left; 1 + 1 + 2^24 does not.
  op_test::for_each_context([](Context& ctx) {
    const EmbeddingPlan plan = embedding_plan({.tokens = 3, .vocab = 1, .hidden = 300});
    const GuardedTensor token = tokens_of({0, 0, 0});
    GuardedTensor dout(DType::kFloat32, {3, 300});
    for (std::int64_t i = 0; i < 300; ++i) dout.set(i, 0x1p24);
    for (std::int64_t i = 300; i < 900; ++i) dout.set(i, 1);
    GuardedTensor dtable(DType::kFloat32, {1, 300});
    dtable.fill(0);
    embedding_backward(ctx, plan, {.token_N = token, .dout_ND = dout}, {.dtable_VD = dtable}, {});
    EXPECT_EQ(dtable.get(), std::vector<double>(300, 0x1p24));

    for (std::int64_t i = 0; i < 600; ++i) dout.set(i, 1);
    for (std::int64_t i = 600; i < 900; ++i) dout.set(i, 0x1p24);
    dtable.fill(0);
    embedding_backward(ctx, plan, {.token_N = token, .dout_ND = dout}, {.dtable_VD = dtable}, {});
    EXPECT_EQ(dtable.get(), std::vector<double>(300, 0x1p24 + 2));
  });
}

TEST(Embedding, ForwardCopiesEveryShapeWithStrides) {
  for (const DType dtype : kFloats) {
    for (const Sizes& s : kSizes) {
      const GuardedTensor table =
          random_tensor("table", dtype, {s.vocab, s.hidden}, Layout{.row_padding = 3, .shift = 1});
      const GuardedTensor token = random_tokens(s.tokens, s.vocab);
      op_test::for_each_context([&](Context& ctx) {
        const GuardedTensor out(dtype, {s.tokens, s.hidden}, Layout{.row_padding = 2, .shift = 5});
        const EmbeddingPlan plan = embedding_plan(
            {.tokens = s.tokens, .vocab = s.vocab, .hidden = s.hidden, .dtype = dtype});
        embedding_forward(ctx, plan, {.token_N = token, .table_VD = table}, {.out_ND = out}, {});
        for (std::int64_t n = 0; n < s.tokens; ++n) {
          for (std::int64_t d = 0; d < s.hidden; ++d) {
            const auto row = static_cast<std::int64_t>(token.get(n));
            ASSERT_EQ(out.get(n * s.hidden + d), table.get(row * s.hidden + d));
          }
        }
        EXPECT_TRUE(out.guards_intact());
      });
    }
  }
}

TEST(Embedding, BackwardEqualsTheOracleBitForBit) {
  for (const DType dtype : kFloats) {
    for (const Sizes& s : kSizes) {
      const GuardedTensor dout =
          random_tensor("dout", dtype, {s.tokens, s.hidden}, Layout{.row_padding = 1, .shift = 3});
      const GuardedTensor token = random_tokens(s.tokens, s.vocab);
      const DType sum = gradient_dtype(dtype);
      std::vector<double> expected = random_tensor("dtable", sum, {s.vocab, s.hidden}).get();
      for (std::int64_t n = 0; n < s.tokens; ++n) {
        for (std::int64_t d = 0; d < s.hidden; ++d) {
          const auto row = static_cast<std::int64_t>(token.get(n));
          double& e = expected[static_cast<std::size_t>(row * s.hidden + d)];
          e = op_test::round_to(sum, e + dout.get(n * s.hidden + d));
        }
      }
      op_test::for_each_context([&](Context& ctx) {
        const GuardedTensor dtable =
            random_tensor("dtable", sum, {s.vocab, s.hidden}, Layout{.row_padding = 5});
        const EmbeddingPlan plan = embedding_plan(
            {.tokens = s.tokens, .vocab = s.vocab, .hidden = s.hidden, .dtype = dtype});
        embedding_backward(ctx, plan, {.token_N = token, .dout_ND = dout}, {.dtable_VD = dtable},
                           {});
        EXPECT_EQ(dtable.get(), expected);
        EXPECT_TRUE(dtable.guards_intact());
      });
    }
  }
}

TEST(Embedding, GradientMatchesFiniteDifferences) {
  Context ctx = op_test::make_context();
  GuardedTensor table = random_tensor("table", DType::kFloat64, {4, 3});
  const GuardedTensor token = tokens_of({1, 3, 1, 0, 1});
  const std::vector<double> w = op_test::random_values("w", 15);
  const GuardedTensor dout(DType::kFloat64, {5, 3}, w);
  GuardedTensor dtable(DType::kFloat64, {4, 3});
  dtable.fill(0);
  const EmbeddingPlan plan =
      embedding_plan({.tokens = 5, .vocab = 4, .hidden = 3, .dtype = DType::kFloat64});
  embedding_backward(ctx, plan, {.token_N = token, .dout_ND = dout}, {.dtable_VD = dtable}, {});
  const GuardedTensor out(DType::kFloat64, {5, 3});
  EXPECT_TRUE(op_test::gradient_near(table, dtable.get(), [&] {
    embedding_forward(ctx, plan, {.token_N = token, .table_VD = table}, {.out_ND = out}, {});
    return op_test::weighted_sum(w, out.get());
  }));
}

TEST(Embedding, TokenOutOfRangeIsRefusedBeforeAnythingIsWritten) {
  Context ctx = op_test::make_context();
  const EmbeddingPlan plan = embedding_plan({.tokens = 3, .vocab = 4, .hidden = 2});
  const GuardedTensor table = random_tensor("table", DType::kFloat32, {4, 2});
  const GuardedTensor dout = random_tensor("dout", DType::kFloat32, {3, 2});
  for (const double bad : {4.0, -1.0, 2147483647.0}) {
    const GuardedTensor token = tokens_of({0, 3, bad});
    const GuardedTensor out = random_tensor("before", DType::kFloat32, {3, 2});
    const GuardedTensor dtable = random_tensor("before", DType::kFloat32, {4, 2});
    const std::vector<std::uint8_t> out_before = out.bits();
    const std::vector<std::uint8_t> dtable_before = dtable.bits();
    const std::string value = std::to_string(static_cast<std::int64_t>(bad));
    EXPECT_TRUE(throws_error(
        [&] {
          embedding_forward(ctx, plan, {.token_N = token, .table_VD = table}, {.out_ND = out}, {});
        },
        ErrorKind::kUsage, {"token " + value, "position 2", "vocabulary of 4"}));
    EXPECT_TRUE(throws_error(
        [&] {
          embedding_backward(ctx, plan, {.token_N = token, .dout_ND = dout}, {.dtable_VD = dtable},
                             {});
        },
        ErrorKind::kUsage, {"token " + value, "position 2", "vocabulary of 4"}));
    EXPECT_EQ(out.bits(), out_before);
    EXPECT_EQ(dtable.bits(), dtable_before);
  }
}

TEST(Embedding, RefusesWhatDoesNotFit) {
  Context ctx = op_test::make_context();
  const ErrorKind usage = ErrorKind::kUsage;
  EXPECT_TRUE(throws_error([] { embedding_plan({.tokens = -1, .vocab = 2, .hidden = 2}); }, usage,
                           {"tokens -1", "not be negative"}));
  EXPECT_TRUE(throws_error(
      [] { embedding_plan({.tokens = 1, .vocab = 1, .hidden = 1, .dtype = DType::kInt64}); }, usage,
      {"int64"}));
  const EmbeddingPlan plan =
      embedding_plan({.tokens = 2, .vocab = 4, .hidden = 2, .dtype = DType::kBFloat16});
  const GuardedTensor token = tokens_of({0, 1});
  const GuardedTensor table(DType::kBFloat16, {4, 2});
  const GuardedTensor out(DType::kBFloat16, {2, 2});
  const GuardedTensor long_token(DType::kInt64, {2});
  const GuardedTensor wrong_table(DType::kBFloat16, {4, 3});
  const GuardedTensor low_gradient(DType::kBFloat16, {4, 2});
  EXPECT_TRUE(throws_error(
      [&] {
        embedding_forward(ctx, plan, {.token_N = long_token, .table_VD = table}, {.out_ND = out},
                          {});
      },
      usage, {"token_N is int64 [2]", "expected int32 [2]"}));
  EXPECT_TRUE(throws_error(
      [&] {
        embedding_forward(ctx, plan, {.token_N = token, .table_VD = wrong_table}, {.out_ND = out},
                          {});
      },
      usage, {"table_VD is bf16 [4, 3]", "expected bf16 [4, 2]"}));
  EXPECT_TRUE(throws_error(
      [&] { embedding_forward(ctx, plan, {.token_N = token, .table_VD = table}, {}, {}); }, usage,
      {"out_ND is missing"}));
  EXPECT_TRUE(throws_error(
      [&] {
        embedding_backward(ctx, plan, {.token_N = token, .dout_ND = out},
                           {.dtable_VD = low_gradient}, {});
      },
      usage, {"dtable_VD is bf16", "expected fp32 [4, 2]"}));
  const Tensor device(out.tensor().raw(), DType::kBFloat16, {2, 2}, Device::kCuda);
  EXPECT_TRUE(throws_error(
      [&] {
        embedding_forward(ctx, plan, {.token_N = token, .table_VD = table}, {.out_ND = device}, {});
      },
      usage, {"out_ND is on the GPU"}));
}

}  // namespace
}  // namespace k25::kernels
