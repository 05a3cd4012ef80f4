// What keys demand of each other and of the number of ranks; the text that a checkpoint keeps.
#include <fstream>
#include <sstream>

#include "tests/trainer/config/config_text.h"
#include "trainer/config/key_kinds.h"

namespace k25::trainer {
namespace {

std::string with_train(const std::string& train) {
  return edited("train:\n  steps: 20\n  batch: 24\n  micro_batch: 1\n",
                "train: {steps: 20, " + train + "}\n");
}

TEST(Batch, the_third_of_three_follows) {
  const std::string seed = with_train("batch: 1024, accumulation: 8");
  for (const auto& [ranks, micro] : {std::pair{8, 16}, {16, 8}, {32, 4}}) {
    EXPECT_EQ(parse(seed, {}, ranks).config.train.micro_batch, micro) << ranks;
  }
  EXPECT_EQ(parse(with_train("batch: 24, micro_batch: 2"), {}, 3).config.train.accumulation, 4);
  EXPECT_EQ(parse(with_train("micro_batch: 2, accumulation: 4"), {}, 3).config.train.batch, 24);
  EXPECT_EQ(
      parse(with_train("batch: 24, micro_batch: 2, accumulation: 4"), {}, 3).config.train.batch,
      24);
}

TEST(Batch, an_impossible_one_names_the_equation_and_the_nearest_legal_counts) {
  struct Row {
    std::int64_t ranks;
    const char* legal;
  };
  for (const Row& row :
       {Row{6, "4 and 8"}, {12, "8 and 16"}, {24, "16 and 32"}, {48, "32 and 64"}, {256, "128"}}) {
    const std::string problem =
        only_problem(with_train("batch: 1024, accumulation: 8"), {}, row.ranks);
    expect_problem(problem, "cfg.yaml:12:27",
                   {"train.batch",
                    "1024 = micro_batch auto x accumulation 8 x " + std::to_string(row.ranks) +
                        " data ranks has no integer solution",
                    std::string("nearby: ") + row.legal});
    EXPECT_EQ(problem.substr(problem.size() - std::string(row.legal).size()), row.legal) << problem;
  }
}

TEST(Batch, all_three_must_agree) {
  expect_problem(
      only_problem(with_train("batch: 24, micro_batch: 2, accumulation: 4"), {}, 2),
      "cfg.yaml:12:27",
      {"24 = micro_batch 2 x accumulation 4 x 2 data ranks does not hold; for 2 data ranks: "
       "train.accumulation 6, or train.batch 16; legal numbers",
       "nearby: 3"});
  expect_problem(
      only_problem(with_train("batch: 25, micro_batch: 2, accumulation: 4"), {}, 2),
      "cfg.yaml:12:44",
      {"train.micro_batch: micro_batch 2 x accumulation 4 = 8 does not divide train.batch "
       "25 at any number of ranks; a train.batch that fits 2 data ranks: 16"});
}

TEST(Batch, what_would_fit_the_ranks_is_named_and_fits) {
  struct Row {
    const char* train;
    std::int64_t ranks;
    const char* told;
    std::vector<std::string> mends;
  };
  const Row rows[] = {
      {"batch: 16, micro_batch: 4",
       8,
       "train.micro_batch 2, or train.batch 32",
       {"train.micro_batch=2", "train.batch=32"}},
      {"batch: 100, micro_batch: 4",
       8,
       "train.batch 96 or 128",
       {"train.batch=96", "train.batch=128"}},
      {"batch: 1024, accumulation: 8",
       256,
       "train.accumulation 4, or train.batch 2048",
       {"train.accumulation=4", "train.batch=2048"}},
      {"batch: 72, micro_batch: 8",
       2,
       "train.micro_batch 6, or train.batch 64 or 80",
       {"train.micro_batch=6", "train.batch=64", "train.batch=80"}},
      {"batch: 12, micro_batch: 4, accumulation: 3", 2, "train.batch 24", {"train.batch=24"}},
      {"batch: 12, micro_batch: 3, accumulation: 4",
       2,
       "train.accumulation 2, or train.batch 24",
       {"train.accumulation=2", "train.batch=24"}}};
  for (const Row& row : rows) {
    const std::string config = with_train(row.train);
    const std::string told =
        "; for " + std::to_string(row.ranks) + " data ranks: " + row.told + "; legal numbers";
    EXPECT_NE(only_problem(config, {}, row.ranks).find(told), std::string::npos)
        << only_problem(config, {}, row.ranks);
    for (const std::string& mend : row.mends)
      EXPECT_NO_THROW(parse(config, {mend}, row.ranks)) << mend;
  }
}

TEST(Batch, one_that_no_number_of_ranks_divides_names_the_nearest_batches) {
  const auto problem = [](const std::string& train, std::int64_t ranks) {
    return only_problem(with_train(train), {}, ranks);
  };
  expect_problem(problem("batch: 4, micro_batch: 5", 1), "cfg.yaml:12:43",
                 {"train.micro_batch: 5 does not divide train.batch 4 at any number of ranks; a "
                  "train.batch that fits 1 data ranks: 5"});
  expect_problem(problem("batch: 16, accumulation: 3", 2), "cfg.yaml:12:45",
                 {"train.accumulation: 3 does not divide train.batch 16",
                  "a train.batch that fits 2 data ranks: 12 or 18"});
}

TEST(DataTrain, a_folder_is_answered_with_its_manifest) {
  expect_problem(only_problem(edited("corpus/manifest.json", "/usr")), "cfg.yaml:10:10",
                 {"data.train: '/usr' is a folder; name the manifest in it: /usr/manifest.json"});
}

TEST(Batch, fewer_than_two_are_not_enough) {
  for (const char* train : {"batch: 24", "micro_batch: 24", "accumulation: 2", "batch: auto"}) {
    EXPECT_NE(only_problem(with_train(train)).find("train.batch: give two of"), std::string::npos)
        << train;
  }
}

TEST(Batch, sizes_beyond_all_machines_are_refused_without_overflow) {
  EXPECT_NE(only_problem(with_train("micro_batch: 16777216, accumulation: 16777216"), {}, 1048576)
                .find("limit"),
            std::string::npos);
  EXPECT_NE(
      only_problem(with_train("batch: 16777216, micro_batch: 16777216, accumulation: 16777216"), {},
                   1048576)
          .find("does not divide train.batch 16777216 at any number of ranks"),
      std::string::npos);
  EXPECT_NE(only_problem(with_train("batch: 99999999999, micro_batch: 1")).find("[1, 16777216]"),
            std::string::npos);
  const std::vector<std::string> huge = {"data.sequence=16777216", "model.hidden=1048576",
                                         "model.ffn=16777216", "train.micro_batch=16777216",
                                         "train.batch=16777216"};
  EXPECT_NE(only_problem(kGoodConfig, huge).find("too large for any machine"), std::string::npos);
  EXPECT_NE(only_problem(kGoodConfig, {"mesh.shard=4294967297"})
                .find("mesh.shard: expected an integer in"),
            std::string::npos);
}

TEST(Model, heads_and_widths) {
  EXPECT_EQ(parse(kGoodConfig).config.model.head_dim, 16);
  EXPECT_EQ(parse(kGoodConfig).config.model.kv_heads, 4);
  EXPECT_EQ(parse(kGoodConfig, {"model.heads=3", "model.head_dim=8", "model.kv_heads=1"})
                .config.model.head_dim,
            8);
  expect_problem(only_problem(kGoodConfig, {"model.heads=3"}), "--set model.heads=3",
                 {"model.heads", "3 heads do not divide hidden 64", "model.head_dim"});
  expect_problem(only_problem(kGoodConfig, {"model.kv_heads=3"}), "--set model.kv_heads=3",
                 {"3 kv_heads do not divide 4 heads"});
  EXPECT_NE(only_problem(kGoodConfig, {"model.head_dim=5"}).find("5 is odd"), std::string::npos);
  EXPECT_NE(only_problem(kGoodConfig, {"model.heads=64"}).find("head_dim: 1 is odd"),
            std::string::npos);
}

TEST(Mesh, must_multiply_to_the_ranks) {
  EXPECT_EQ(parse(kGoodConfig, {}, 4).config.mesh.shard, 4);
  EXPECT_EQ(parse(kGoodConfig, {"mesh.replicate=2"}, 4).config.mesh.shard, 2);
  expect_problem(only_problem(kGoodConfig, {"mesh.replicate=3"}, 4), "--set mesh.replicate=3",
                 {"replicate 3 x shard auto x expert 1 x context 1 must equal the 4 ranks"});
  expect_problem(only_problem(kGoodConfig, {"mesh.shard=3"}, 4), "--set mesh.shard=3",
                 {"mesh.shard: replicate 1 x shard 3 x expert 1"});
  expect_problem(only_problem(kGoodConfig, {"mesh={replicate: 2, shard: 3}"}, 4),
                 "--set mesh={replicate: 2, shard: 3}", {"mesh.replicate: replicate 2 x shard 3"});
  expect_problem(only_problem(edited("optim:", "mesh: {replicate: 1, shard: 3}\noptim:"), {}, 4),
                 "cfg.yaml:16:29", {"mesh.shard: "});
  EXPECT_NE(only_problem(kGoodConfig, {"mesh.expert=2"}, 4).find("mesh.expert"), std::string::npos);
}

TEST(Slots, are_a_multiple_of_the_ranks_and_divide_the_micro_batches) {
  EXPECT_EQ(parse(kGoodConfig, {}, 4).config.reduce.slots, 4);
  EXPECT_EQ(parse(kGoodConfig, {"reduce.slots=12"}, 4).config.reduce.slots, 12);
  EXPECT_NE(only_problem(kGoodConfig, {"reduce.slots=6"}, 4)
                .find("reduce.slots: 6 slots must be a multiple of the 4"),
            std::string::npos);
  EXPECT_NE(only_problem(kGoodConfig, {"reduce.slots=16"}, 4).find("divide the 24 micro-batches"),
            std::string::npos);
}

TEST(Rest, keys_that_need_or_exclude_each_other) {
  expect_problem(only_problem(kGoodConfig, {"debug.inject.step=2"}), "--set debug.inject.step=2",
                 {"debug.inject.tensor: is needed when debug.inject.step is set (here 2)"});
  EXPECT_NE(
      only_problem(kGoodConfig, {"data.validation.fraction=0.1", "data.validation.documents=[a]"})
          .find("not both"),
      std::string::npos);
  EXPECT_EQ(
      parse(kGoodConfig, {"optim.schedule.kind=wsd", "train.steps=50"}).config.optim.schedule.decay,
      5);
  EXPECT_EQ(
      parse(kGoodConfig, {"optim.schedule.kind=wsd", "train.steps=5"}).config.optim.schedule.decay,
      1);
}

TEST(Rest, a_default_that_does_not_fit_is_told_at_the_key_that_was_given) {
  expect_problem(only_problem(edited("heads: 4", "heads: 64")), "cfg.yaml:6:10",
                 {"model.head_dim: 1 is odd"});
  expect_problem(only_problem(with_train("micro_batch: 4")), "cfg.yaml:12:33",
                 {"train.batch: give two of"});
  expect_problem(only_problem(with_train("micro_batch: 16777216, accumulation: 16777216")),
                 "cfg.yaml:12:33", {"train.micro_batch: ", "beyond the limit"});
}

TEST(Recompute, layers_are_named_one_by_one_or_in_ranges_and_bands) {
  const std::vector<std::string> deep = {"model.layers=24"};
  const auto ranges = [&](const std::string& layers) {
    const ParsedConfig parsed = parse(kGoodConfig, {deep[0], "recompute.layers=" + layers});
    return layer_ranges_text(parsed.config.recompute.layers);
  };
  EXPECT_EQ(ranges("[]"), "[]");
  EXPECT_EQ(ranges("[20, 7..18, 1]"), "[1, 7..18, 20]");
  EXPECT_EQ(ranges("all"), "[1..24]");
  EXPECT_EQ(ranges("middle"), "[5..13]");
  const auto middle_of = [](const std::string& layers) {
    return layer_ranges_text(
        parse(kGoodConfig, {"model.layers=" + layers, "recompute.layers=middle"})
            .config.recompute.layers);
  };
  EXPECT_EQ(middle_of("32"), "[7..18]");
  EXPECT_EQ(middle_of("2"), "[1]");
  EXPECT_EQ(middle_of("1"), "[]");
}

TEST(Recompute, what_names_no_layer_is_refused) {
  for (const auto& [layers, words] : std::vector<std::pair<std::string, std::string>>{
           {"[0]", "counted from 1"},
           {"[3..2]", "such as [7..18]"},
           {"[1.5]", "'1.5'"},
           {"[1..]", "'1..'"},
           {"[..3]", "'..3'"},
           {"[1..2..3]", "'1..2..3'"},
           {"[\"1\"]", "the quoted text '1'"},
           {"[-1]", "'-1'"},
           {"[[1]]", "a list"},
           {"some", "'some'"},
           {"7", "all, middle, or a list"},
           {"[1, 1..2]", "layer 1 is named twice"},
           {"[2..9]", "layer 9 of a model with 8 layers"}}) {
    expect_problem(only_problem(kGoodConfig, {"recompute.layers=" + layers}),
                   "--set recompute.layers=" + layers, {"recompute.layers", words});
  }
}

TEST(Rest, what_is_not_built_is_refused) {
  for (const auto& [set, key] : std::vector<std::pair<std::string, std::string>>{
           {"offload.optimizer=cpu", "offload.optimizer"},
           {"offload.params=nvme", "offload.params"},
           {"offload.resident=1.5", "offload.resident"},
           {"offload.resident=-0.1", "offload.resident"},
           {"offload.early=1.1", "offload.early"},
           {"offload.threads=0", "offload.threads"},
           {"mesh.context=2", "mesh.context"},
           {"optim.type=sgd", "optim.type"}}) {
    expect_problem(only_problem(kGoodConfig, {set}), "--set " + set, {key, "expected"});
  }
}

TEST(Resolved, parses_back_to_itself_and_does_not_depend_on_the_ranks) {
  const std::vector<std::vector<std::string>> cases = {
      {},
      {"data.validation.documents=[\"a b*\", 'c\"d', \"null\"]",
       "data.mixture.weights={law: 0.1, \"x y\": 1e-9}"},
      {"debug.inject={step: 1, tensor: embedding, value: -inf}", "train.resume=step:5",
       "reduce.slots=12"},
      {"model.pattern=[gqa/swiglu, gqa/swiglu]", "optim.freeze=[\"layers.*\"]",
       "train.init_from=runs/b"},
      {"model.pattern=[kda/moe]", "model.last_layer=gqa/swiglu", "model.kda.gate=lower_bound",
       "model.moe={experts: 8, per_token: 2, ffn: 16, renormalize: false, latent: 24}"},
      {"model.pattern=[mla/swiglu]",
       "model.mla={kv_rank: 24, rope_head_dim: 8, positions: none, norm_eps: 1e-5}"},
      {"recompute.layers=[2, 1]", "recompute.cheap=true"},
      {"recompute.layers=middle"},
      {"zero.reshard_after=forward", "zero.reduce_after=step", "train.precision=bf16",
       "reduce.mode=library"}};
  for (const auto& overrides : cases) {
    const ParsedConfig parsed = parse(kGoodConfig, overrides);
    EXPECT_EQ(parse(parsed.resolved).resolved, parsed.resolved);
    EXPECT_EQ(parse(kGoodConfig, overrides, 4).resolved, parsed.resolved);
    EXPECT_EQ(parse(parsed.annotated).resolved, parsed.resolved)
        << "the annotated text is a config too";
  }
}

TEST(Keys, the_list_is_frozen) {
  std::string list;
  for (const KeyInfo& key : config_keys()) {
    const std::string fallback = key.default_value.empty() ? "(required)" : key.default_value;
    list += key.path + "\t" + key.type + "\t" + fallback + "\n";
  }
  std::ifstream in(K25_GOLDEN_DIR "/config_keys.txt");
  std::stringstream golden;
  golden << in.rdbuf();
  EXPECT_EQ(list, golden.str())
      << "keys are an interface: add to tests/golden/config_keys.txt and to "
         "docs/configuration.md what is new, and take nothing away";
}

TEST(Keys, every_default_is_a_value_of_its_key) {
  for (const KeyInfo& key : config_keys()) {
    EXPECT_FALSE(key.help.empty()) << key.path;
    if (key.default_value.empty() || key.default_value == "null") continue;
    EXPECT_EQ(parse(kGoodConfig, {"train.accumulation=24", key.path + "=" + key.default_value})
                  .config.train.steps,
              20)
        << key.path;
  }
}

}  // namespace
}  // namespace k25::trainer
