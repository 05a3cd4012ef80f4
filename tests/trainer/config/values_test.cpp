// Scalars: what each type takes and what the message says about the rest.
#include <limits>

#include "tests/trainer/config/config_text.h"
#include "trainer/config/printable.h"
#include "trainer/config/read_values.h"

namespace k25::trainer {
namespace {

YamlNode scalar(const std::string& text) {
  return {.kind = YamlNode::Kind::kScalar,
          .scalar = text,
          .quoted = false,
          .where = "",
          .items = {},
          .entries = {}};
}

std::int64_t integer_of(const std::string& text) {
  std::int64_t value = -999;
  EXPECT_EQ(read_integer(scalar(text), -100, std::numeric_limits<std::int64_t>::max(), value), "")
      << text;
  return value;
}

TEST(Values, integers) {
  EXPECT_EQ(integer_of("0"), 0);
  EXPECT_EQ(integer_of("-7"), -7);
  EXPECT_EQ(integer_of("+7"), 7);
  EXPECT_EQ(integer_of("1e6"), 1000000);
  EXPECT_EQ(integer_of("1E6"), 1000000);
  EXPECT_EQ(integer_of("2.5e1"), 25);
  EXPECT_EQ(integer_of("3000000000"), 3000000000);
  EXPECT_EQ(integer_of("9223372036854775807"), std::numeric_limits<std::int64_t>::max());
}

TEST(Values, what_is_no_integer) {
  for (const char* text : {"010",   "-010",  "00",      "twenty", "1.5",   "1.0",
                           "1e-3",  "1.5e0", "0x10",    "1_000",  "1,000", "9223372036854775808",
                           "1e400", "1e18",  "+-5",     "--5",    "+",     "-",
                           "1e",    "e5",    ".nan",    ".inf",   "nan",   "inf",
                           "1 2",   "true",  "5 steps", "+-5e0"}) {
    std::int64_t value = 42;
    EXPECT_NE(read_integer(scalar(text), std::numeric_limits<std::int64_t>::min(),
                           std::numeric_limits<std::int64_t>::max(), value),
              "")
        << text;
    EXPECT_EQ(value, 42) << text << " must not leave a value behind";
  }
}

TEST(Values, numbers) {
  for (const auto& [text, expected] : std::vector<std::pair<std::string, double>>{{"0", 0.0},
                                                                                  {"2.0e-5", 2e-5},
                                                                                  {"1e6", 1e6},
                                                                                  {".5", 0.5},
                                                                                  {"5.", 5.0},
                                                                                  {"+0.5", 0.5},
                                                                                  {"-1", -1.0}}) {
    double value = 99.0;
    EXPECT_EQ(read_number(scalar(text), {-10.0, 1e9}, value), "") << text;
    EXPECT_EQ(value, expected) << text;
  }
  for (const char* text : {".nan", ".inf", "-.inf", "nan", "inf", "infinity", "010", "00.5",
                           "1e400", "0x1p3", "1e", "1,5", "abc", "1 2", "+-5", "1f"}) {
    double value = 99.0;
    EXPECT_NE(read_number(scalar(text), {-1e300, 1e300}, value), "") << text;
    EXPECT_EQ(value, 99.0) << text;
  }
}

TEST(Values, bounds_are_inclusive_or_exclusive) {
  double value = 0.0;
  EXPECT_EQ(read_number(scalar("1"), {0.0, 1.0}, value), "");
  EXPECT_EQ(read_number(scalar("0"), {0.0, 1.0}, value), "");
  const NumberRange open{0.0, 1.0, Bound::kExclusive, Bound::kExclusive};
  EXPECT_EQ(read_number(scalar("0"), open, value), "a number in (0, 1)");
  EXPECT_EQ(read_number(scalar("1"), open, value), "a number in (0, 1)");
  std::int64_t integer = 0;
  EXPECT_EQ(read_integer(scalar("3"), 1, 3, integer), "");
  EXPECT_EQ(read_integer(scalar("4"), 1, 3, integer), "an integer in [1, 3]");
}

TEST(Values, messages_name_place_key_type_and_text) {
  const auto problem = [](const std::string& from, const std::string& to) {
    return only_problem(edited(from, to));
  };
  expect_problem(problem("steps: 20", "steps: twenty"), "cfg.yaml:13:10",
                 {"train.steps", "expected an integer in [1, 9007199254740992]", "got 'twenty'"});
  expect_problem(problem("steps: 20", "steps: 010"), "cfg.yaml:13:10",
                 {"without leading zeros", "'010'"});
  expect_problem(problem("batch: 24", "batch: -4"), "cfg.yaml:14:10",
                 {"train.batch", "'-4'", "auto"});
  expect_problem(problem("lr: 2.0e-5", "lr: .nan"), "cfg.yaml:17:7",
                 {"optim.lr", "a number", "'.nan'"});
  expect_problem(problem("steps: 20", "steps: \"20\""), "cfg.yaml:13:10", {"the quoted text '20'"});
  expect_problem(problem("steps: 20", "steps:"), "cfg.yaml:13:3", {"train.steps", "got nothing"});
  expect_problem(problem("steps: 20", "steps: [20]"), "cfg.yaml:13:10", {"got a list [20]"});
  expect_problem(problem("steps: 20", "steps: {a: 1}"), "cfg.yaml:13:10", {"got a map {a: 1}"});
  expect_problem(problem("dir: runs/a", "dir: \"\""), "cfg.yaml:2:8", {"run.dir", "expected text"});
  EXPECT_EQ(parse(edited("steps: 20", "steps: 1e6")).config.train.steps, 1000000);
  EXPECT_EQ(parse(edited("steps: 20", "steps: 3e9")).config.train.steps, 3000000000);
}

TEST(Values, booleans_and_choices_have_one_spelling) {
  for (const char* word : {"yes", "True", "on", "1", "\"true\""}) {
    EXPECT_NE(
        only_problem(edited("vocab: 512", std::string("vocab: 512\n  tie_embeddings: ") + word))
            .find("expected true or false"),
        std::string::npos)
        << word;
  }
  EXPECT_TRUE(parse(edited("vocab: 512", "vocab: 512\n  tie_embeddings: true"))
                  .config.model.tie_embeddings);
  expect_problem(only_problem(edited("steps: 20", "steps: 20\n  precision: fp16")),
                 "cfg.yaml:14:14", {"train.precision", "fp32 | bf16", "'fp16'"});
}

TEST(Values, what_would_be_0_or_infinite_in_fp32_is_refused) {
  for (const char* set :
       {"model.norm_eps=0", "model.norm_eps=1e-60", "optim.eps=0", "optim.eps=1e-60",
        "optim.lr=1e40", "optim.weight_decay=1e40", "model.init_std=1e40"}) {
    EXPECT_NE(only_problem(kGoodConfig, {set}).find("expected a number in "), std::string::npos)
        << set;
  }
  EXPECT_EQ(parse(kGoodConfig, {"optim.lr=0"}).config.optim.schedule.lr, 0.0);
}

TEST(Values, lists) {
  const auto with_betas = [](const std::string& betas) {
    return edited("lr: 2.0e-5", "lr: 1e-3\n  betas: " + betas);
  };
  EXPECT_EQ(parse(with_betas("[0.9, 0.95]")).config.optim.beta2, 0.95);
  for (const char* bad : {"0.9", "[0.9]", "[0.9, 0.95, 0.99]", "[0.9, 1.0]", "[-0.1, 0.9]",
                          "[a, b]", "[0.9, .nan]"}) {
    const std::string problem = only_problem(with_betas(bad));
    EXPECT_EQ(problem.rfind("cfg.yaml:18:1", 0), 0u) << problem;
    EXPECT_NE(problem.find("optim.betas: expected two numbers in [0, 1)"), std::string::npos);
  }
  const auto with_weights = [](const std::string& w) {
    return edited("sequence: 128", "sequence: 128\n  mixture: {weights: " + w + "}");
  };
  EXPECT_EQ(parse(with_weights("{law: 0.25, \"a b\": 1}")).config.data.mixture_weights.at("a b"),
            1.0);
  for (const char* bad : {"[1]", "{law: -1}", "{law: x}", "{law: .inf}", "5"}) {
    EXPECT_NE(only_problem(with_weights(bad)).find("data.mixture.weights: expected a map"),
              std::string::npos)
        << bad;
  }
  expect_problem(only_problem(edited("vocab: 512", "vocab: 512\n  pattern: [awa/moe]")),
                 "cfg.yaml:9:13", {"model.pattern", "MIXER/FEED-FORWARD", "gqa", "swiglu"});
}

TEST(Values, layers_of_experts) {
  const std::string moe = "vocab: 512\n  pattern: [kda/swiglu, gqa/moe]\n  moe: ";
  const auto with = [&](const std::string& keys) { return edited("vocab: 512", moe + keys); };
  const ModelConfig m =
      parse(with("{experts: 8, per_token: 2, ffn: 48, groups: 4, top_groups: 2}")).config.model;
  EXPECT_EQ(m.kind(0).mixer, MixerKind::kKda);
  EXPECT_EQ(m.kind(0).feed_forward, FeedForwardKind::kSwiglu);
  EXPECT_EQ(m.kind(3).mixer, MixerKind::kGqa);
  EXPECT_EQ(m.kind(3).feed_forward, FeedForwardKind::kMoe);
  EXPECT_EQ(m.kda.heads, m.heads);
  EXPECT_EQ(m.kda.key_dim, m.head_dim);
  EXPECT_EQ(m.kda.value_dim, m.head_dim);
  EXPECT_EQ(m.kda.gate_rank, m.head_dim);
  const std::pair<const char*, std::vector<std::string>> cases[] = {
      {"{experts: 65536, per_token: 2, ffn: 257}",
       {"model.moe.experts: 65536 experts of width 257 in 8 layers; at most 16777216 wide in a "
        "layer "
        "and 1048576 in the model"}},
      {"{per_token: 2, ffn: 48}", {"cfg.yaml:9:12: model.moe.experts: null", "give a number"}},
      {"{experts: 8, ffn: 48}", {"model.moe.per_token: null", "model.pattern has moe layers"}},
      {"{experts: 8, per_token: 2}", {"model.moe.ffn: null"}},
      {"{experts: 8, per_token: 9, ffn: 48}",
       {"cfg.yaml:10:32: model.moe.per_token: 9 of 8 experts; at most 8"}},
      {"{experts: 8, per_token: 2, ffn: 48, groups: 3}",
       {"cfg.yaml:10:52: model.moe.groups: 3 groups do not divide 8 experts"}},
      {"{experts: 8, per_token: 4, ffn: 48, groups: 4}",
       {"model.moe.top_groups: 1 of 4 groups with 2 experts each cannot give a token 4 experts; "
        "from "
        "2 to 4"}},
      {"{experts: 8, per_token: 2, ffn: 48, groups: 2, top_groups: 3}",
       {"cfg.yaml:10:67: model.moe.top_groups: 3 of 2 groups", "from 1 to 2"}},
      {"{experts: 0, per_token: 2, ffn: 48}",
       {"model.moe.experts: expected an integer in [1, 65536], or null"}},
      {"{experts: 8, per_token: 2, ffn: 48, bias_rate: -1}",
       {"model.moe.bias_rate: expected a number in [0, 1]"}},
  };
  for (const auto& [keys, parts] : cases) {
    const std::string message = only_problem(with(keys));
    for (const std::string& part : parts) {
      EXPECT_NE(message.find(part), std::string::npos) << part << " is not in " << message;
    }
  }
}

TEST(Values, choices_that_int32_can_count) {
  const std::string text =
      edited("vocab: 512", "vocab: 512\n  pattern: [gqa/moe]\n  moe: {experts: 1024, ffn: 1}");
  const std::vector<std::string> large = {"data.sequence=1048576", "train.batch=8",
                                          "train.micro_batch=4", "model.moe.per_token=512"};
  EXPECT_EQ(only_problem(text, large),
            "--set train.micro_batch=4: train.micro_batch: micro_batch 4 x sequence 1048576 x "
            "model.moe.per_token 512 must be below 2^31");
  std::vector<std::string> fits = large;
  fits[3] = "model.moe.per_token=511";
  EXPECT_EQ(parse(text, fits).config.model.moe.per_token, 511);
}

TEST(Values, the_last_layer_and_the_first) {
  const std::string text = edited(
      "vocab: 512",
      "vocab: 512\n  pattern: [kda/moe, kda/moe, kda/moe, gqa/moe]\n  last_layer: gqa/swiglu\n"
      "  kda: {gate: lower_bound, lower_bound: -2.5}\n"
      "  moe: {experts: 4, per_token: 1, ffn: 8, first_dense_layers: 2}");
  ModelConfig m = parse(text, {"model.layers=7"}).config.model;
  std::string kinds;
  for (std::int64_t i = 0; i < 7; ++i) {
    kinds += m.kind(i).mixer == MixerKind::kKda ? 'k' : 'g';
    kinds += m.kind(i).feed_forward == FeedForwardKind::kMoe ? 'm' : 's';
  }
  EXPECT_EQ(kinds, "kskskmgmkmkmgs");
  EXPECT_EQ(m.kda.lower_bound, -2.5);
  expect_problem(only_problem(text, {"model.last_layer=kda"}), "--set model.last_layer=kda",
                 {"expected MIXER/FEED-FORWARD, such as gqa/moe, or null", "got 'kda'"});
  expect_problem(only_problem(text, {"model.kda.lower_bound=0"}), "--set model.kda.lower_bound=0",
                 {"expected a number in [-5, 0)"});
  expect_problem(only_problem(text, {"model.kda.conv_width=3"}), "--set model.kda.conv_width=3",
                 {"expected one of 4"});
}

TEST(Values, the_bad_element_is_named_where_it_stands) {
  const auto with = [](const std::string& line) {
    return edited("vocab: 512", "vocab: 512" + line);
  };
  expect_problem(only_problem(with("\n  pattern: [gqa/swiglu, gqa/swiglu, gqa/mo]")),
                 "cfg.yaml:9:37",
                 {"got a list [gqa/swiglu, gqa/swiglu, gqa/mo]; model.pattern[2] is 'gqa/mo'"});
  expect_problem(only_problem(with("\n  pattern:\n  - gqa/swiglu\n  - {a: [1, b]}")),
                 "cfg.yaml:11:5", {"; model.pattern[1] is a map {a: [1, b]}"});
  expect_problem(only_problem(edited("lr: 2.0e-5", "lr: 1\n  betas: [0.9, 1.5]")), "cfg.yaml:18:16",
                 {"got a list [0.9, 1.5]; optim.betas[1] is '1.5'"});
  expect_problem(
      only_problem(edited("sequence: 128", "sequence: 128\n  mixture: {weights: {a: 1, law: -1}}")),
      "cfg.yaml:12:34", {"got a map {a: 1, law: -1}; data.mixture.weights.law is '-1'"});
  expect_problem(only_problem(kGoodConfig, {"optim.freeze=[a, [b]]"}),
                 "--set optim.freeze=[a, [b]]",
                 {"optim.freeze: expected a list of texts", "; optim.freeze[1] is a list [b]"});
  const std::string nothing = only_problem(with("\n  pattern: []"));
  expect_problem(nothing, "cfg.yaml:9:12", {"got a list []"});
  EXPECT_EQ(nothing.find("model.pattern["), std::string::npos) << nothing;
}

TEST(Values, integers_end_where_doubles_skip_some) {
  for (const char* last : {"9007199254740992", "9007199254740992e0"}) {
    EXPECT_EQ(parse(edited("steps: 20", std::string("steps: ") + last)).config.train.steps,
              9007199254740992);
  }
  for (const char* beyond : {"9007199254740993", "1e16"}) {
    expect_problem(only_problem(edited("steps: 20", std::string("steps: ") + beyond)),
                   "cfg.yaml:13:10", {"expected an integer in [1, 9007199254740992]"});
  }
}

TEST(Values, a_nul_character_is_refused_with_its_key) {
  expect_problem(only_problem(edited("dir: runs/a", "dir: \"a\\0b\"")), "cfg.yaml:2:8",
                 {"run.dir: expected text without NUL characters, got the quoted text 'a\\x00b'"});
  expect_problem(only_problem(kGoodConfig, {"optim.freeze=[a, \"b\\0\"]"}),
                 "--set optim.freeze=[a, \"b\\0\"]",
                 {"optim.freeze[1] is the quoted text 'b\\x00'"});
}

TEST(Values, messages_are_printable) {
  EXPECT_EQ(printable("a\nb\tc\x7f\x1b[1m\xff\xc3\xa4\xc2\x9b\xc3"),
            "a\\nb\\x09c\\x7f\\x1b[1m\\xff\xc3\xa4\\u009b\\xc3");
  EXPECT_EQ(printable_start(std::string(60, 'x')), std::string(60, 'x'));
  EXPECT_EQ(printable_start(std::string(61, 'x')), std::string(60, 'x') + "...");
  expect_problem(only_problem(kGoodConfig, {"optim.lr=\"a\nb\""}), "--set optim.lr=\"a\\nb\"",
                 {"got the quoted text 'a b'"});
}

TEST(Values, a_long_value_is_shortened) {
  const std::string problem = only_problem(
      edited("steps: 20", "steps: [" + std::string(500, 'x') + ", " + std::string(500, 'y') + "]"));
  EXPECT_LT(problem.size(), 200u) << problem;
  EXPECT_NE(problem.find("got a list [xxxx"), std::string::npos) << problem;
  EXPECT_NE(problem.find("xxx..."), std::string::npos) << problem;
  std::string umlauts;
  for (int i = 0; i < 100; ++i) umlauts += "\xc3\xa4";
  const std::string cut = only_problem(edited("steps: 20", "steps: x" + umlauts));
  EXPECT_NE(cut.find("\xc3\xa4...'"), std::string::npos) << "no half character: " << cut;
}

TEST(Values, numbers_print_as_they_read) {
  for (const double value : {1e-6, 0.1, 2.0e-5, 3.0, 1e299, 0.30000000000000004}) {
    double back = 0.0;
    const std::string text = yaml_number(value);
    EXPECT_EQ(read_number(scalar(text), {}, back), "") << text;
    EXPECT_EQ(back, value) << text;
  }
}

TEST(Values, texts_print_as_they_read) {
  for (const std::string text : {"plain",
                                 "a b",
                                 "null",
                                 "NULL",
                                 "Null",
                                 "~",
                                 "true",
                                 "010",
                                 "1e5",
                                 "-x",
                                 "a: b",
                                 "a #b",
                                 "\"q\"",
                                 "back\\slash",
                                 "two\nlines",
                                 "tab\there",
                                 "carriage\rreturn",
                                 "bell\x07",
                                 "{a}",
                                 "[a]",
                                 "'s'",
                                 "*x",
                                 "&x",
                                 "!x",
                                 "|",
                                 ">",
                                 "%x",
                                 "@x",
                                 "`x",
                                 "\xc3\xa9t\xc3\xa9",
                                 " lead",
                                 "trail ",
                                 "?",
                                 "- a",
                                 "---",
                                 "..."}) {
    const ParsedConfig parsed = parse(edited("dir: runs/a", "dir: " + yaml_text(text)));
    EXPECT_EQ(parsed.config.run.dir, text);
    EXPECT_EQ(parse(parsed.resolved).config.run.dir, text);
  }
}

}  // namespace
}  // namespace k25::trainer
