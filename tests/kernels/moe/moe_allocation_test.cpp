// The ops of a mixture of experts never allocate, with or without threads.

#include <gtest/gtest.h>

#include <vector>

#include "kernels/moe/balance.h"
#include "kernels/moe/combine.h"
#include "kernels/moe/correction_bias.h"
#include "kernels/moe/experts.h"
#include "kernels/moe/permute.h"
#include "kernels/moe/router.h"
#include "tests/kernels/allocation_counter.h"
#include "tests/kernels/op_test.h"

namespace k25::kernels {
namespace {

using op_test::expect_no_allocation;
using op_test::GuardedTensor;
using op_test::random_tensor;

TEST(MoeAllocation, TheCounterSeesAllocations) { op_test::expect_counted_allocation(); }

constexpr std::int64_t kTokens = 300, kExperts = 16, kTopK = 4, kRows = kTokens * kTopK;
constexpr std::int64_t kHidden = 24, kFfn = 20;

TEST(MoeAllocation, RouterBiasAndBalance) {
  const DType t = DType::kFloat32;
  const GuardedTensor logits = random_tensor("logits", t, {kTokens, kExperts});
  const GuardedTensor bias = random_tensor("bias", t, {kExperts});
  const GuardedTensor scores(t, {kTokens, kExperts}), dscores(t, {kTokens, kExperts});
  const GuardedTensor weight(t, {kTokens, kTopK}), index(DType::kInt32, {kTokens, kTopK});
  const GuardedTensor fraction(t, {1, kExperts}), loss(t, {kTokens});
  const GuardedTensor start(DType::kInt64, {2}, std::vector<double>{0, kTokens});
  GuardedTensor count(DType::kInt64, {kExperts});
  count.fill(3);
  const MoeRouterPlan router = moe_router_plan(
      {.tokens = kTokens, .experts = kExperts, .top_k = kTopK, .groups = 4, .top_groups = 2});
  const MoeBalancePlan balance = moe_balance_plan(
      {.tokens = kTokens, .experts = kExperts, .top_k = kTopK, .coefficient = 0.1});
  const op_test::Scratch scratch(balance.workspace_bytes);
  expect_no_allocation([&](Context& ctx) {
    moe_router_forward(ctx, router, {logits, bias}, {scores, weight, index}, {});
    moe_fractions(ctx, balance, {index, start}, {fraction}, scratch.workspace());
    moe_balance_forward(ctx, balance, {scores, fraction, start}, {loss}, {});
    moe_balance_backward(ctx, balance, {scores, fraction, start}, {dscores}, {});
    moe_router_backward(ctx, router, {weight, scores, index, dscores}, {dscores}, {});
    moe_update_correction_bias(bias, count, 0.001);
  });
}

TEST(MoeAllocation, PermuteExpertsAndCombine) {
  for (const DType t : {DType::kFloat32, DType::kBFloat16}) {
    GuardedTensor index(DType::kInt32, {kTokens, kTopK});
    for (std::int64_t i = 0; i < kRows; ++i) {  // one expert gets enough rows for a large group
      index.set(i, static_cast<double>(i % kTopK == 0 ? 0 : i % (kExperts - 1) + 1));
    }
    const GuardedTensor count(DType::kInt64, {kExperts}), offset(DType::kInt64, {kExperts + 1});
    const GuardedTensor row(DType::kInt32, {kTokens, kTopK}), choice(DType::kInt32, {kRows});
    const GuardedTensor x = random_tensor("x", t, {kTokens, kHidden});
    const GuardedTensor weight = random_tensor("weight", DType::kFloat32, {kTokens, kTopK});
    const GuardedTensor up = random_tensor("up", t, {kExperts, 2 * kFfn, kHidden});
    const GuardedTensor down = random_tensor("down", t, {kExperts, kHidden, kFfn});
    const GuardedTensor rows(t, {kRows, kHidden}), pair(t, {kRows, 2 * kFfn});
    const GuardedTensor y(t, {kRows, kHidden}), dweight(DType::kFloat32, {kTokens, kTopK});
    const GuardedTensor d_up(DType::kFloat32, {kExperts, 2 * kFfn, kHidden});
    const GuardedTensor d_down(DType::kFloat32, {kExperts, kHidden, kFfn});
    const MoePermutePlan permute = moe_permute_plan(
        {.tokens = kTokens, .experts = kExperts, .top_k = kTopK, .hidden = kHidden, .dtype = t});
    const MoeCombinePlan combine =
        moe_combine_plan({.tokens = kTokens, .top_k = kTopK, .hidden = kHidden, .dtype = t});
    const MoeExpertsPlan experts = moe_experts_plan(
        {.experts = kExperts, .max_rows = kRows, .hidden = kHidden, .ffn = kFfn, .dtype = t});
    const op_test::Scratch scratch(experts.workspace_bytes);
    expect_no_allocation([&](Context& ctx) {
      moe_sort(ctx, permute, {index}, {count, offset, row, choice}, {});
      moe_permute_forward(ctx, permute, {x, choice}, {rows}, {});
      moe_experts_forward(ctx, experts, {rows, up, down, offset}, {pair, y}, scratch.workspace());
      moe_combine_forward(ctx, combine, {y, weight, row}, {x}, {});
      moe_combine_backward(ctx, combine, {x, y, weight, row, choice}, {y, dweight}, {});
      moe_experts_backward(ctx, experts, {y, rows, pair, up, down, offset}, {y, d_up, d_down},
                           scratch.workspace());
      moe_permute_backward(ctx, permute, {y, row}, {x}, {});
    });
    EXPECT_GE(count.get(0), 256);
  }
}

}  // namespace
}  // namespace k25::kernels
