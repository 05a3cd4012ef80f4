// FLOPs against counts by hand (the classic errors: a gated feed-forward counted as two matrices,
// grouped keys as if there were as many as queries, recompute as work of the model).
#include "trainer/model/flops.h"

#include <gtest/gtest.h>

#include "kernels/core/check.h"
#include "trainer/train/progress.h"

namespace k25::trainer {
namespace {

ModelConfig dense() {
  return {.layers = 2,
          .hidden = 8,
          .heads = 4,
          .kv_heads = 4,
          .ffn = 20,
          .vocab = 100,
          .head_dim = 2,
          .pattern = {{}}};
}

TEST(Flops, OfADenseModelByHand) {
  // One token through one layer: q, k, v and out 4 x 8 x 8 = 256; gate, up, down 3 x 8 x 20 = 480.
  // The head: 8 x 100. T = 5: (5 + 1) / 2 = 3 keys; scores and values 2 x 8 x 3 products.
  const std::int64_t matrices = 2 * (256 + 480) + 800;
  const TokenFlops f = token_flops(dense(), 5, {}, LogitsFormed::kTwice);
  EXPECT_EQ(f.model, 6 * matrices + 12 * 2 * 8 * 3);
  EXPECT_EQ(f.forward_products, 2 * matrices);
  EXPECT_EQ(f.forward_attention, 2 * (4 * 8 * 3));
  EXPECT_EQ(f.backward_attention, 2 * (10 * 8 * 3));
  EXPECT_EQ(f.backward_products, 4 * matrices + 2 * 800);  // logits again
  EXPECT_EQ(token_flops(dense(), 5, {}, LogitsFormed::kOnce).backward_products, 4 * matrices);
  EXPECT_EQ(f.recomputed_attention, 0);
  EXPECT_EQ(f.hardware(), f.model + 2 * 800 + 2 * (2 * 8 * 3));  // and the scores
}

TEST(Flops, OneKeyHeadShrinksOnlyKeysAndValues) {
  ModelConfig m = dense();
  m.kv_heads = 1;
  // k and v: 2 x 8 x (8 - 2) fewer elements in each of two layers.
  EXPECT_EQ(token_flops(dense(), 5, {}, LogitsFormed::kTwice).model -
                token_flops(m, 5, {}, LogitsFormed::kTwice).model,
            6 * 2 * (2 * 8 * 6));
}

// D = 8, T = 5. kda: 2 heads, K = 3, V = 4, rank 2; moe: 6 experts, 2 a token, F = 5, one shared.
ModelConfig hybrid() {
  ModelConfig m = dense();
  m.layers = 3;
  m.pattern = {{MixerKind::kKda, FeedForwardKind::kSwiglu},
               {MixerKind::kKda, FeedForwardKind::kMoe},
               {MixerKind::kGqa, FeedForwardKind::kMoe}};
  m.kda = {.heads = 2, .key_dim = 3, .value_dim = 4, .gate_rank = 2};
  m.moe = {.experts = 6, .per_token = 2, .ffn = 5, .shared_experts = 1};
  return m;
}

TEST(Flops, OfKdaAndExpertsByHand) {
  // q|k|v, both gates down and beta: 8 (2 x 10 + 4 + 2) = 208; gates up: 2 x 2 x 7 = 28; out: 64.
  const std::int64_t kda = 208 + 28 + 64, gqa = 256, swiglu = 480;
  // Router 48; two experts and the shared one 3 x 3 x 8 x 5 = 360.
  const std::int64_t moe = 48 + 360;
  const std::int64_t matrices = 2 * kda + gqa + swiglu + 2 * moe + 800;
  const std::int64_t state = 2 * 3 * 4, scores = 4 * 8 * 3;
  const TokenFlops f = token_flops(hybrid(), 5, {{1, 2}}, LogitsFormed::kOnce);
  EXPECT_EQ(f.forward_products, 2 * matrices);
  EXPECT_EQ(f.backward_products, 4 * matrices + 2 * (2 * kda + swiglu + moe));
  EXPECT_EQ(f.forward_attention, 2 * 6 * state + scores);
  EXPECT_EQ(f.recomputed_attention, 2 * 6 * state);
  EXPECT_EQ(f.backward_attention, 2 * 12 * state + 10 * 8 * 3);
  EXPECT_EQ(f.model, 6 * matrices + 3 * (2 * 6 * state + scores));
}

TEST(Flops, OfLatentAttentionByHand) {
  ModelConfig m = dense();
  m.layers = 1;
  m.pattern = {{MixerKind::kMla, FeedForwardKind::kSwiglu}};
  m.mla = {.kv_rank = 5, .nope_dim = 3, .rope_dim = 2, .value_dim = 4};
  // 4 heads. q 8 x 20, c|kr 8 x 7, kn|v 5 x 28, out 16 x 8. T = 5: 3 keys on average.
  const std::int64_t rest = 480 + 800, mla = 160 + 56 + 140 + 128;
  const TokenFlops f = token_flops(m, 5, {{1, 1}}, LogitsFormed::kOnce);
  EXPECT_EQ(f.forward_products, 2 * (mla + rest));
  const std::int64_t scores = 2 * 20 * 3, values = 2 * 16 * 3;
  EXPECT_EQ(f.forward_attention, scores + values);
  EXPECT_EQ(f.recomputed_attention, scores + values);
  // Scores again, dq and dk; dv and the gradient of the weights.
  EXPECT_EQ(f.backward_attention, 3 * scores + 2 * values);
  EXPECT_EQ(f.model, 6 * (mla + rest) + 3 * (scores + values));
  m.mla.q_rank = 6;  // 8 x 6 and 6 x 20 in the place of 8 x 20
  EXPECT_EQ(token_flops(m, 5, {}, LogitsFormed::kOnce).forward_products,
            2 * (mla + rest - 160 + 48 + 120));
}

TEST(Flops, LatentExpertsPayForTheWayThere) {
  ModelConfig m = hybrid();
  m.moe.latent = 4;
  // In two layers: down and up 2 x 8 x 4, and the two routed experts half as wide.
  EXPECT_EQ(token_flops(m, 5, {}, LogitsFormed::kOnce).forward_products -
                token_flops(hybrid(), 5, {}, LogitsFormed::kOnce).forward_products,
            2 * 2 * (64 - 3 * 2 * 4 * 5));
}

TEST(Flops, RecomputeIsTheHardwaresAlone) {
  const TokenFlops none = token_flops(dense(), 5, {}, LogitsFormed::kTwice),
                   one = token_flops(dense(), 5, {{2, 2}}, LogitsFormed::kTwice);
  EXPECT_EQ(one.model, none.model);
  // Forward of one layer: its matrices twice, its attention.
  EXPECT_EQ(one.hardware() - none.hardware(), 2 * (256 + 480) + 4 * 8 * 3);
}

TEST(Flops, TheLogLineCountsTheSame) {
  EXPECT_EQ(flops_per_token(dense(), 5),
            static_cast<double>(token_flops(dense(), 5, {{1, 2}}, LogitsFormed::kTwice).model));
}

TEST(Flops, RecipesModel) {
  const ModelConfig m{.layers = 32,
                      .hidden = 4096,
                      .heads = 32,
                      .kv_heads = 8,
                      .ffn = 14336,
                      .vocab = 163840,
                      .head_dim = 128,
                      .pattern = {{}}};
  // 32 x (4096 x 6144 + 4096 x 4096 + 3 x 4096 x 14336) + 4096 x 163840 = 7650410496 matrix
  // elements; 12 x 32 x 4096 x 4097 / 2 of attention.
  EXPECT_EQ(token_flops(m, 4096, {}, LogitsFormed::kTwice).model,
            6 * 7650410496LL + 12LL * 32 * 4096 * 4097 / 2);
}

TEST(Flops, MoreThanAnyMachineIsRefused) {
  ModelConfig m = dense();
  m.hidden = m.ffn = std::int64_t{1} << 40;
  EXPECT_THROW(token_flops(m, 5, {}, LogitsFormed::kTwice), Error);
  EXPECT_THROW(checked_product(std::int64_t{1} << 40, std::int64_t{1} << 40), Error);
}

}  // namespace
}  // namespace k25::trainer
