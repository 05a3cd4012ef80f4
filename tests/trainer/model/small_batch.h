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
