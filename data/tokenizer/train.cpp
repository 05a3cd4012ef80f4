// Training: counted words, an alphabet, merges, and a model file in SentencePiece's format.

#include <algorithm>

#include "data/io/atomic_file.h"
#include "data/tokenizer/bpe.h"
#include "data/tokenizer/model_file.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/utf8.h"
#include "data/tokenizer/words.h"
#include "kernels/core/check.h"

namespace k25::data {

namespace {

constexpr std::int64_t kSmallestVocab = 258;  // <unk>, end of document, 256 bytes
// How far the upper end of the range is explored for the message about a vocabulary that is too
// small.
constexpr std::int64_t kExploredVocab = 100'000;
constexpr std::size_t kExploredWords = 100'000;

[[noreturn]] void refuse_vocab(std::int64_t vocab, const std::string& highest) {
  fail(ErrorKind::kUsage, "--vocab " + std::to_string(vocab) + " is outside [" +
                              std::to_string(kSmallestVocab) + ", " + highest + "] for this text");
}

/// The upper end of the range, or a lower bound of it when finding it would take long.
std::string explore_highest(CountedWords words) {
  const bool all = words.size() <= kExploredWords;
  if (!all) words.resize(kExploredWords);
  const auto merges = static_cast<std::int64_t>(learn_merges(words, kExploredVocab).size());
  const auto characters = static_cast<std::int64_t>(count_characters(words).size());
  const std::string highest = std::to_string(kSmallestVocab + merges + characters);
  return all && merges < kExploredVocab ? highest : highest + " or more";
}

std::string train_model(const CountedWords& words, std::int64_t vocab) {
  if (vocab < kSmallestVocab) refuse_vocab(vocab, explore_highest(words));
  const CountedCharacters characters = count_characters(words);
  const std::int64_t room = vocab - kSmallestVocab;
  const auto total = static_cast<std::int64_t>(characters.size());
  const std::int64_t most = std::min(total, room);
  std::int64_t kept = total <= room ? total : room / 2;
  while (true) {
    const CountedCharacters alphabet(characters.begin(), characters.begin() + kept);
    const auto merges = learn_merges(restrict_words(words, alphabet), room - kept);
    const std::int64_t missing = room - kept - static_cast<std::int64_t>(merges.size());
    if (missing == 0) {
      std::vector<std::string> letters;
      for (const auto& [character, times] : alphabet) letters.push_back(to_utf8(character));
      return make_model(merges, letters);
    }
    if (kept == most) refuse_vocab(vocab, std::to_string(vocab - missing));
    kept = std::min(most, kept + missing);
  }
}

}  // namespace

void Tokenizer::train_streaming(const TextSource& texts, const TrainOptions& options,
                                const std::filesystem::path& out) {
  WordCounter words;
  texts([&](std::string_view text) {
    if (find_invalid_utf8(text) >= 0 || find_reserved_character(text) >= 0) {
      fail(ErrorKind::kData, "a text to train the tokenizer on is not UTF-8 or holds U+2581");
    }
    words.add(text);
  });
  if (!words.saw_text()) {
    fail(ErrorKind::kData, "there is no text to train a tokenizer on");
  }
  write_file_atomically(out, train_model(words.sorted(), options.vocab), ErrorKind::kData);
}

void Tokenizer::train(const std::vector<std::string>& texts, const TrainOptions& options,
                      const std::filesystem::path& out) {
  train_streaming(
      [&](const std::function<void(std::string_view)>& each) {
        for (const std::string& text : texts) each(text);
      },
      options, out);
}

}  // namespace k25::data
