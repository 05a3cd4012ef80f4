#pragma once
// Words as the tokenizer sees them: the unit in which merges are learnt, and the places where a
// long text may be cut for encoding without changing its tokens.

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace k25::data {

using CountedWords = std::vector<std::pair<std::string, std::int64_t>>;
using CountedCharacters = std::vector<std::pair<char32_t, std::int64_t>>;

/// Whether a word begins between two neighbouring bytes: at the first of a run of spaces, and at
/// the first character of a line. No piece crosses such a place.
inline bool word_begins(char before, char after) {
  return (after == ' ' && before != ' ') || (before == '\n' && after != '\n');
}

/// Counts the words of texts. A word also ends where letters meet anything else (spaces before
/// letters belong to the word), at a NUL, and inside whatever spells a reserved piece ("</s>",
/// "<unk>", "<0x41>"): no piece may look like one.
class WordCounter {
 public:
  void add(std::string_view text);

  /// Words by falling count, then by bytes.
  CountedWords sorted() const;
  bool saw_text() const { return saw_text_; }

 private:
  void count(std::string_view word);
  void prune();

  std::unordered_map<std::string, std::int64_t> counts_;
  bool saw_text_ = false;
};

/// Characters of `words` by falling count, then by code point.
CountedCharacters count_characters(const CountedWords& words);

/// `words` cut at every character that is not in `alphabet`, which falls out.
CountedWords restrict_words(const CountedWords& words, const CountedCharacters& alphabet);

}  // namespace k25::data
