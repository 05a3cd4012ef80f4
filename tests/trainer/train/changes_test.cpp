// What a resumed run's configuration may differ in, what is said of it, and what is refused.
#include "trainer/train/changes.h"

#include <gtest/gtest.h>

#include "tests/trainer/config/config_text.h"

namespace k25::trainer {
namespace {

constexpr const char* kMachine = "cpu=x86-64-v3 threads=1 compiler=12";

CheckpointInfo saved(const ParsedConfig& config) {
  CheckpointInfo info{.folder = "run/checkpoints/step-000010", .config = config.resolved};
  info.state.batch = config.config.train.batch;
  info.state.slots = config.config.reduce.slots;
  info.state.corpus_digest = "corpus";
  info.state.mixture.weights = {0.25, 0.75};
  info.state.fingerprint = kMachine;
  return info;
}

DataIdentity data_now() {
  return {.corpus_digest = "corpus",
          .order_digest = "order",
          .initial = {.weights = {0.25, 0.75}, .consumed = {0, 0}, .next_sample = 0}};
}

std::vector<std::string> warned(const std::vector<std::string>& before,
                                const std::vector<std::string>& after,
                                const DataIdentity& data = data_now(),
                                const std::string& machine = kMachine, std::int64_t ranks = 1) {
  std::vector<std::string> warnings;
  warn_of_changes(saved(parse(kGoodConfig, before)), parse(kGoodConfig, after, ranks), data,
                  machine, warnings);
  return warnings;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string refused(const std::vector<std::string>& before, const std::vector<std::string>& after) {
  try {
    require_same_function(saved(parse(kGoodConfig, before)),
                          parse(kGoodConfig, after).config.model);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kCheckpoint);
    return error.what();
  }
  return "";
}

TEST(KeysOf, EveryKeyWithItsText) {
  const ParsedConfig parsed =
      parse(kGoodConfig, {"run.dir=\"a: b #1\"", "optim.freeze=[\"*norm\", head]",
                          "data.mixture.weights={law: 0.7, news: 0.3}"});
  const std::map<std::string, std::string> keys = keys_of(parsed.resolved);
  EXPECT_EQ(keys.size(), config_keys().size());
  for (const KeyInfo& key : config_keys()) EXPECT_EQ(keys.count(key.path), 1U) << key.path;
  EXPECT_EQ(keys.at("run.dir"), "\"a: b #1\"");
  EXPECT_EQ(keys.at("optim.freeze"), "[\"*norm\", head]");
  EXPECT_EQ(keys.at("data.mixture.weights"), "{law: 0.7, news: 0.3}");
  EXPECT_EQ(keys.at("model.layers"), "8");
  EXPECT_EQ(keys.at("debug.kill.signal"), "9");
}

TEST(Function, KeysThatShapesDoNotShowAreRefusedWithBothValues) {
  const std::pair<const char*, std::string> cases[] = {
      {"model.rope_theta=50000", "model.rope_theta is 10000 there and 50000 in the config"},
      {"model.norm_eps=1e-5", "model.norm_eps is 1e-06 there and 1e-05 in the config"},
      {"model.heads=8", "model.heads is 4 there and 8 in the config"},
      {"model.kv_heads=2", "model.kv_heads is 4 there and 2 in the config"},
      {"model.head_dim=32", "model.head_dim is 16 there and 32 in the config"}};
  for (const auto& [change, words] : cases) {
    const std::string text = refused({}, {change});
    EXPECT_TRUE(contains(text, words)) << text;
    EXPECT_TRUE(contains(text, "run/checkpoints/step-000010: ")) << text;
    // The same weights may begin another run, unless they mean something else there.
    const bool layout = words.find("head") != std::string::npos;
    EXPECT_EQ(contains(text, "train.init_from: run/checkpoints/step-000010"), !layout) << text;
    EXPECT_EQ(contains(text, "train the other model in a new run.dir"), layout) << text;
  }
}

TEST(Function, SoAreThoseOfKdaLatentAttentionAndExperts) {
  const std::vector<std::string> base = {"model.pattern=[kda/moe]",
                                         "model.moe={experts: 4, per_token: 1, ffn: 8}"};
  const std::pair<const char*, std::string> cases[] = {
      {"model.kda.heads=8", "model.kda.heads is 4 there and 8 in the config"},
      {"model.kda.gate_rank=4", "model.kda.gate_rank is 16 there and 4 in the config"},
      {"model.kda.gate=lower_bound",
       "model.kda.gate is softplus there and lower_bound in the config"},
      {"model.kda.beta=2", "model.kda.beta is 1 there and 2 in the config"},
      {"model.moe.per_token=2", "model.moe.per_token is 1 there and 2 in the config"},
      {"model.moe.latent=8", "model.moe.latent is null there and 8 in the config"},
      {"model.moe.renormalize=false",
       "model.moe.renormalize is true there and false in the config"},
      {"model.last_layer=gqa/moe",
       "layer 8 (model.pattern, model.last_layer, model.moe.first_dense_layers) is kda/moe there "
       "and gqa/moe in the config"},
      {"model.moe.first_dense_layers=1",
       "layer 1 (model.pattern, model.last_layer, model.moe.first_dense_layers) is kda/moe there "
       "and kda/swiglu in the config"}};
  EXPECT_EQ(refused(base, base), "");
  for (const auto& [change, words] : cases) {
    std::vector<std::string> changed = base;
    changed.push_back(change);
    const std::string text = refused(base, changed);
    EXPECT_TRUE(contains(text, words)) << text;
  }
  const std::vector<std::string> latent = {"model.pattern=[mla/swiglu]",
                                           "model.mla={kv_rank: 8, rope_head_dim: 4}"};
  const std::pair<const char*, std::string> of_mla[] = {
      {"model.mla.kv_rank=9", "model.mla.kv_rank is 8 there and 9 in the config"},
      {"model.mla.q_rank=9", "model.mla.q_rank is null there and 9 in the config"},
      {"model.mla.nope_head_dim=9", "model.mla.nope_head_dim is 16 there and 9 in the config"},
      {"model.mla.rope_head_dim=6", "model.mla.rope_head_dim is 4 there and 6 in the config"},
      {"model.mla.value_head_dim=9", "model.mla.value_head_dim is 16 there and 9 in the config"},
      {"model.mla.positions=none", "model.mla.positions is rope there and none in the config"},
      {"model.mla.norm_eps=0.5", "model.mla.norm_eps is 1e-06 there and 0.5 in the config"}};
  EXPECT_EQ(refused(latent, latent), "");
  for (const auto& [change, words] : of_mla) {
    std::vector<std::string> changed = latent;
    changed.push_back(change);
    const std::string text = refused(latent, changed);
    EXPECT_TRUE(contains(text, words)) << text;
  }
  // What one kind of layer needs does not matter to another.
  EXPECT_EQ(refused({}, {"model.kda.beta=2", "model.moe.per_token=2", "model.mla.kv_rank=2"}), "");
}

TEST(Function, TheSameOneInOtherWordsIsAccepted) {
  EXPECT_EQ(refused({}, {}), "");
  EXPECT_EQ(refused({}, {"model.kv_heads=4", "model.head_dim=16"}), "");
  EXPECT_EQ(refused({}, {"model.pattern=[gqa/swiglu, gqa/swiglu]"}), "");
  EXPECT_EQ(refused({}, {"model.rope_theta=1e4", "model.init_std=0.5"}), "");
}

TEST(Function, AnyBatchAndMeshOfTheCheckpointIsUnderstood) {
  CheckpointInfo info = saved(parse(kGoodConfig, {"reduce.slots=12", "mesh.replicate=3"}, 12));
  require_same_function(info, parse(kGoodConfig).config.model);
  info.config = "another: program\n";
  try {
    require_same_function(info, parse(kGoodConfig).config.model);
    ADD_FAILURE() << "no error was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kCheckpoint);
    EXPECT_TRUE(contains(error.what(),
                         "run/checkpoints/step-000010: the configuration in this "
                         "checkpoint is damaged, or of another k25"))
        << error.what();
    EXPECT_TRUE(contains(error.what(), "unknown key 'another'")) << error.what();
  }
}

TEST(Layout, OtherHeadsAreRefusedAndOtherConstantsAreTold) {
  const CheckpointInfo info = saved(parse(kGoodConfig));
  std::vector<std::string> warnings;
  require_same_layout(info, parse(kGoodConfig).config.model, warnings);
  EXPECT_TRUE(warnings.empty());
  for (const char* change : {"model.heads=8", "model.kv_heads=2", "model.head_dim=32"}) {
    try {
      require_same_layout(info, parse(kGoodConfig, {change}).config.model, warnings);
      ADD_FAILURE() << change << " was accepted";
    } catch (const Error& error) {
      const std::string key = std::string(change).substr(0, std::string(change).find('='));
      EXPECT_EQ(error.kind(), ErrorKind::kCheckpoint);
      EXPECT_TRUE(contains(error.what(), key + " is ")) << error.what();
      EXPECT_FALSE(contains(error.what(), "train.init_from")) << error.what();
    }
  }
  EXPECT_TRUE(warnings.empty());
  require_same_layout(
      info, parse(kGoodConfig, {"model.rope_theta=50000", "model.norm_eps=1e-5"}).config.model,
      warnings);
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_TRUE(contains(warnings[0],
                       "differs from the checkpoint: model.rope_theta 10000 -> 50000, "
                       "model.norm_eps 1e-06 -> 1e-05 (the weights of run/checkpoints/step-000010"))
      << warnings[0];
}

TEST(Changes, NoneIsNoLine) { EXPECT_TRUE(warned({}, {}).empty()); }

TEST(Changes, AllStandInOneLine) {
  const auto lines =
      warned({}, {"optim.lr=3e-5", "train.batch=48", "optim.freeze=[head]", "train.precision=bf16",
                  "optim.schedule.warmup=5", "data.on_exhausted=stop", "numeric.on_nan=stop"});
  ASSERT_EQ(lines.size(), 1U);
  const std::string& line = lines[0];
  EXPECT_EQ(line.rfind("differs from the checkpoint: train.batch 24 -> 48, ", 0), 0U) << line;
  for (const char* part : {"optim.lr 2e-05 -> 3e-05", "optim.freeze [] -> [head]",
                           "train.precision fp32 -> bf16", "optim.schedule.warmup 0 -> 5",
                           "data.on_exhausted wrap -> stop", "numeric.on_nan skip -> stop"}) {
    EXPECT_TRUE(contains(line, part)) << part << " not in: " << line;
  }
  EXPECT_FALSE(contains(line, "reduce.slots")) << line;
}

TEST(Changes, SlotsAreNamedAsResolvedAndNothingIsSaidOfTheBatches) {
  const auto lines = warned({"reduce.slots=12"}, {"reduce.slots=24", "train.batch=48"});
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_TRUE(contains(lines[0], "train.batch 24 -> 48, reduce.slots 12 -> 24")) << lines[0];
  EXPECT_FALSE(contains(lines[0], "same batches")) << lines[0];
  const auto ranks = warned({}, {}, data_now(), kMachine, 4);  // a slot for each rank
  ASSERT_EQ(ranks.size(), 1U);
  EXPECT_TRUE(contains(ranks[0], "reduce.slots 1 -> 4")) << ranks[0];
}

TEST(Changes, KeysThatMoveNoNumberAreNotMentioned) {
  EXPECT_TRUE(
      warned({}, {"run.dir=elsewhere", "checkpoint.every=5", "eval.every=3", "log.format=json",
                  "comm.timeout_s=5", "zero.prefetch=0", "zero.reduce_after=step", "train.steps=99",
                  "data.train=moved/m.json", "train.resume=none", "train.accumulation=24",
                  "recompute.layers=all", "recompute.cheap=true", "recompute.check=true"})
          .empty());
}

TEST(Changes, TheLengthCountsWhenTheScheduleEndsWithIt) {
  const auto lines =
      warned({"optim.schedule.kind=cosine"}, {"optim.schedule.kind=cosine", "train.steps=99"});
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_TRUE(contains(lines[0], "train.steps 20 -> 99")) << lines[0];
}

TEST(Changes, TheOrderOfSumsCountsWhenTheLibraryMakesThem) {
  const auto lines =
      warned({"reduce.mode=library"}, {"reduce.mode=library", "zero.reduce_after=step"});
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_TRUE(contains(lines[0], "zero.reduce_after auto -> step")) << lines[0];
}

TEST(Changes, MixtureWeightsCountWhenTheyMeanSomethingElse) {
  const std::vector<std::string> weights = {"data.mixture.weights={law: 1, news: 3}"};
  EXPECT_TRUE(warned({}, weights).empty());
  DataIdentity now = data_now();
  now.initial.weights = {0.5, 0.5};
  const auto lines = warned({}, weights, now);
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_TRUE(contains(lines[0], "data.mixture.weights {} -> {law: 1, news: 3}")) << lines[0];
}

TEST(Changes, AnotherMachineIsNamed) {
  const auto lines = warned({}, {}, data_now(), "cpu=x86-64-v4 threads=2 compiler=12");
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_TRUE(contains(
      lines[0], std::string("machine (") + kMachine + ") -> (cpu=x86-64-v4 threads=2 compiler=12)"))
      << lines[0];
}

}  // namespace
}  // namespace k25::trainer
