#include "trainer/config/parse.h"
#include "trainer/config/printable.h"

namespace k25::trainer {
namespace {

struct Preset {
  const char* name;
  const char* yaml;
};

constexpr Preset kPresets[] = {
    // Trains on two CPU cores in minutes.
    {"quickstart",
     "layers: 4\nhidden: 128\nheads: 4\nkv_heads: 2\nffn: 352\nvocab: 1000\n"
     "pattern: [gqa/swiglu]\ntie_embeddings: false\n"},
    // Kimi Linear's layers, three kda to one mla, in a size for tests.
    {"kimi-linear-tiny",
     "layers: 8\nhidden: 64\nheads: 4\nffn: 176\nvocab: 1000\n"
     "pattern: [kda/moe, kda/moe, kda/moe, mla/moe]\nkda: {heads: 4, key_head_dim: 16}\n"
     "mla: {kv_rank: 32, nope_head_dim: 16, rope_head_dim: 8, positions: none}\n"
     "moe: {experts: 8, per_token: 2, ffn: 48, shared_experts: 1, first_dense_layers: 1, "
     "scaling_factor: 2.446}\n"},
    // Kimi Linear itself: 49.1 B parameters, of which a token uses 3 B.
    {"kimi-linear-48b",
     "layers: 27\nhidden: 2304\nheads: 32\nffn: 9216\nvocab: 163840\nnorm_eps: 1.0e-5\n"
     "pattern: [kda/moe, kda/moe, kda/moe, mla/moe]\nlast_layer: mla/moe\n"
     "kda: {key_head_dim: 128}\n"
     "mla: {kv_rank: 512, nope_head_dim: 128, rope_head_dim: 64, positions: none}\n"
     "moe: {experts: 256, per_token: 8, ffn: 1024, shared_experts: 1, first_dense_layers: 1, "
     "scaling_factor: 2.446}\n"},
    // The recipe's model, 8.3 B parameters, with gqa in the place of AWA.
    {"recipe-32l",
     "layers: 32\nhidden: 4096\nheads: 32\nkv_heads: 8\nffn: 14336\nvocab: 163840\n"
     "pattern: [gqa/swiglu]\ntie_embeddings: false\n"},
};

}  // namespace

std::string preset_yaml(const std::string& name) {
  std::string known;
  for (const Preset& preset : kPresets) {
    if (preset.name == name) return preset.yaml;
    known += (known.empty() ? "" : ", ") + std::string(preset.name);
  }
  fail(ErrorKind::kUsage,
       "model.preset: '" + printable_start(name) + "' is unknown; known presets: " + known);
}

}  // namespace k25::trainer
