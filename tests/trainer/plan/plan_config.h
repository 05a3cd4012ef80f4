#pragma once
// A model small enough to count by hand: 2 layers, D 64, 2 heads of 32, 1 kv head, F 192, V 256:
// every sharded unit is a multiple of 4 x 4096 elements, so that nothing is padded on 1, 2, 4
// ranks.

#include <string>

namespace k25::trainer::plan_test {

inline constexpr const char* kConfig = R"(
run: {dir: run}
model: {layers: 2, hidden: 64, heads: 2, kv_heads: 1, ffn: 192, vocab: 256}
data: {train: corpus/manifest.json, sequence: 32}
train: {steps: 10, batch: 16, micro_batch: 2, precision: bf16}
optim: {lr: 1.0e-3}
)";

// Elements of the units: embedding and head 256 x 64; a layer's q|k|v 128 x 64, out 64 x 64,
// gate|up 384 x 64, down 64 x 192; replicated five norms of 64.
inline constexpr std::int64_t kTable = 256 * 64;
inline constexpr std::int64_t kLayer = 128 * 64 + 64 * 64 + 384 * 64 + 64 * 192;
inline constexpr std::int64_t kSharded = 2 * kTable + 2 * kLayer;

}  // namespace k25::trainer::plan_test
