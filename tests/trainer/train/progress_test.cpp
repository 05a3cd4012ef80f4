// Model FLOPs against counts made one matrix multiplication at a time.
#include "trainer/train/progress.h"

#include <gtest/gtest.h>

namespace k25::trainer {
namespace {

ModelConfig model(std::int64_t hidden, std::int64_t heads, std::int64_t kv_heads,
                  std::int64_t head_dim, std::int64_t ffn) {
  ModelConfig m;
  m.layers = 3, m.vocab = 512, m.pattern = {{}};
  m.hidden = hidden, m.heads = heads, m.kv_heads = kv_heads, m.head_dim = head_dim, m.ffn = ffn;
  return m;
}

// Forward FLOPs of `tokens` tokens: 2 for each multiply-add, each key that a query sees.
std::int64_t forward_flops(const ModelConfig& m, std::int64_t tokens) {
  std::int64_t flops = 0;
  for (std::int64_t layer = 0; layer < m.layers; ++layer) {
    flops += 2 * tokens * m.hidden * m.heads * m.head_dim;         // queries
    flops += 2 * 2 * tokens * m.hidden * m.kv_heads * m.head_dim;  // keys and values
    flops += 2 * tokens * m.heads * m.head_dim * m.hidden;         // output
    for (std::int64_t t = 0; t < tokens; ++t) {
      flops += m.heads * (t + 1) * 2 * m.head_dim * 2;  // scores, and values weighted by them
    }
    flops += 3 * 2 * tokens * m.hidden * m.ffn;  // gate, up, down
  }
  return flops + 2 * tokens * m.hidden * m.vocab;  // head; the embedding is a lookup
}

TEST(Flops, equal_a_count_by_hand) {
  for (const std::int64_t tokens : {1, 2, 7, 128, 257}) {
    for (const ModelConfig& m : {model(64, 4, 4, 16, 128),     // as many key heads as query heads
                                 model(64, 4, 1, 16, 128),     // one key head for all
                                 model(64, 4, 2, 32, 100)}) {  // heads wider than hidden / heads
      EXPECT_EQ(flops_per_token(m, tokens) * static_cast<double>(tokens),
                static_cast<double>(3 * forward_flops(m, tokens)))
          << tokens;
    }
  }
}

TEST(Flops, a_number_known_by_heart) {
  // One layer of width 2, one head, feed-forward 3, vocabulary 5, one token:
  // 4 projections of 2x2, three of 2x3, a head of 2x5 = 16 + 18 + 10 = 44 multiply-adds, 2 + 2 for
  // attention.
  ModelConfig m = model(2, 1, 1, 2, 3);
  m.layers = 1, m.vocab = 5;
  EXPECT_EQ(flops_per_token(m, 1), 3 * 2 * (44 + 4));
}

TEST(Flops, the_tied_head_still_multiplies) {
  ModelConfig m = model(64, 4, 2, 16, 128);
  const double untied = flops_per_token(m, 32);
  m.tie_embeddings = true;
  EXPECT_EQ(flops_per_token(m, 32), untied);
}

}  // namespace
}  // namespace k25::trainer
