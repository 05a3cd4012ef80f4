// The keys of model.mla: what is given, what follows, what is refused where.
#include "tests/trainer/config/config_text.h"

namespace k25::trainer {
namespace {

TEST(Mla, values_and_what_follows_from_them) {
  const auto with = [&](const std::string& keys) {
    return edited("vocab: 512", "vocab: 512\n  pattern: [mla/swiglu, gqa/swiglu]\n  mla: " + keys);
  };
  const ModelConfig m = parse(with("{kv_rank: 24, q_rank: 32}")).config.model;
  EXPECT_EQ(m.kind(0).mixer, MixerKind::kMla);
  EXPECT_EQ(m.kind(1).mixer, MixerKind::kGqa);
  EXPECT_EQ(m.mla.nope_dim, m.head_dim);
  EXPECT_EQ(m.mla.value_dim, m.head_dim);
  EXPECT_EQ(m.mla.rope_dim, 0);
  EXPECT_FALSE(m.mla.rotates());
  EXPECT_EQ(m.mla.norm_eps, 1e-6);
  const MlaConfig set = parse(with("{kv_rank: 24, nope_head_dim: 12, rope_head_dim: 7, "
                                   "positions: none, norm_eps: 1e-5}"))
                            .config.model.mla;
  EXPECT_EQ(set.value_dim, 12);
  EXPECT_EQ(set.rope_dim, 7);
  EXPECT_EQ(set.q_rank, 0);
  EXPECT_FALSE(set.rotates());
  EXPECT_EQ(set.norm_eps, 1e-5);
  const std::pair<const char*, std::vector<std::string>> cases[] = {
      {"{q_rank: 8}",
       {"cfg.yaml:9:12: model.mla.kv_rank: null, and model.pattern has mla layers; give a number"}},
      {"{kv_rank: 0}", {"model.mla.kv_rank: expected an integer in [1, 65536], or null"}},
      {"{kv_rank: 8, q_rank: 0}",
       {"cfg.yaml:10:29: model.mla.q_rank: expected an integer in [1, 65536], or null"}},
      {"{kv_rank: 8, nope_head_dim: 0}", {"model.mla.nope_head_dim: expected an integer in [1"}},
      {"{kv_rank: 8, value_head_dim: -1}", {"model.mla.value_head_dim: expected an integer in [1"}},
      {"{kv_rank: 8, rope_head_dim: 65537}",
       {"model.mla.rope_head_dim: expected an integer in [0, 65536]"}},
      {"{kv_rank: 8, rope_head_dim: 7}",
       {"cfg.yaml:10:36: model.mla.rope_head_dim: 7 is odd",
        "give 8, or model.mla.positions: none"}},
      {"{kv_rank: 8, positions: yarn}", {"model.mla.positions: expected one of rope | none"}},
      {"{kv_rank: 8, norm_eps: 0}", {"model.mla.norm_eps: expected a number in [1e-30, 1]"}},
      {"{kv_rank: 8, rank: 4}", {"cfg.yaml:10:21: unknown key 'model.mla.rank'"}},
  };
  for (const auto& [keys, parts] : cases) {
    const std::string message = only_problem(with(keys));
    for (const std::string& part : parts) {
      EXPECT_NE(message.find(part), std::string::npos) << part << " is not in " << message;
    }
  }
  // Nothing is asked of a model without such layers.
  EXPECT_EQ(parse(kGoodConfig, {"model.mla.rope_head_dim=7"}).config.model.mla.kv_rank, 0);
}

TEST(Mla, sizes_beyond_any_machine) {
  const std::string text =
      edited("vocab: 512",
             "vocab: 512\n  pattern: [mla/swiglu]\n  mla: {kv_rank: 8, nope_head_dim: 65536}");
  expect_problem(only_problem(text, {"model.heads=65536", "model.head_dim=2",
                                     "data.sequence=1048576", "train.batch=8"}),
                 "cfg.yaml:17:16",
                 {"layers 8 x width 12884901896 x micro_batch 1 x sequence 1048576 is too large"});
}

}  // namespace
}  // namespace k25::trainer
