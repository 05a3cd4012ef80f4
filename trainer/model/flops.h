#pragma once
// FLOPs of training, counted by hand from the sizes of the matrix products.
//
// For one token of full causal attention over T tokens, with D hidden, V vocab, a layer has
// matrices and a mixer's products that are no matrix's:
//   gqa     A = heads x head_dim, C = kv_heads x head_dim:  D (A + 2 C) + A D;
//           forward 4 A (T + 1) / 2, backward 10 A (T + 1) / 2 (scores are formed again)
//   kda     H heads of K and V, R gate rank:  D (H (2 K + V) + 2 R + H) + R H (K + V) + H V D;
//           the recurrence reads the state twice and writes it once: forward 6 H K V, backward
//           twice that. The chunked form's further products, and its states formed again, are not
//           counted; nor is the convolution
//   mla     H heads of P + R and V, ranks L and Q:  D H (P + R), or Q (D + H (P + R)); D (L + R) +
//           L H (P + V) + H V D; with K = H (P + R), W = H V: forward 2 (K + W) (T + 1) / 2,
//           backward (6 K + 4 W) (T + 1) / 2
//   swiglu  3 D F
//   moe     E experts, k of them a token, W wide (hidden or latent), S shared, F inner width:
//           D E + 3 W F k + 3 D F S, with latent 2 D W more
// With M the matrices and A the mixers' forward products of all layers, R those of recomputed ones,
// head H = D V:
//   model              6 (M + H) + 3 A
//   products           6 (M + H) + 2 R (+ 2 H where the head's logits are formed twice)
//   mixers, "attention" below: forward, again in recomputed layers, backward
//   hardware           products + mixers
// Embedding lookups, norms and elementwise work are no FLOPs here; they count as bytes.

#include <cstdint>
#include <vector>

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
TokenFlops token_flops(const ModelConfig& model, std::int64_t sequence,
                       const std::vector<LayerRange>& recomputed, LogitsFormed logits);

/// Whether layer `layer`, counted from 0, lies in one of the ranges.
bool contains_layer(const std::vector<LayerRange>& ranges, std::int64_t layer);

/// a x b; throws kUsage when that exceeds 2^63.
std::int64_t checked_product(std::int64_t a, std::int64_t b);

}  // namespace k25::trainer
