// --set, presets, and where a value came from.
#include "tests/trainer/config/config_text.h"

namespace k25::trainer {
namespace {

TEST(Override, scalars_lists_and_maps) {
  const Config c =
      parse(kGoodConfig, {"optim.lr=1e-3", "optim.betas=[0.8, 0.9]", "data.mixture.weights.law=0.5",
                          "data.validation={fraction: 0.25}", "run.dir=a=b", "train.steps=1e3"})
          .config;
  EXPECT_EQ(c.optim.schedule.lr, 1e-3);
  EXPECT_EQ(c.optim.beta1, 0.8);
  EXPECT_EQ(c.data.mixture_weights.at("law"), 0.5);
  EXPECT_EQ(c.data.validation.fraction, 0.25);
  EXPECT_EQ(c.run.dir, "a=b");
  EXPECT_EQ(c.train.steps, 1000);
}

TEST(Override, the_last_one_wins_and_a_map_replaces_a_map) {
  const std::vector<std::string> twice = {"train.steps=3", "train.steps=4"};
  EXPECT_EQ(parse(kGoodConfig, twice).config.train.steps, 4);
  const std::string with =
      edited("sequence: 128", "sequence: 128\n  mixture: {weights: {law: 1, news: 2}}");
  EXPECT_EQ(parse(with, {"data.mixture.weights={law: 3}"}).config.data.mixture_weights.size(), 1u);
  EXPECT_EQ(parse(with, {"data.mixture.weights.news=3"}).config.data.mixture_weights.size(), 2u);
}

TEST(Override, null_gives_back_what_null_means) {
  const std::string with = edited("heads: 4", "heads: 4\n  kv_heads: 2");
  EXPECT_EQ(parse(with).config.model.kv_heads, 2);
  for (const char* text : {"model.kv_heads=null", "model.kv_heads=~", "model.kv_heads= null"}) {
    EXPECT_EQ(parse(with, {text}).config.model.kv_heads, 4) << text;
  }
}

TEST(Override, an_empty_value_is_no_null) {
  for (const char* text : {"train.init_from=", "train.init_from= ", "train.init_from=#a",
                           "model.kv_heads=", "data.mixture.weights=", "optim=", "run.dir="}) {
    expect_problem(only_problem(kGoodConfig, {text}), std::string("--set ") + text,
                   {"the value is empty; write null to leave the key out"});
  }
  expect_problem(only_problem(kGoodConfig, {"train.init_from=''"}), "--set train.init_from=''",
                 {"train.init_from: expected text, or null, got the quoted text ''"});
  EXPECT_EQ(parse(kGoodConfig, {"train.init_from=null"}).config.train.init_from, "");
}

TEST(Override, mistakes_name_the_override) {
  expect_problem(only_problem(kGoodConfig, {"optim.lr"}), "--set optim.lr", {"expected key=value"});
  expect_problem(only_problem(kGoodConfig, {"=5"}), "--set =5", {"expected key=value"});
  expect_problem(only_problem(kGoodConfig, {"optim.lrr=5"}), "--set optim.lrr=5",
                 {"unknown key 'optim.lrr'", "did you mean 'lr'?"});
  expect_problem(only_problem(kGoodConfig, {"optm.lr=5"}), "--set optm.lr=5",
                 {"unknown key 'optm'", "'optim'"});
  expect_problem(only_problem(kGoodConfig, {"optim.lr=abc"}), "--set optim.lr=abc",
                 {"a number", "'abc'"});
  expect_problem(only_problem(kGoodConfig, {"optim.lr.x=1"}), "--set optim.lr.x=1",
                 {"'x' lies below a key"});
  expect_problem(only_problem(kGoodConfig, {"optim..lr=1"}), "--set optim..lr=1",
                 {"unknown key ''"});
  expect_problem(problems_of(kGoodConfig, {"optim=5"})[0], "--set optim=5",
                 {"'optim' must be a map"});
  EXPECT_NE(only_problem(kGoodConfig, {"optim.betas=[0.9"}).find("--set optim.betas=[0.9"),
            std::string::npos);
  EXPECT_NE(only_problem(kGoodConfig, {"optim.betas=&a [0.9, 0.95]"}).find("anchors"),
            std::string::npos);
  EXPECT_EQ(problems_of(kGoodConfig, {"a=1", "b=2", "optim.lr=x"}).size(), 3u);
}

TEST(Override, a_missing_key_can_be_given) {
  const std::string without = edited("  vocab: 512\n", "");
  EXPECT_EQ(parse(without, {"model.vocab=300"}).config.model.vocab, 300);
  EXPECT_EQ(parse("run: {dir: a}\n", {"model={layers: 1, hidden: 8, heads: 2, ffn: 8, vocab: 300}",
                                      "data={train: c, sequence: 8}",
                                      "train={steps: 1, batch: 1, micro_batch: 1}", "optim.lr=1"})
                .config.model.hidden,
            8);
}

TEST(Preset, sizes_come_from_it_and_given_keys_win) {
  const std::string text =
      edited("  layers: 8\n  hidden: 64\n  heads: 4\n  ffn: 128\n  vocab: 512\n",
             "  preset: quickstart\n  layers: 3\n");
  const ParsedConfig parsed = parse(text);
  EXPECT_EQ(parsed.config.model.layers, 3);
  EXPECT_EQ(parsed.config.model.hidden, 128);
  EXPECT_EQ(parsed.config.model.kv_heads, 2);
  EXPECT_EQ(parsed.origins.at("model.layers"), "cfg.yaml:5:11");
  EXPECT_EQ(parsed.origins.at("model.hidden").rfind("preset quickstart", 0), 0u);
  EXPECT_EQ(parse(parsed.resolved).resolved, parsed.resolved);
  EXPECT_EQ(parse(kGoodConfig, {"model.preset=quickstart"}).config.model.hidden, 64);
}

TEST(Preset, an_unknown_one_lists_those_known) {
  expect_problem(only_problem(edited("  layers: 8\n", "  preset: quikstart\n  layers: 8\n")),
                 "cfg.yaml:4:11", {"model.preset", "'quikstart'", "quickstart"});
  expect_problem(only_problem(edited("  layers: 8\n", "  preset: [a]\n  layers: 8\n")),
                 "cfg.yaml:4:11", {"model.preset", "a list"});
}

TEST(Origins, name_file_override_default_and_what_auto_came_to) {
  const ParsedConfig parsed = parse(kGoodConfig, {"optim.clip=1"}, 4);
  EXPECT_EQ(parsed.origins.at("model.vocab"), "cfg.yaml:8:10");
  EXPECT_EQ(parsed.origins.at("optim.clip"), "--set optim.clip=1");
  EXPECT_EQ(parsed.origins.at("optim.eps"), "default");
  EXPECT_EQ(parsed.chosen.at("mesh.shard"), "4");
  EXPECT_EQ(parsed.chosen.at("train.accumulation"), "6");
  EXPECT_NE(parsed.annotated.find("  shard: auto  # default; here 4\n"), std::string::npos)
      << parsed.annotated;
  EXPECT_NE(parsed.annotated.find("  clip: 1  # --set optim.clip=1\n"), std::string::npos)
      << parsed.annotated;
}

}  // namespace
}  // namespace k25::trainer
