#include "data/tokenizer/words.h"

#include <algorithm>
#include <cctype>
#include <unordered_set>

#include "data/tokenizer/utf8.h"

namespace k25::data {

namespace {

constexpr std::size_t kMaxWordBytes = 256;
constexpr std::size_t kMaxDistinctWords = std::size_t{8} << 20;

/// Whether the text, which follows a '<', goes on to spell a reserved piece.
bool spells_reserved_piece(std::string_view rest) {
  if (rest.starts_with("/s>") || rest.starts_with("unk>")) return true;
  return rest.size() >= 5 && rest.starts_with("0x") && rest[4] == '>' &&
         std::isxdigit(static_cast<unsigned char>(rest[2])) != 0 &&
         std::isxdigit(static_cast<unsigned char>(rest[3])) != 0;
}

bool is_letter(char32_t c) {
  if (c < 0x80) return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  const bool latin_sign = c < 0xC0 && c != 0xAA && c != 0xB5 && c != 0xBA;
  const bool punctuation =
      (c >= 0x2000 && c <= 0x206F) || (c >= 0x3000 && c <= 0x303F) || (c >= 0xFF00 && c <= 0xFF20);
  return !latin_sign && !punctuation;
}

void sort_words(CountedWords& words) {
  std::sort(words.begin(), words.end(), [](const auto& a, const auto& b) {
    return a.second != b.second ? a.second > b.second : a.first < b.first;
  });
}

template <class Each>
void for_each_character(std::string_view text, const Each& each) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = std::max<std::size_t>(1, utf8_sequence_length(text.substr(at)));
    each(at, text.substr(at, length));
    at += length;
  }
}

}  // namespace

void WordCounter::add(std::string_view text) {
  saw_text_ = saw_text_ || !text.empty();
  std::size_t begin = 0;
  char32_t before = 0;
  for_each_character(text, [&](std::size_t at, std::string_view character) {
    const char32_t c = utf8_code_point(character);
    const bool cut =
        at > begin && (word_begins(text[at - 1], text[at]) ||
                       (before != ' ' && c != ' ' && is_letter(before) != is_letter(c)) ||
                       (before == '<' && spells_reserved_piece(text.substr(at))) || c == 0 ||
                       at - begin + character.size() > kMaxWordBytes);
    if (cut) {
      count(text.substr(begin, at - begin));
      begin = at;
    }
    if (c == 0) begin = at + 1;
    before = c;
  });
  count(text.substr(begin));
  if (counts_.size() > kMaxDistinctWords) prune();
}

void WordCounter::count(std::string_view word) {
  if (!word.empty()) ++counts_[std::string(word)];
}

// Memory stays bounded on any input: words seen least give way. What is dropped depends on the
// texts and their order alone.
void WordCounter::prune() {
  for (std::int64_t least = 1; counts_.size() > kMaxDistinctWords / 2; ++least) {
    std::erase_if(counts_, [&](const auto& word) { return word.second <= least; });
  }
}

CountedWords WordCounter::sorted() const {
  CountedWords words(counts_.begin(), counts_.end());
  sort_words(words);
  return words;
}

CountedCharacters count_characters(const CountedWords& words) {
  std::unordered_map<char32_t, std::int64_t> counts;
  for (const auto& [word, times] : words) {
    for_each_character(word, [&, n = times](std::size_t, std::string_view character) {
      counts[utf8_code_point(character)] += n;
    });
  }
  CountedCharacters characters(counts.begin(), counts.end());
  std::sort(characters.begin(), characters.end(), [](const auto& a, const auto& b) {
    return a.second != b.second ? a.second > b.second : a.first < b.first;
  });
  return characters;
}

CountedWords restrict_words(const CountedWords& words, const CountedCharacters& alphabet) {
  std::unordered_set<char32_t> known;
  for (const auto& [character, times] : alphabet) known.insert(character);
  std::unordered_map<std::string, std::int64_t> counts;
  for (const auto& [word, times] : words) {
    std::string run;
    const auto flush = [&, n = times] {
      if (!run.empty()) counts[run] += n;
      run.clear();
    };
    for_each_character(word, [&](std::size_t, std::string_view character) {
      if (known.contains(utf8_code_point(character))) {
        run += character;
      } else {
        flush();
      }
    });
    flush();
  }
  CountedWords restricted(counts.begin(), counts.end());
  sort_words(restricted);
  return restricted;
}

}  // namespace k25::data
