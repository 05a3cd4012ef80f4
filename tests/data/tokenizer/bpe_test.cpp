#include "data/tokenizer/bpe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "data/tokenizer/words.h"

namespace k25::data {
namespace {

using namespace std::string_literals;
using Strings = std::vector<std::string>;

CountedWords words_of(const std::string& text) {
  WordCounter counter;
  counter.add(text);
  return counter.sorted();
}

TEST(Words, EndAtSpacesLinesAndClassChanges) {
  // ".\n\n" is one run of non-letters: a line end cuts after itself only.
  const CountedWords expected = {{" dog", 2}, {"  ", 1},  {".\n\n", 1},
                                 {"12", 1},   {"The", 1}, {"x", 1}};
  EXPECT_EQ(words_of("The dog dog.\n\n12x  "), expected);
}

TEST(Words, NeverSpellReservedPieces) {
  for (const auto& [word, times] : words_of("</s> <unk> <0x0A> <0xff> <0xzz>\0<0x41>"s)) {
    for (const std::string reserved : {"</s>", "<unk>", "<0x0A>", "<0xff>", "<0x41>"}) {
      EXPECT_EQ(word.find(reserved), word.npos) << word;
    }
    EXPECT_EQ(word.find('\0'), word.npos);
  }
}

TEST(Bpe, HandComputed) {
  // "low" 5, "lower" 2: lo 7, ow 7, we 2, er 2. Ties: shorter, then smaller.
  const CountedWords words = {{"low", 5}, {"lower", 2}};
  EXPECT_EQ(learn_merges(words, 4), (Strings{"lo", "low", "er", "lower"}));
  EXPECT_EQ(learn_merges(words, 100), (Strings{"lo", "low", "er", "lower"}));
  EXPECT_EQ(learn_merges(words, 0), Strings{});
  EXPECT_EQ(learn_merges({}, 5), Strings{});
}

TEST(Bpe, OverlappingPairsCountOnce) {
  // "aaa" holds one "aa" that can be merged, "aaaa" two.
  EXPECT_EQ(learn_merges({{"aaa", 2}, {"bc", 3}}, 1), Strings{"bc"});
  EXPECT_EQ(learn_merges({{"aaaa", 2}, {"bc", 3}}, 1), Strings{"aa"});
}

TEST(Bpe, SpacesStandAloneOrOnceInFront) {
  const Strings merges = learn_merges({{"    word", 9}, {" word", 4}, {"  ", 3}}, 100);
  for (const std::string& piece : merges) {
    const std::size_t letter = piece.find_first_not_of(' ');
    EXPECT_TRUE(letter == piece.npos || letter <= 1) << "'" << piece << "'";
  }
  EXPECT_NE(std::find(merges.begin(), merges.end(), "    "), merges.end());
  EXPECT_NE(std::find(merges.begin(), merges.end(), " word"), merges.end());
}

TEST(Bpe, PiecesHaveAtMostSixteenCharacters) {
  const Strings merges = learn_merges({{std::string(200, 'a'), 1}, {"\xC3\xA9\xC3\xA9", 3}}, 100);
  ASSERT_FALSE(merges.empty());
  EXPECT_EQ(merges[0], "aa");
  for (const std::string& piece : merges) EXPECT_LE(piece.size(), 16u);
  EXPECT_NE(std::find(merges.begin(), merges.end(), std::string(16, 'a')), merges.end());
}

/// The rule, step by step, with everything counted afresh each time.
Strings naive_merges(const CountedWords& words, std::size_t count) {
  std::vector<std::pair<Strings, std::int64_t>> state;
  for (const auto& [word, times] : words) {
    Strings symbols;
    for (const char c : word) symbols.emplace_back(1, c);
    state.emplace_back(symbols, times);
  }
  Strings merges;
  while (merges.size() < count) {
    std::map<std::string, std::int64_t> counts;
    for (const auto& [symbols, times] : state) {
      std::string last;
      for (std::size_t i = 1; i < symbols.size(); ++i) {
        const std::string joined = symbols[i - 1] + symbols[i];
        if (joined.size() > 16 || joined == last) {
          last.clear();
          continue;
        }
        counts[joined] += times;
        last = joined;
      }
    }
    std::string best;
    for (const auto& [text, times] : counts) {
      const bool better = best.empty() || times > counts[best] ||
                          (times == counts[best] && text.size() < best.size());
      if (better) best = text;
    }
    if (best.empty()) break;
    if (std::find(merges.begin(), merges.end(), best) == merges.end()) merges.push_back(best);
    for (auto& [symbols, times] : state) {
      Strings merged;
      for (std::size_t i = 0; i < symbols.size(); ++i) {
        const bool pair = i + 1 < symbols.size() && symbols[i] + symbols[i + 1] == best;
        merged.push_back(pair ? best : symbols[i]);
        if (pair) ++i;
      }
      symbols = merged;
    }
  }
  return merges;
}

TEST(Bpe, EqualsTheRuleAppliedNaively) {
  std::mt19937 random(2);
  for (int round = 0; round < 60; ++round) {
    CountedWords words;
    const unsigned letters = 1 + random() % 4;
    for (int i = 0; i < 12; ++i) {
      std::string word;
      for (unsigned n = 1 + random() % 20; n > 0; --n) {
        word += static_cast<char>('a' + random() % letters);
      }
      words.emplace_back(word, 1 + random() % 3);
    }
    const std::size_t count = round % 3 == 0 ? 1000 : 25;
    ASSERT_EQ(learn_merges(words, static_cast<std::int64_t>(count)), naive_merges(words, count));
  }
}

}  // namespace
}  // namespace k25::data
