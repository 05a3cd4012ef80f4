#include "data/tokenizer/tokenizer.h"

#include <gtest/gtest.h>
#include <sentencepiece_trainer.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <random>

#include "data/io/atomic_file.h"
#include "kernels/core/check.h"
#include "tests/data/scratch_folder.h"

namespace k25::data {
namespace {

using namespace std::string_literals;
namespace fs = std::filesystem;

class TokenizerTest : public ::testing::Test {
 protected:
  fs::path file(const std::string& name) const { return folder_ / name; }
  std::string content(const std::string& name) const {
    return read_file(file(name), ErrorKind::kData);
  }
  void write(const std::string& name, const std::string& bytes) const {
    write_text(file(name), bytes);
  }
  Tokenizer train(const std::vector<std::string>& texts, std::int32_t vocab) const {
    Tokenizer::train(texts, {.vocab = vocab}, file("m"));
    return Tokenizer(file("m"));
  }
  /// Trains by SentencePiece's own interface, for models that are not ours.
  void foreign_model(const std::string& name,
                     std::unordered_map<std::string, std::string> changes) {
    write("input.txt", english());
    std::unordered_map<std::string, std::string> options = {{"input", file("input.txt").string()},
                                                            {"model_type", "bpe"},
                                                            {"vocab_size", "320"},
                                                            {"byte_fallback", "true"},
                                                            {"character_coverage", "1.0"},
                                                            {"normalization_rule_name", "identity"},
                                                            {"add_dummy_prefix", "false"},
                                                            {"remove_extra_whitespaces", "false"},
                                                            {"hard_vocab_limit", "false"},
                                                            {"minloglevel", "3"}};
    for (const auto& [key, value] : changes) options[key] = value;
    std::string model;
    options.erase("model_prefix");
    const auto status = sentencepiece::SentencePieceTrainer::Train(options, nullptr, &model);
    ASSERT_TRUE(status.ok()) << status.ToString();
    write(name, model);
  }
  static std::string english() {
    std::string text;
    for (int i = 0; i < 40; ++i) {
      text += "The licensor grants the licensee a licence;  the licensee accepts it.\n\n\tItem " +
              std::to_string(i * 7919 % 1000) + ": nothing is owed.\r\n";
    }
    return text;
  }

  ScratchFolder folder_;
};

template <class F>
Error error_of(F&& run) {
  try {
    run();
  } catch (const Error& e) {
    return e;
  }
  ADD_FAILURE() << "nothing was thrown";
  return Error(ErrorKind::kInternal, "");
}

std::vector<std::string> hard_texts() {
  std::vector<std::string> texts = {"",
                                    " ",
                                    "  ",
                                    "\n",
                                    "\n\n\n",
                                    "\t",
                                    "\r\n\r\n",
                                    " leading",
                                    "trailing ",
                                    "a  b   c",
                                    "\xEF\xBB\xBF with a mark",
                                    "</s>",
                                    "<unk><s><0x0A></s>",
                                    "\0"s,
                                    "a\0b\0"s,
                                    "\xE4\xB8\xAD\xE6\x96\x87\xEF\xBC\x8C\xE6\xB5\x8B\xE8\xAF\x95",
                                    "\xF0\x9F\x98\x80\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x92\xBB",
                                    "e\xCC\x81 vs \xC3\xA9",
                                    "\xEF\xAC\x81 ligature \xEF\xBC\xA1 wide",
                                    "\xE2\x96\x85 block",
                                    "\xE2\x96\x80\xE2\x96\x82",
                                    "\xE3\x80\x80 wide space\xC2\xA0hard",
                                    "\xF4\x8F\xBF\xBF\xEF\xBF\xBF\xEF\xBF\xBD",
                                    "line\xE2\x80\xA8separator\xC2\x85next",
                                    std::string(70000, 'x'),
                                    std::string(70000, ' '),
                                    std::string(70000, '\n')};
  for (int c = 0; c < 0x20; ++c) texts.push_back("a"s + static_cast<char>(c) + "b ");
  texts.push_back("\x7F");
  return texts;
}

TEST_F(TokenizerTest, EveryTextComesBack) {
  const Tokenizer tokenizer = train({english()}, 400);
  for (const std::string& text : hard_texts()) {
    ASSERT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
}

TEST_F(TokenizerTest, EveryTextComesBackWhenTrainedOnItself) {
  const Tokenizer tokenizer = train(hard_texts(), 420);
  for (const std::string& text : hard_texts()) {
    ASSERT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
}

TEST_F(TokenizerTest, RandomCharactersComeBack) {
  const Tokenizer tokenizer = train({english()}, 300);
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::string text;
    for (int i = 0; i < 50; ++i) {
      char32_t c = random() % (round % 2 == 0 ? 0x80 : 0x110000);
      if ((c >= 0xD800 && c <= 0xDFFF) || c == 0x2581) c = ' ';
      if (c < 0x80) {
        text += static_cast<char>(c);
      } else if (c < 0x800) {
        text += {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 0x3F))};
      } else if (c < 0x10000) {
        text += {static_cast<char>(0xE0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 0x3F)),
                 static_cast<char>(0x80 | (c & 0x3F))};
      } else {
        text += {static_cast<char>(0xF0 | c >> 18), static_cast<char>(0x80 | (c >> 12 & 0x3F)),
                 static_cast<char>(0x80 | (c >> 6 & 0x3F)), static_cast<char>(0x80 | (c & 0x3F))};
      }
    }
    ASSERT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
}

TEST_F(TokenizerTest, LayoutOfIds) {
  const Tokenizer tokenizer = train({english()}, 300);
  EXPECT_EQ(tokenizer.vocab(), 300);
  EXPECT_EQ(tokenizer.end_of_document(), 1);
  EXPECT_EQ(tokenizer.token_bytes(0), "");
  EXPECT_EQ(tokenizer.token_bytes(1), "");
  for (int b = 0; b < 256; ++b) {
    EXPECT_EQ(tokenizer.token_bytes(2 + b), std::string(1, static_cast<char>(b)));
  }
  for (int id = 258; id < 300; ++id) EXPECT_NE(tokenizer.token_bytes(id), "");
  // NUL is in no piece, so it is one byte token.
  EXPECT_EQ(tokenizer.encode("\0"s), std::vector<std::int32_t>{2 + 0});
  EXPECT_EQ(tokenizer.encode(""), std::vector<std::int32_t>{});
}

TEST_F(TokenizerTest, PiecesAreLearnt) {
  const Tokenizer tokenizer = train({english()}, 400);
  EXPECT_EQ(tokenizer.encode(" licensee").size(), 1u);
  EXPECT_EQ(tokenizer.encode("\n\n").size(), 1u) << "line ends are part of the vocabulary";
  EXPECT_LT(tokenizer.encode(english()).size(), english().size() / 3);
}

TEST_F(TokenizerTest, TextCannotSpellControlTokens) {
  const Tokenizer tokenizer = train({english() + std::string("</s></s></s></s> <unk>")}, 300);
  for (const std::string text : {"</s>", "<unk>", "a</s>b", "<0x41>"}) {
    const auto ids = tokenizer.encode(text);
    EXPECT_EQ(std::count(ids.begin(), ids.end(), 1), 0) << text;
    EXPECT_EQ(std::count(ids.begin(), ids.end(), 0), 0) << text;
    EXPECT_EQ(tokenizer.decode(ids), text);
  }
}

TEST_F(TokenizerTest, SpacesOutsideTheVocabularyAreBytes) {
  const Tokenizer tokenizer = train({"aaa"}, 259);
  EXPECT_EQ(tokenizer.encode(" a"), (std::vector<std::int32_t>{2 + ' ', 258}));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("a  a \xE2\x96\x82")), "a  a \xE2\x96\x82");
}

TEST_F(TokenizerTest, DecodingIsExactForAnyIds) {
  const Tokenizer tokenizer = train({english()}, 300);
  EXPECT_EQ(tokenizer.decode({2 + 0xE4, 2 + 0xB8}), "\xE4\xB8") << "half a character";
  EXPECT_EQ(tokenizer.decode({1, 2 + 'a', 1}), "a");
  const Error e = error_of([&] { tokenizer.decode({2, 70001}); });
  EXPECT_EQ(e.kind(), ErrorKind::kData);
  EXPECT_STREQ(e.what(), "token 70001 is outside the vocabulary of 300");
  EXPECT_EQ(error_of([&] { tokenizer.token_bytes(-1); }).kind(), ErrorKind::kData);
}

TEST_F(TokenizerTest, LongTextsAreCutWhereItDoesNotShow) {
  const Tokenizer tokenizer = train({english()}, 400);
  std::string text;
  while (text.size() < 300'000) text += english();
  // The same text word by word: what a cut at the beginning of words may not change.
  std::vector<std::int32_t> by_words;
  std::size_t begin = 0;
  for (std::size_t at = 1; at <= text.size(); ++at) {
    const bool word = at == text.size() || (text[at] == ' ' && text[at - 1] != ' ');
    if (!word) continue;
    const auto ids = tokenizer.encode(std::string_view(text).substr(begin, at - begin));
    by_words.insert(by_words.end(), ids.begin(), ids.end());
    begin = at;
  }
  EXPECT_EQ(tokenizer.encode(text), by_words);
}

TEST_F(TokenizerTest, TextWithoutSpacesOfAnyLengthTrainsAndEncodes) {
  std::string text;
  std::mt19937 random(3);
  for (int i = 0; i < 150'000; ++i) text += static_cast<char>('a' + random() % 4);
  const Tokenizer tokenizer = train({text, std::string(3'000'000, 'z')}, 300);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
}

TEST_F(TokenizerTest, RefusesTextItCannotKeep) {
  const Tokenizer tokenizer = train({english()}, 300);
  const Error invalid = error_of([&] { tokenizer.encode("ab\xFF"); });
  EXPECT_EQ(invalid.kind(), ErrorKind::kData);
  EXPECT_STREQ(invalid.what(), "text is not UTF-8 at byte offset 2");
  const Error reserved = error_of([&] { tokenizer.encode("a\xE2\x96\x81"); });
  EXPECT_EQ(reserved.kind(), ErrorKind::kData);
  EXPECT_NE(std::string(reserved.what()).find("U+2581"), std::string::npos);
  EXPECT_EQ(error_of([&] { train({"ok", "\xC3"}, 300); }).kind(), ErrorKind::kData);
}

TEST_F(TokenizerTest, SameTextsSameBytesWhateverTheHeapLooksLike) {
  std::vector<std::string> texts;
  std::mt19937 random(5);
  for (int i = 0; i < 2000; ++i) {
    std::string word;
    for (unsigned n = 1 + random() % 14; n > 0; --n) word += static_cast<char>('a' + random() % 3);
    texts.push_back(word);
  }
  Tokenizer::train(texts, {.vocab = 2000}, file("a"));
  // SentencePiece's own trainer fails this: it orders candidates by address here and there. Shuffle
  // what malloc hands out.
  std::vector<std::unique_ptr<char[]>> blocks;
  for (int i = 0; i < 200'000; ++i) blocks.push_back(std::make_unique<char[]>(100 + random() % 30));
  std::shuffle(blocks.begin(), blocks.end(), random);
  blocks.resize(blocks.size() / 2);
  Tokenizer::train(texts, {.vocab = 2000}, file("b"));
  EXPECT_TRUE(content("a") == content("b"));
  EXPECT_FALSE(content("a").empty());
}

TEST_F(TokenizerTest, EveryVocabularyInTheRangeWorks) {
  const std::vector<std::vector<std::string>> corpora = {
      {"a"},
      {"\t\t"},
      {"aaaa aaaa"},
      {"abcdefg"},
      {"banana bandana, banana"},
      {"\xE4\xB8\xAD\xE6\x96\x87 \xE6\xB5\x8B \xE8\xAF\x95 a b c"},
      {"</s><unk><0x41>"}};
  for (const auto& texts : corpora) {
    const Error e = error_of([&] { train(texts, 257); });
    EXPECT_EQ(e.kind(), ErrorKind::kUsage);
    int highest = 0;
    ASSERT_EQ(std::sscanf(e.what(), "--vocab 257 is outside [258, %d] for this text", &highest), 1)
        << e.what();
    for (int vocab = 258; vocab <= highest; ++vocab) {
      const Tokenizer tokenizer = train(texts, vocab);
      ASSERT_EQ(tokenizer.vocab(), vocab);
      for (const auto& text : texts) ASSERT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
    }
    const Error high = error_of([&] { train(texts, highest + 1); });
    EXPECT_EQ(high.kind(), ErrorKind::kUsage);
    EXPECT_EQ(std::string(high.what()), "--vocab " + std::to_string(highest + 1) +
                                            " is outside [258, " + std::to_string(highest) +
                                            "] for this text");
  }
}

TEST_F(TokenizerTest, VocabularyOutOfRangeNamesTheRange) {
  // One letter, once: 258 and the letter itself.
  EXPECT_STREQ(error_of([&] { train({"a"}, 50); }).what(),
               "--vocab 50 is outside [258, 259] for this text");
  EXPECT_STREQ(error_of([&] { train({"a"}, 1000); }).what(),
               "--vocab 1000 is outside [258, 259] for this text");
  for (const int vocab : {0, -4, std::numeric_limits<std::int32_t>::min(),
                          std::numeric_limits<std::int32_t>::max()}) {
    const Error e = error_of([&] { train({english()}, vocab); });
    EXPECT_EQ(e.kind(), ErrorKind::kUsage);
    EXPECT_EQ(std::string(e.what()).find("--vocab " + std::to_string(vocab) + " is outside [258, "),
              0u);
  }
  EXPECT_FALSE(fs::exists(file("m"))) << "nothing is left behind";
}

TEST_F(TokenizerTest, TextsWithoutContent) {
  for (const auto& texts : {std::vector<std::string>{}, std::vector<std::string>{"", ""}}) {
    const Error e = error_of([&] { train(texts, 300); });
    EXPECT_EQ(e.kind(), ErrorKind::kData);
    EXPECT_STREQ(e.what(), "there is no text to train a tokenizer on");
  }
}

TEST_F(TokenizerTest, NothingIsPrinted) {
  testing::internal::CaptureStderr();
  testing::internal::CaptureStdout();
  train({english(), std::string(200'000, 'q'), "\t\xE2\x96\x85\0"s}, 300).encode(english());
  error_of([&] { train({"a"}, 1000); });
  write("text", "this is not a model\n");
  error_of([&] { Tokenizer tokenizer(file("text")); });
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
}

TEST_F(TokenizerTest, SentencePieceReadsOurModels) {
  const Tokenizer ours = train({english()}, 400);
  sentencepiece::SentencePieceProcessor theirs;
  ASSERT_TRUE(theirs.Load(file("m").string()).ok());
  EXPECT_EQ(theirs.GetPieceSize(), 400);
  EXPECT_EQ(theirs.eos_id(), 1);
  EXPECT_EQ(theirs.unk_id(), 0);
  EXPECT_EQ(theirs.bos_id(), -1);
  EXPECT_EQ(theirs.EncodeAsIds(english()), ours.encode(english()));
  EXPECT_EQ(theirs.DecodeIds(ours.encode(english())), english());
}

TEST_F(TokenizerTest, ForeignModelsThatKeepTextAreAccepted) {
  foreign_model("good", {});
  const Tokenizer tokenizer(file("good"));
  for (const std::string& text : hard_texts()) {
    if (text.find("<0x") != std::string::npos) continue;
    ASSERT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
}

TEST_F(TokenizerTest, ModelsThatChangeTextAreRefused) {
  const std::vector<std::pair<std::unordered_map<std::string, std::string>, std::string>> cases = {
      {{{"normalization_rule_name", "nmt_nfkc"}}, "normalises text by 'nmt_nfkc'"},
      {{{"add_dummy_prefix", "true"}}, "add_dummy_prefix must be false"},
      {{{"remove_extra_whitespaces", "true"}}, "remove_extra_whitespaces must be false"},
      {{{"byte_fallback", "false"}, {"vocab_size", "60"}}, "byte_fallback must be true"},
      {{{"model_type", "char"}}, "model_type must be bpe"},
      {{{"eos_id", "-1"}}, "has no end-of-document token"},
  };
  for (const auto& [changes, reason] : cases) {
    foreign_model("bad", changes);
    const Error e = error_of([&] { Tokenizer tokenizer(file("bad")); });
    EXPECT_EQ(e.kind(), ErrorKind::kData);
    EXPECT_NE(std::string(e.what()).find(reason), std::string::npos) << e.what();
    EXPECT_EQ(std::string(e.what()).find(file("bad").string() + ": the tokenizer "), 0u);
  }
}

TEST_F(TokenizerTest, DamagedModelFiles) {
  train({english()}, 300);
  const std::string good = content("m");
  write("empty", "");
  write("text", "this is not a model\n");
  for (const std::string name : {"empty", "text", "missing"}) {
    const Error e = error_of([&] { Tokenizer tokenizer(file(name)); });
    EXPECT_EQ(e.kind(), ErrorKind::kData);
    EXPECT_NE(std::string(e.what()).find(file(name).string()), std::string::npos);
  }
  // Cut anywhere: never a crash, and never a model that lost its rules.
  for (std::size_t size = 1; size < good.size(); size += 97) {
    write("cut", good.substr(0, size));
    EXPECT_EQ(error_of([&] { Tokenizer tokenizer(file("cut")); }).kind(), ErrorKind::kData) << size;
  }
  std::mt19937 random(11);
  for (int round = 0; round < 100; ++round) {
    std::string damaged = good;
    damaged[random() % damaged.size()] ^= static_cast<char>(1 << random() % 8);
    write("damaged", damaged);
    try {
      const Tokenizer tokenizer(file("damaged"));  // a changed score or letter cannot be seen here
      tokenizer.encode("some text");
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kData) << e.what();
    }
  }
}

TEST_F(TokenizerTest, OutputThatCannotBeWritten) {
  const Error e =
      error_of([&] { Tokenizer::train({english()}, {.vocab = 300}, file("no-such-folder/m")); });
  EXPECT_EQ(e.kind(), ErrorKind::kData);
  EXPECT_NE(std::string(e.what()).find("no-such-folder"), std::string::npos);
}

}  // namespace
}  // namespace k25::data
