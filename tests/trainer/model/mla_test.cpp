// Names, shapes and counts of models with latent attention.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/trainer/model/small_batch.h"
#include "trainer/config/parse.h"
#include "trainer/model/model.h"

namespace k25::trainer {
namespace {

using model_test::kB;
using model_test::kT;

/// "name [shape]" of each of layer 0's latent attention, and of what it is made of.
std::vector<std::string> parameters_of(const ModelConfig& config) {
  const Model model(config, {kB, kT, DType::kFloat32}, {}, {});
  std::vector<std::string> found;
  for (const parallel::UnitSpec& unit : model.units()) {
    for (const parallel::ParameterSpec& p : unit.parameters) {
      if (p.name.rfind("layers.0.mla.", 0) != 0) continue;
      found.push_back(p.name.substr(13) + " " + shape_string(p.shape));
      if (p.slices.size() == 1) continue;
      for (const parallel::Slice& s : p.slices) {
        found.push_back(s.name.substr(13) + " " + std::to_string(s.row_begin) + ".." +
                        std::to_string(s.row_end));
      }
    }
  }
  return found;
}

TEST(LatentAttention, NamesWhatItHas) {
  // D 16, 4 heads.
  EXPECT_EQ(parameters_of(model_test::mla_nope_model()),
            (std::vector<std::string>{"in [22, 16]", "q 0..16", "kv_a 16..22", "kv_b [28, 6]",
                                      "out [16, 12]", "kv_norm [6]"}));
  EXPECT_EQ(
      parameters_of(model_test::mla_rope_model()),
      (std::vector<std::string>{"in [17, 16]", "q_a 0..6", "kv_a 6..17", "q_b [28, 6]",
                                "kv_b [32, 7]", "out [16, 20]", "q_norm [6]", "kv_norm [7]"}));
}

TEST(LatentAttention, OnlyItsMatricesDecay) {
  const Model model(model_test::mla_rope_model(), {kB, kT, DType::kFloat32}, {}, {});
  for (const parallel::UnitSpec& unit : model.units()) {
    for (const parallel::ParameterSpec& p : unit.parameters) {
      const bool norm = p.name.ends_with("norm");
      EXPECT_EQ(p.decay, !norm) << p.name;
      EXPECT_EQ(p.fp32, norm) << p.name;
      EXPECT_EQ(unit.placement == parallel::Placement::kReplicated, norm) << p.name;
    }
  }
}

TEST(LatentAttention, TakesATableOnlyToRotate) {
  const auto tables = [](const ModelConfig& config) {
    return Model(config, {kB, kT, DType::kFloat32}, {}, {}).memory().tables.n;
  };
  const std::int64_t gqa = align_up(kT * 4 * 4);
  EXPECT_EQ(tables(model_test::mla_nope_model()), gqa);
  EXPECT_EQ(tables(model_test::mla_shared_model()), gqa);
  EXPECT_EQ(tables(model_test::mla_rope_model()), gqa + align_up(kT * 4 * 4));
}

TEST(LatentAttention, KimiLinearHasItsPublishedNumberOfParameters) {
  const Config config = parse_config(
                            "run: {dir: run}\nmodel: {preset: kimi-linear-48b}\n"
                            "data: {train: corpus/manifest.json, sequence: 8}\n"
                            "train: {steps: 1, batch: 1, micro_batch: 1}\noptim: {lr: 1.0e-3}\n",
                            "test.yaml", {}, 1)
                            .config;
  std::string attention;  // counted from 1
  for (std::int64_t i = 0; i < config.model.layers; ++i) {
    if (config.model.kind(i).mixer == MixerKind::kMla) attention += " " + std::to_string(i + 1);
  }
  EXPECT_EQ(attention, " 4 8 12 16 20 24 27");
  const Model model(config.model, {1, 8, DType::kFloat32}, {}, {});
  EXPECT_EQ(model.num_parameters(), 49122681728);
}

}  // namespace
}  // namespace k25::trainer
