// Settings that change nothing, and the places of errors that show only after parsing.
#include "trainer/config/effects.h"

#include "parallel/comm/agree.h"
#include "tests/trainer/config/config_text.h"
#include "trainer/config/places.h"

namespace k25::trainer {
namespace {

using Lines = std::vector<std::string>;

Lines warnings(const Lines& overrides, std::int64_t ranks = 1) {
  return parse(kGoodConfig, overrides, ranks).warnings;
}

TEST(Effects, a_plain_config_has_none) {
  EXPECT_EQ(warnings({}), Lines{});
  EXPECT_EQ(parse(parse(kGoodConfig).resolved).warnings, Lines{}) << "defaults written out";
}

TEST(Effects, each_names_key_value_reason_and_place) {
  EXPECT_EQ(parse(edited("lr: 2.0e-5", "lr: 0")).warnings,
            Lines{"optim.lr 0: has no effect because every update is multiplied by 0: no "
                  "parameter will change (cfg.yaml:17:7)"});
  EXPECT_EQ(warnings({"optim.schedule.warmup=21"}),
            Lines{"optim.schedule.warmup 21: is longer than the run of 20 steps, so the peak "
                  "learning rate is never reached (--set optim.schedule.warmup=21)"});
  EXPECT_EQ(warnings({"optim.schedule={kind: wsd, decay: 21}"}),
            Lines{"optim.schedule.decay 21: is longer than the 20 steps after warm-up, so the "
                  "decay begins right behind it (--set optim.schedule={kind: wsd, decay: 21})"});
  EXPECT_EQ(warnings({"debug.kill={rank: 2, step: 3}"}, 2),
            Lines{"debug.kill.rank 2: has no effect because the ranks of this run are 0 to 1 "
                  "(--set debug.kill={rank: 2, step: 3})"});
}

TEST(Effects, every_rule_warns_once_and_not_one_step_before) {
  struct Row {
    Lines overrides;
    std::string key;  // "" for none
  };
  const std::vector<Row> rows = {
      {{"optim.schedule.warmup=20"}, ""},
      {{"optim.schedule={kind: wsd, decay: 15, warmup: 5}"}, ""},
      {{"optim.schedule={kind: wsd, decay: 16, warmup: 5}"}, "optim.schedule.decay"},
      {{"optim.schedule.decay=5"}, "optim.schedule.decay"},
      {{"optim.schedule={kind: cosine, decay: 5}"}, "optim.schedule.decay"},
      {{"optim.schedule.min_ratio=0.5"}, "optim.schedule.min_ratio"},
      {{"optim.schedule={kind: cosine, min_ratio: 0.5}"}, ""},
      {{"zero.reduce_after=step"}, "zero.reduce_after"},
      {{"zero.reduce_after=step", "reduce.mode=library"}, ""},
      {{"numeric={on_nan: stop, max_consecutive_skips: 3}"}, "numeric.max_consecutive_skips"},
      {{"numeric.max_consecutive_skips=3"}, ""},
      {{"model.pattern=[gqa/swiglu, kda/swiglu]"}, ""},
      {{"model.pattern=[gqa/swiglu, kda/swiglu]", "model.layers=1"}, "model.pattern"},
      {{"model.kda.heads=2"}, "model.kda.heads"},
      {{"model.kda.heads=2", "model.last_layer=kda/swiglu"}, ""},
      {{"model.kda.lower_bound=-2", "model.pattern=[kda/swiglu]"}, "model.kda.lower_bound"},
      {{"model.kda={gate: lower_bound, lower_bound: -2}", "model.pattern=[kda/swiglu]"}, ""},
      {{"model.kv_heads=2", "model.pattern=[kda/swiglu]"}, "model.kv_heads"},
      {{"model.rope_theta=5000", "model.pattern=[kda/swiglu]"}, "model.rope_theta"},
      {{"model.mla.kv_rank=8"}, "model.mla.kv_rank"},
      {{"model.mla.norm_eps=0.5"}, "model.mla.norm_eps"},
      {{"model.mla={kv_rank: 8, q_rank: 8}", "model.pattern=[mla/swiglu]"}, ""},
      {{"model.mla={kv_rank: 8, positions: none}", "model.pattern=[mla/swiglu]"},
       "model.mla.positions"},
      {{"model.mla={kv_rank: 8, rope_head_dim: 4, positions: none}", "model.rope_theta=5000",
        "model.pattern=[mla/swiglu]"},
       "model.rope_theta"},
      {{"model.mla={kv_rank: 8, rope_head_dim: 4}", "model.rope_theta=5000",
        "model.pattern=[mla/swiglu]"},
       ""},
      {{"model.mla={kv_rank: 8}", "model.kv_heads=2", "model.pattern=[mla/swiglu]"},
       "model.kv_heads"},
      {{"model.moe.latent=8"}, "model.moe.latent"},
      {{"model.moe={experts: 4, per_token: 1, ffn: 8, latent: 8}", "model.pattern=[gqa/moe]"}, ""},
      {{"model.moe={experts: 4, per_token: 1, ffn: 8, first_dense_layers: 7}",
        "model.pattern=[gqa/moe]"},
       ""},
      {{"recompute={layers: all, check: true}"}, ""},
      {{"recompute={cheap: true, layers: [1..7]}"}, ""},
      {{"recompute={cheap: true, layers: [1..4, 5..8]}"}, "recompute.cheap"},
      {{"recompute={cheap: true, layers: all}"}, "recompute.cheap"},
      {{"recompute={cheap: true, check: true}"}, "recompute.check"},
      {{"recompute.layers=middle"}, ""},
      {{"recompute.layers=middle", "model.layers=1"}, "recompute.layers"},
      {{"recompute.layers=all", "model.layers=1"}, ""},
      {{"checkpoint.every=21"}, "checkpoint.every"},
      {{"checkpoint.every=20"}, ""},
      {{"eval.every=21"}, "eval.every"},
      {{"debug.inject={step: 21, tensor: embedding}"}, "debug.inject.step"},
      {{"debug.inject={step: 0, tensor: embedding}"}, ""},
      {{"debug.inject.tensor=embedding"}, "debug.inject.tensor"},
      {{"debug.kill.step=3"}, "debug.kill.step"},
      {{"debug.kill={rank: 0, step: 21}"}, "debug.kill.step"},
      {{"debug.kill.rank=0"}, "debug.kill.rank"},
      {{"debug.kill={rank: 0, step: 20}"}, ""},
      {{"debug.slow_read.seconds=3"}, "debug.slow_read.seconds"},
      {{"debug.slow_read={rank: 7, step: 1, seconds: 3}"}, "debug.slow_read.rank"},
      {{"debug.slow_read={rank: 0, step: 21, seconds: 3}"}, "debug.slow_read.step"},
      {{"debug.slow_read={rank: 0, seconds: 3}"}, "debug.slow_read.rank"},
      {{"debug.slow_read={rank: 0, step: 20}"}, "debug.slow_read.rank"},
      {{"debug.slow_read={rank: 0, step: 20, seconds: 3}"}, ""}};
  for (const Row& row : rows) {
    const Lines found = warnings(row.overrides);
    ASSERT_EQ(found.size(), row.key.empty() ? 0u : 1u)
        << row.overrides[0] << ::testing::PrintToString(found);
    if (!row.key.empty()) {
      EXPECT_EQ(found[0].rfind(row.key + " ", 0), 0u) << found[0];
    }
  }
}

TEST(Effects, of_the_corpus) {
  const ParsedConfig parsed = parse(kGoodConfig, {"eval.batches=2"});
  EXPECT_EQ(settings_without_effect(parsed, {.tokens = 128, .validation_tokens = 1}), Lines{});
  EXPECT_EQ(settings_without_effect(
                parsed, {.tokens = 127, .validation_tokens = 0, .domains_without_training = {"a"}}),
            (Lines{"data.sequence 128: is longer than the whole corpus of 127 tokens, so the rest "
                   "of every sample is padding (cfg.yaml:11:13)",
                   "eval.batches 2: has no effect because there is no validation data (--set "
                   "eval.batches=2)",
                   "data.train corpus/manifest.json: domain 'a' has no training documents, so "
                   "nothing is drawn from it (cfg.yaml:10:10)"}));
}

const char* const kLists = "optim:\n  lr: 2.0e-5\n  freeze:\n    - embedding\n    - lyers.*\n";

TEST(Places, of_keys_elements_and_sections) {
  const ParsedConfig parsed =
      parse(edited("optim:\n  lr: 2.0e-5\n", kLists),
            {"data.validation.documents=[a*]", "data.mixture.weights={law: 1, lwa: 2}"});
  EXPECT_EQ(with_place(parsed, ErrorKind::kUsage, "optim.freeze: 'lyers.*' matches no parameter"),
            "cfg.yaml:20:7: optim.freeze: 'lyers.*' matches no parameter");
  EXPECT_EQ(with_place(parsed, ErrorKind::kUsage,
                       "optim.freeze: 'lyers.*' is none (such as 'embedding')"),
            "cfg.yaml:20:7: optim.freeze: 'lyers.*' is none (such as 'embedding')");
  EXPECT_EQ(with_place(parsed, ErrorKind::kUsage, "optim.freeze: all match"),
            "cfg.yaml:19:5: optim.freeze: all match");
  EXPECT_EQ(with_place(parsed, ErrorKind::kUsage, "data.mixture.weights: unknown domain 'lwa'"),
            "--set data.mixture.weights={law: 1, lwa: 2}: data.mixture.weights: unknown domain "
            "'lwa'");
  EXPECT_EQ(with_place(parsed, ErrorKind::kUsage, "data.validation: nothing is left"),
            "--set data.validation.documents=[a*]: data.validation: nothing is left");
  EXPECT_EQ(with_place(parsed, ErrorKind::kUsage, "run.dir: cannot create"),
            "cfg.yaml:2:8: run.dir: cannot create");
  EXPECT_EQ(
      with_place(parsed, ErrorKind::kUsage, "x: 300 tokens, model.vocab is 299; set model.vocab"),
      "x: 300 tokens, model.vocab is 299; set model.vocab (model.vocab: cfg.yaml:8:10)");
  EXPECT_EQ(with_place(parsed, ErrorKind::kUsage, "raise comm.timeout_s"), "raise comm.timeout_s")
      << "a default";
  EXPECT_EQ(with_place(parsed, ErrorKind::kUsage, "no key at all."), "no key at all.");
  EXPECT_EQ(with_place(parsed, ErrorKind::kData, "corpus/manifest.json: cannot open"),
            "corpus/manifest.json: cannot open (data.train: cfg.yaml:10:10)");
  EXPECT_EQ(with_place(parse(kGoodConfig, {"train.init_from=old"}), ErrorKind::kCheckpoint,
                       "'old' is no run directory"),
            "'old' is no run directory (train.init_from: --set train.init_from=old)");
  EXPECT_EQ(with_place(parsed, ErrorKind::kData, "c: data.validation changed"),
            "c: data.validation changed (data.validation: --set data.validation.documents=[a*])");
}

TEST(Places, a_path_of_a_checkpoint_is_none_of_a_corpus) {
  const ParsedConfig parsed = parse(kGoodConfig, {"train.init_from=corpus"});
  EXPECT_EQ(with_place(parsed, ErrorKind::kCheckpoint, "corpus/manifest.json: format 'k25-corpus'"),
            "corpus/manifest.json: format 'k25-corpus' (train.init_from: --set "
            "train.init_from=corpus)");
  EXPECT_EQ(with_place(parsed, ErrorKind::kData, "corpus/manifest.json: damaged"),
            "corpus/manifest.json: damaged (data.train: cfg.yaml:10:10)");
  EXPECT_EQ(with_place(parsed, ErrorKind::kCheckpoint, "corpus2/lock: in use"),
            "corpus2/lock: in use");
  EXPECT_EQ(with_place(parsed, ErrorKind::kUsage, "corpus/manifest.json: x"),
            "corpus/manifest.json: x");
}

TEST(Places, an_agreed_error_stays_one_and_other_kinds_pass) {
  const ParsedConfig parsed = parse(kGoodConfig);
  try {
    with_places(parsed, [] { throw parallel::AgreedError(ErrorKind::kUsage, "optim.lr: no", 3); });
    FAIL();
  } catch (const parallel::AgreedError& error) {
    EXPECT_STREQ(error.what(), "cfg.yaml:17:7: optim.lr: no");
    EXPECT_EQ(error.origin(), 3);
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
  }
  try {
    with_places(parsed, [] { fail(ErrorKind::kCommunication, "optim.lr: no"); });
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "optim.lr: no");
  }
}

}  // namespace
}  // namespace k25::trainer
