#pragma once
// The model of the model tests, and its batch: two sequences, one of three documents, with masked
// labels.

#include <cstdint>
#include <utility>
#include <vector>

#include "data/loader/batch.h"
#include "trainer/config/config.h"

namespace k25::trainer::model_test {

constexpr std::int64_t kB = 2, kT = 12, kV = 29;

inline ModelConfig small_model(std::int64_t layers) {
  return {.layers = layers,
          .hidden = 16,
          .heads = 4,
          .kv_heads = 2,
          .ffn = 24,
          .vocab = kV,
          .head_dim = 4,
          .pattern = {{}}};
}

/// kda/swiglu, kda/moe, kda/moe, gqa/moe, as scripts/golden/layers_golden.py has them.
inline ModelConfig hybrid_model() {
  ModelConfig m = small_model(4);
  m.pattern = {{MixerKind::kKda, FeedForwardKind::kMoe},
               {MixerKind::kKda, FeedForwardKind::kMoe},
               {MixerKind::kKda, FeedForwardKind::kMoe},
               {MixerKind::kGqa, FeedForwardKind::kMoe}};
  m.kda = {.heads = 2, .key_dim = 4, .value_dim = 6, .gate_rank = 3};
  m.moe = {.experts = 5,
           .per_token = 2,
           .ffn = 8,
           .shared_experts = 2,
           .first_dense_layers = 1,
           .scaling_factor = 2.446};
  return m;
}

/// The same with a bounded gate, negative eigenvalues, and experts in a latent width alone.
inline ModelConfig latent_model() {
  ModelConfig m = hybrid_model();
  m.kda.gate = kernels::KdaGate::kLowerBound;
  m.kda.lower_bound = -2.0;
  m.kda.beta = kernels::KdaBetaRange::kTwo;
  m.moe.shared_experts = 0;
  m.moe.latent = 6;
  m.moe.renormalize = kernels::NormalizeWeights::kNo;
  m.moe.scaling_factor = 1.5;
  m.moe.balance = 0.3;
  return m;
}

/// Two layers of mla/swiglu, as scripts/golden/layers_golden.py has them.
inline ModelConfig mla_model(const MlaConfig& mla) {
  ModelConfig m = small_model(2);
  m.pattern = {{MixerKind::kMla, FeedForwardKind::kSwiglu}};
  m.mla = mla;
  m.mla.norm_eps = 0.03;
  return m;
}

/// Without positions or a shared part.
inline ModelConfig mla_nope_model() {
  return mla_model({.kv_rank = 6, .nope_dim = 4, .value_dim = 3});
}

/// As in DeepSeek-V3.
inline ModelConfig mla_rope_model() {
  return mla_model({.kv_rank = 7, .q_rank = 6, .nope_dim = 3, .rope_dim = 4, .value_dim = 5});
}

/// As in Kimi Linear: the shared part is there, and is not rotated.
inline ModelConfig mla_shared_model() {
  return mla_model({.kv_rank = 5,
                    .nope_dim = 4,
                    .rope_dim = 3,
                    .value_dim = 4,
                    .positions = MlaPositions::kNone});
}

inline data::Batch small_batch() {
  const std::vector<std::vector<std::pair<int, int>>> documents = {{{0, 5}, {5, 6}, {6, 12}},
                                                                   {{0, 12}}};
  data::Batch batch;
  batch.resize(kB, kT);
  for (std::int64_t b = 0; b < kB; ++b) {
    for (const auto& [begin, end] : documents[static_cast<std::size_t>(b)]) {
      for (int t = begin; t < end; ++t) {
        const auto at = static_cast<std::size_t>(b * kT + t);
        const auto token = [&](std::int64_t s) {
          return static_cast<std::int32_t>((7 * s + 11 * b + s * s) % kV);
        };
        batch.tokens[at] = token(t);
        batch.labels[at] = t + 1 < end ? token(t + 1) : -1;
        batch.doc_begin[at] = begin;
        batch.doc_end[at] = end;
        batch.position[at] = t - begin;
      }
    }
  }
  batch.labels[2] = -1;
  batch.labels[kT + 7] = -1;
  return batch;
}

}  // namespace k25::trainer::model_test
