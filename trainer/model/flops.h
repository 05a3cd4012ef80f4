#pragma once
// FLOPs of training, counted by hand from the sizes of the matrix products.
//
// For one token of full causal attention over T tokens, with D hidden, A = heads x head_dim,
// C = kv_heads x head_dim, F ffn, V vocab, L layers, R of them recomputed:
//   layer matrices     M = D (A + 2 C) + A D + 3 D F,  head  H = D V
//   model              6 (L M + H) + 12 L A (T + 1) / 2
//   products           6 (L M + H) + 2 R M (+ 2 H where the head's logits are formed twice)
//   attention forward  (L + R) 4 A (T + 1) / 2
//   attention backward L 10 A (T + 1) / 2              (scores are formed again)
//   hardware           products + both attentions
// Embedding lookups, norms and elementwise work are no FLOPs here; they count as bytes.

#include <cstdint>

#include "trainer/config/config.h"

namespace k25::trainer {

struct TokenFlops {
  std::int64_t model = 0;
  std::int64_t forward_products = 0, backward_products = 0;  ///< recompute is backward's
  std::int64_t forward_attention = 0;                        ///< of forward itself
  std::int64_t recomputed_attention = 0;                     ///< forward's, in backward
  std::int64_t backward_attention = 0;
  std::int64_t hardware() const {
    return forward_products + backward_products + forward_attention + recomputed_attention +
           backward_attention;
  }
};

/// Twice where their chunk of the vocabulary is not the whole one (kernels/cross_entropy).
enum class LogitsFormed : std::uint8_t { kOnce, kTwice };

/// `recomputed`: layers that keep only their input. Throws kUsage when a count exceeds 2^63.
TokenFlops token_flops(const ModelConfig& model, std::int64_t sequence, std::int64_t recomputed,
                       LogitsFormed logits);

/// a x b; throws kUsage when that exceeds 2^63.
std::int64_t checked_product(std::int64_t a, std::int64_t b);

}  // namespace k25::trainer
