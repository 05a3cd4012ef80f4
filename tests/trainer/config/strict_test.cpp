// What strict YAML refuses and accepts, with the place that is named.
#include <random>

#include "tests/trainer/config/config_text.h"

namespace k25::trainer {
namespace {

TEST(Strict, the_good_config_parses) {
  const ParsedConfig parsed = parse(kGoodConfig);
  EXPECT_EQ(parsed.config.model.layers, 8);
  EXPECT_EQ(parsed.config.train.batch, 24);
  EXPECT_EQ(parsed.config.optim.schedule.lr, 2.0e-5);
}

TEST(Strict, unknown_key_names_place_and_nearest_key) {
  expect_problem(only_problem(edited("  lr: 2.0e-5\n", "  lr: 2.0e-5\n  weight_deacy: 0.1\n")),
                 "cfg.yaml:18:3",
                 {"unknown key 'optim.weight_deacy'", "did you mean 'weight_decay'?"});
  expect_problem(only_problem(edited("  lr: 2.0e-5\n", "  lr: 2.0e-5\noptimiser: {type: adamw}\n")),
                 "cfg.yaml:18:1", {"unknown key 'optimiser'", "did you mean 'optim'?"});
}

TEST(Strict, unknown_key_of_another_section_is_found) {
  expect_problem(only_problem(edited("  steps: 20\n", "  steps: 20\n  clip: 1.0\n")),
                 "cfg.yaml:14:3", {"'train.clip'", "did you mean 'optim.clip'?"});
  expect_problem(only_problem(edited("  steps: 20\n", "  steps: 20\n  zzzzzzzz: 1.0\n")),
                 "cfg.yaml:14:3", {"'train.zzzzzzzz'", "k25 config --keys"});
}

TEST(Strict, a_dot_in_a_key_does_not_nest) {
  expect_problem(only_problem(std::string(kGoodConfig) + "optim.lr: 5\n"), "cfg.yaml:18:1",
                 {"unknown key 'optim.lr'; write it nested: optim: {lr: ...}"});
  expect_problem(only_problem(std::string(kGoodConfig) + "optim.schedule: {kind: cosine}\n"),
                 "cfg.yaml:18:1",
                 {"unknown key 'optim.schedule'; write it nested: optim: {schedule: ...}"});
  expect_problem(only_problem(std::string(kGoodConfig) + "optim.schedule.kind: cosine\n"),
                 "cfg.yaml:18:1", {"write it nested: optim: {schedule: {kind: ...}}"});
  expect_problem(only_problem(edited("  lr: 2.0e-5\n", "  lr: 1\n  schedule.kind: cosine\n")),
                 "cfg.yaml:18:3",
                 {"unknown key 'schedule.kind'; write it nested: schedule: {kind: ...}"});
  expect_problem(only_problem(kGoodConfig, {"optim={lr: 1, schedule.kind: cosine}"}),
                 "--set optim={lr: 1, schedule.kind: cosine}", {"unknown key 'schedule.kind'"});
  EXPECT_EQ(parse(edited("sequence: 128", "sequence: 128\n  mixture: {weights: {a.b: 1}}"))
                .config.data.mixture_weights.at("a.b"),
            1.0)
      << "names of the user may have dots";
}

TEST(Strict, an_empty_key_is_unknown) {
  for (const char* line : {"\"\": {optim: {lr: 5}}\n", "\"\": 4\n"}) {
    expect_problem(only_problem(std::string(kGoodConfig) + line), "cfg.yaml:18:1",
                   {"unknown key ''"});
  }
  for (const char* set : {".log.format=json", "log..format=json", ".=1"}) {
    expect_problem(only_problem(kGoodConfig, {set}), std::string("--set ") + set,
                   {"unknown key ''"});
  }
  EXPECT_NE(only_problem(kGoodConfig, {"optim.lr.=1"}).find("below a key"), std::string::npos);
}

TEST(Strict, many_problems_are_counted) {
  std::string text = kGoodConfig;
  for (int i = 0; i < 30000; ++i) text += "k" + std::to_string(i) + ": 1\n";
  const std::vector<std::string> problems = problems_of(text);
  ASSERT_EQ(problems.size(), 21u);
  EXPECT_EQ(problems[19].rfind("cfg.yaml:37:1: unknown key 'k19'", 0), 0u) << problems[19];
  EXPECT_EQ(problems[20], "and 29980 more problems");
}

TEST(Strict, directives_are_refused) {
  for (const char* line : {"%FOO bar", "%YAML 1.2", "%TAG ! tag:x,1:"}) {
    expect_problem(only_problem(std::string("# a\n") + line + "\n---\n" + kGoodConfig),
                   "cfg.yaml:2:1", {"directives are not supported", line});
  }
}

TEST(Strict, all_problems_are_listed_at_once) {
  const auto lines = problems_of(edited("  lr: 2.0e-5\n", "  lrr: 1\n  betaz: [1]\nrunn: {}\n"));
  ASSERT_EQ(lines.size(), 4u) << ::testing::PrintToString(lines);
  expect_problem(lines[0], "cfg.yaml:17:3", {"'optim.lrr'", "'lr'"});
  expect_problem(lines[1], "cfg.yaml:18:3", {"'optim.betaz'", "'betas'"});
  expect_problem(lines[2], "cfg.yaml:19:1", {"'runn'", "'run'"});
  expect_problem(lines[3], "cfg.yaml:17:3", {"missing key 'optim.lr'"});
}

TEST(Strict, a_map_inside_a_list_is_no_way_to_hide_a_key) {
  expect_problem(
      only_problem(edited("  lr: 2.0e-5\n", "  lr: 2.0e-5\n  freeze: [{weight_deacy: 1}]\n")),
      "cfg.yaml:18:12", {"optim.freeze", "a list of texts"});
  expect_problem(
      only_problem(edited("optim:\n  lr: 2.0e-5\n", "optim:\n  - lr: 2.0e-5\n")).substr(0, 60),
      "cfg.yaml:17:3", {"'optim' must be a map of keys, got a list"});
}

TEST(Strict, duplicate_keys_name_both_lines) {
  expect_problem(only_problem(edited("  lr: 2.0e-5\n", "  lr: 1e-4\n  eps: 1e-8\n  lr: 1e-5\n")),
                 "cfg.yaml:19:3", {"duplicate key 'lr'", "cfg.yaml:17:3"});
  expect_problem(only_problem(edited("optim:\n", "run: {dir: b}\noptim:\n")), "cfg.yaml:16:1",
                 {"duplicate key 'run'", "cfg.yaml:1:1"});
  expect_problem(only_problem(edited("  lr: 2.0e-5\n", "  lr: 1e-4\n  \"lr\": 1e-5\n")),
                 "cfg.yaml:18:3", {"duplicate key 'lr'"});
  expect_problem(only_problem(edited("  sequence: 128\n",
                                     "  sequence: 128\n  mixture: {weights: {a: 1, a: 2}}\n")),
                 "cfg.yaml:12:29", {"duplicate key 'a'", "cfg.yaml:12:23"});
}

TEST(Strict, tab_indentation_is_named) {
  expect_problem(only_problem(edited("  lr: 2.0e-5", "\tlr: 2.0e-5")), "cfg.yaml:17:1", {"tab"});
  expect_problem(only_problem(edited("  lr: 2.0e-5", "  \tlr: 2.0e-5")), "cfg.yaml:17:3", {"tab"});
  expect_problem(only_problem(edited("  sequence: 128\n",
                                     "  sequence: 128\n  validation:\n  \t fraction: 0\n")),
                 "cfg.yaml:13:3", {"tab"});
}

TEST(Strict, a_tab_separates_and_may_stand_on_an_empty_or_comment_line) {
  EXPECT_EQ(parse(edited("lr: 2.0e-5", "lr:\t2.0e-5")).config.optim.schedule.lr, 2.0e-5);
  EXPECT_EQ(parse(edited("optim:\n", "\t\n\t# note\noptim:\n")).config.optim.schedule.lr, 2.0e-5);
}

TEST(Strict, crlf_and_byte_order_mark_are_accepted) {
  std::string crlf;
  for (const char c : std::string(kGoodConfig)) crlf += c == '\n' ? "\r\n" : std::string(1, c);
  EXPECT_EQ(parse(crlf).resolved, parse(kGoodConfig).resolved);
  EXPECT_EQ(parse("\xEF\xBB\xBF" + std::string(kGoodConfig)).resolved, parse(kGoodConfig).resolved);
  EXPECT_EQ(parse("\xEF\xBB\xBF" + crlf).config.run.dir, "runs/a");
}

TEST(Strict, aliases_anchors_merge_keys_and_tags_are_refused) {
  const auto anchor = problems_of(edited("layers: 8", "layers: &n 8"));
  expect_problem(anchor[0], "cfg.yaml:4:11", {"anchors are not supported"});
  const auto alias = problems_of(edited("layers: 8\n  hidden: 64", "layers: &n 8\n  hidden: *n"));
  ASSERT_EQ(alias.size(), 2u);
  expect_problem(alias[1], "cfg.yaml:5:11", {"aliases are not supported"});
  const auto merge = problems_of(edited("optim:\n", "optim:\n  <<: {eps: 1e-8}\n"));
  expect_problem(merge[0], "cfg.yaml:17:3", {"merge keys (<<) are not supported"});
  expect_problem(only_problem(edited("layers: 8", "layers: !!int 8")), "cfg.yaml:4:11", {"tag"});
  expect_problem(only_problem(edited("layers: 8", "layers: !mine 8")), "cfg.yaml:4:11", {"tag"});
  expect_problem(only_problem(edited("optim:\n", "optim: !!map\n")), "cfg.yaml:16:8", {"tag"});
  expect_problem(only_problem(edited("lr: 2.0e-5", "lr: 2.0e-5\n  betas: !!seq [0.9, 0.95]")),
                 "cfg.yaml:18:10", {"tag"});
}

TEST(Strict, a_second_document_is_refused) {
  expect_problem(only_problem(std::string(kGoodConfig) + "---\nrun: {dir: b}\n"), "cfg.yaml:19:1",
                 {"second document"});
  EXPECT_NE(only_problem(std::string(kGoodConfig) + "---\n").find("second document"),
            std::string::npos);
  EXPECT_EQ(parse("---\n" + std::string(kGoodConfig)).config.run.dir, "runs/a");
  EXPECT_EQ(parse(std::string(kGoodConfig) + "...\n").config.run.dir, "runs/a");
}

TEST(Strict, an_empty_file_is_told_what_it_lacks) {
  for (const char* text : {"", "\n\n", "# only a comment\n", "---\n", "~\n", "\xEF\xBB\xBF"}) {
    expect_problem(only_problem(text), "cfg.yaml", {"the file is empty", "run, model"});
  }
}

TEST(Strict, the_top_must_be_a_map) {
  expect_problem(problems_of("just text\n")[0], "cfg.yaml:1:1", {"must be a map", "'just text'"});
  expect_problem(problems_of("[1, 2]\n")[0], "cfg.yaml:1:1", {"must be a map", "a list"});
}

TEST(Strict, broken_yaml_names_its_place) {
  expect_problem(only_problem(edited("lr: 2.0e-5\n", "betas: [0.9, 0.95\n")), "cfg.yaml:17:1",
                 {"end of sequence flow not found"});
}

TEST(Strict, deep_nesting_names_its_place_and_the_limit) {
  const std::string lists = std::string(100, '[') + std::string(100, ']');
  expect_problem(only_problem("run: " + lists), "cfg.yaml:1:21", {"nested deeper than 16 levels"});
  const std::string open = only_problem(std::string(100000, '['));
  EXPECT_EQ(open.rfind("cfg.yaml:1:", 0), 0u) << open;
  EXPECT_NE(open.find("nested deeper than 16 levels"), std::string::npos) << open;
  std::string maps, block;
  for (int i = 0; i < 2000; ++i) maps += "{a: ";
  for (int i = 0; i < 40; ++i) block += std::string(static_cast<std::size_t>(i), ' ') + "k:\n";
  expect_problem(only_problem("run: " + maps), "cfg.yaml:1:66", {"nested deeper than 16 levels"});
  expect_problem(only_problem(block), "cfg.yaml:17:17", {"nested deeper than 16 levels"});
  expect_problem(
      only_problem(kGoodConfig,
                   {"optim.freeze=" + std::string(20, '[') + "a" + std::string(20, ']')}),
      "--set optim.freeze=" + std::string(20, '[') + "a" + std::string(20, ']') + ":1:17",
      {"nested deeper than 16 levels"});
}

TEST(Strict, an_unclosed_quote_does_not_swallow_the_rest) {
  const std::string good = kGoodConfig;
  for (const char* quote : {"\"", "'"}) {
    for (const char* rest : {"", "\n", "\n\n# comment\n", "\nlog: {format: json}\n", " \t\r\n"}) {
      const auto problem = only_problem(good + "checkpoint: {}\neval: " + quote + "x" + rest);
      EXPECT_NE(problem.find("a quote is not closed"), std::string::npos) << problem;
    }
  }
}

TEST(Strict, a_missing_space_after_the_colon_is_told) {
  expect_problem(problems_of(edited("lr: 2.0e-5", "lr:2.0e-5"))[0], "cfg.yaml:17:3",
                 {"'optim' must be a map", "'lr:2.0e-5'", "a space after ':'"});
  expect_problem(only_problem(edited("lr: 2.0e-5", "lr:2.0e-5\n  eps: 1e-8")), "cfg.yaml:18:6",
                 {"a space after ':'"});
}

TEST(Strict, bytes_that_yaml_would_end_at_are_refused) {
  // The library takes NUL and EOT for the end of the file and would drop the rest in silence.
  for (const char byte : {'\0', '\x04', '\x1b', '\x7f'}) {
    std::string text = kGoodConfig;
    text.insert(text.find("  eps") == std::string::npos ? text.find("optim:") : 0, 1, byte);
    expect_problem(only_problem(text), "cfg.yaml:16:1",
                   {"control character", std::to_string(byte)});
  }
  expect_problem(only_problem(edited("runs/a", "runs/\xff")), "cfg.yaml:2:13", {"not UTF-8"});
  EXPECT_EQ(parse(edited("runs/a", "runs/\xc3\xa9")).config.run.dir, "runs/\xc3\xa9");
}

TEST(Strict, any_text_is_a_config_or_a_usage_error) {
  const std::string good = kGoodConfig, alphabet = ":{}[]#\t\n&*!|>'\"%@`,-? <~ae01.\\\r\x01\xc3";
  std::mt19937 random(7);
  const auto below = [&](std::size_t n) { return random() % n; };
  std::size_t accepted = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string text = good;
    for (std::size_t edits = 1 + below(3); edits > 0; --edits) {
      const char c = alphabet[below(alphabet.size())];
      const std::size_t at = below(text.size());
      if (below(2) == 0) {
        text[at] = c;
      } else {
        text.insert(at, 1, c);
      }
    }
    try {
      const ParsedConfig parsed = parse(text);
      EXPECT_EQ(parse(parsed.resolved).resolved, parsed.resolved) << text;
      ++accepted;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage) << text;
      EXPECT_EQ(std::string(error.what()).rfind("cfg.yaml", 0), 0u) << error.what();
    }
  }
  EXPECT_GT(accepted, 100u);
}

TEST(Strict, keys_must_be_text) {
  expect_problem(problems_of(edited("optim:\n", "optim:\n  ? [a]\n  : 1\n"))[0], "cfg.yaml:17:5",
                 {"a key must be plain text"});
  expect_problem(problems_of(edited("optim:\n", "optim:\n  ~: 1\n"))[0], "cfg.yaml:17:3",
                 {"a key must be plain text"});
}

TEST(Strict, an_empty_section_counts_as_absent) {
  EXPECT_EQ(parse(std::string(kGoodConfig) + "log:\ncheckpoint: ~\n").resolved,
            parse(kGoodConfig).resolved);
}

TEST(Strict, missing_keys_name_section_type_and_meaning) {
  expect_problem(only_problem(edited("  vocab: 512\n", "")), "cfg.yaml:4:3",
                 {"missing key 'model.vocab'", "integer", "vocabulary"});
  expect_problem(only_problem(edited("optim:\n  lr: 2.0e-5\n", "")), "cfg.yaml",
                 {"missing key 'optim.lr'"});
}

}  // namespace
}  // namespace k25::trainer
