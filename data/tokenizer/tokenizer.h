#pragma once
// Byte-fallback BPE through SentencePiece: identity text rule, no dummy prefix, no added or removed
// white space, so that decode(encode(text)) == text for every valid UTF-8 text without U+2581.
//
// Ids: 0 is SentencePiece's <unk> (never produced: unknown characters are spelled in bytes), 1 the
// end-of-document token, 2..257 the bytes, then pieces. Text that spells a control token, such as
// "</s>", is encoded as characters: documents cannot inject control tokens.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace k25::data {

class Tokenizer {
 public:
  /// Throws kData naming the file and the reason: unreadable, not a SentencePiece model, not BPE
  /// with byte fallback, or one that changes text (normalisation, dummy prefix, removed white
  /// space).
  explicit Tokenizer(const std::filesystem::path& model);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;

  std::int32_t vocab() const;
  std::int32_t end_of_document() const;
  /// Any thread. Long texts go through SentencePiece in pieces of about 64 KiB, cut where a space
  /// or a line begins: no piece that `train` learns crosses such a place, so the cuts do not show.
  /// Throws kData with the byte offset when `text` is not UTF-8 or holds U+2581.
  std::vector<std::int32_t> encode(std::string_view text) const;
  /// The tokens' bytes, one after the other; control tokens have none. Exact for any sequence of
  /// ids, also one that ends inside a character. Throws kData for an id outside the vocabulary.
  std::string decode(const std::vector<std::int32_t>& ids) const;
  std::string token_bytes(std::int32_t id) const;

  struct TrainOptions {
    std::int32_t vocab = 1000;
  };
  /// Trains on `texts` and writes the model to `out`. A vocabulary outside the range that the texts
  /// allow throws kUsage naming the range; texts without a single byte, kData. Deterministic: one
  /// thread, a total order of candidates, and nothing drawn at random.
  ///
  /// The range: at least 258 (two control tokens and 256 bytes), at most what is left when no two
  /// neighbours can be merged any more. Characters: all of the texts when they fit, otherwise as
  /// many of the most frequent as leave half of the room to merges (more when there are too few
  /// merges); the rest, and NUL always, are spelled in bytes.
  static void train(const std::vector<std::string>& texts, const TrainOptions& options,
                    const std::filesystem::path& out);

  /// The same for texts that do not fit in memory together: calls its argument for each text, in
  /// order.
  using TextSource = std::function<void(const std::function<void(std::string_view)>&)>;
  static void train_streaming(const TextSource& texts, const TrainOptions& options,
                              const std::filesystem::path& out);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Byte offset of the first invalid UTF-8 sequence, or of the first U+2581 (which the tokenizer
/// reserves); -1 when the text is fine.
std::int64_t find_invalid_utf8(std::string_view text);
std::int64_t find_reserved_character(std::string_view text);

}  // namespace k25::data
