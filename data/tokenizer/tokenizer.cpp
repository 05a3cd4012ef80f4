#include "data/tokenizer/tokenizer.h"

#include <sentencepiece_processor.h>

#include <algorithm>
#include <array>
#include <utility>

#include "data/io/atomic_file.h"
#include "data/tokenizer/model_file.h"
#include "data/tokenizer/words.h"
#include "kernels/core/check.h"

namespace k25::data {

namespace {

constexpr std::string_view kEscapedSpace = "\xE2\x96\x81";  // U+2581
// SentencePiece needs about 200 bytes of memory for each byte that it encodes at once.
constexpr std::size_t kEncodeBytes = std::size_t{64} << 10;
constexpr Bytes kMaxModelBytes{std::int64_t{256} << 20};
constexpr std::size_t kMaxEncodeBytes = std::size_t{1} << 20;

/// Where to cut `text` for encoding: at the first place from kEncodeBytes on where a space or a
/// line begins; without one up to kMaxEncodeBytes, between two characters there.
std::size_t encode_cut(std::string_view text) {
  if (text.size() <= kEncodeBytes) return text.size();
  const std::size_t limit = std::min(text.size(), kMaxEncodeBytes);
  for (std::size_t at = kEncodeBytes; at < limit; ++at) {
    if (word_begins(text[at - 1], text[at])) return at;
  }
  std::size_t at = limit;
  while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

std::string unescape_spaces(std::string_view piece) {
  std::string bytes;
  for (std::size_t at = 0; at < piece.size();) {
    if (piece.substr(at).starts_with(kEscapedSpace)) {
      bytes += ' ';
      at += kEscapedSpace.size();
    } else {
      bytes += piece[at++];
    }
  }
  return bytes;
}

/// "<0x41>" -> "A".
std::string byte_of_piece(const std::string& piece) {
  return {static_cast<char>(std::stoi(piece.substr(3, 2), nullptr, 16))};
}

}  // namespace

struct Tokenizer::Impl {
  /// Appends tokens. SentencePiece spells a space that is not in the vocabulary as the bytes of its
  /// stand-in U+2581, which no text holds; they become the space's own byte again.
  void append(const std::vector<int>& part, std::vector<std::int32_t>& ids) const {
    for (std::size_t i = 0; i < part.size(); ++i) {
      const bool space = i + 2 < part.size() && part[i] == stand_in[0] &&
                         part[i + 1] == stand_in[1] && part[i + 2] == stand_in[2];
      ids.push_back(space ? space_byte : part[i]);
      if (space) i += 2;
    }
  }

  sentencepiece::SentencePieceProcessor processor;
  std::array<std::int32_t, 3> stand_in{};  ///< the byte tokens of U+2581
  std::int32_t space_byte = 0;
  std::vector<std::string> bytes;
  std::int32_t end_of_document = 0;
};

Tokenizer::Tokenizer(const std::filesystem::path& model) : impl_(std::make_unique<Impl>()) {
  const auto refuse = [&](const std::string& why) {
    fail(ErrorKind::kData, model.string() + ": the tokenizer " + why);
  };
  const std::string file = read_file(model, ErrorKind::kData, kMaxModelBytes);
  if (const std::string why = why_model_is_unfit(file); !why.empty()) refuse(why);
  auto& processor = impl_->processor;
  if (const auto status = processor.LoadFromSerializedProto(file); !status.ok()) {
    refuse(std::string("cannot be loaded: ") + status.message());
  }
  const int eos = processor.eos_id();
  if (eos < 0 || eos >= processor.GetPieceSize() || !processor.IsControl(eos)) {
    refuse("has no end-of-document token (eos_id must not be negative)");
  }
  impl_->end_of_document = eos;
  impl_->stand_in = {processor.PieceToId("<0xE2>"), processor.PieceToId("<0x96>"),
                     processor.PieceToId("<0x81>")};
  impl_->space_byte = processor.PieceToId("<0x20>");
  impl_->bytes.resize(static_cast<std::size_t>(processor.GetPieceSize()));
  for (int id = 0; id < processor.GetPieceSize(); ++id) {
    if (processor.IsControl(id) || processor.IsUnknown(id)) continue;
    auto& bytes = impl_->bytes[static_cast<std::size_t>(id)];
    bytes = processor.IsByte(id) ? byte_of_piece(processor.IdToPiece(id))
                                 : unescape_spaces(processor.IdToPiece(id));
  }
}

Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;

std::int32_t Tokenizer::vocab() const { return static_cast<std::int32_t>(impl_->bytes.size()); }

std::int32_t Tokenizer::end_of_document() const { return impl_->end_of_document; }

std::vector<std::int32_t> Tokenizer::encode(std::string_view text) const {
  if (const std::int64_t at = find_invalid_utf8(text); at >= 0) {
    fail(ErrorKind::kData, "text is not UTF-8 at byte offset " + std::to_string(at));
  }
  if (const std::int64_t at = find_reserved_character(text); at >= 0) {
    fail(ErrorKind::kData,
         "text holds U+2581, which the tokenizer reserves, at byte offset " + std::to_string(at));
  }
  std::vector<std::int32_t> ids;
  std::vector<int> part;
  while (!text.empty()) {
    const std::size_t cut = encode_cut(text);
    const auto status = impl_->processor.Encode(std::string_view(text.data(), cut), &part);
    if (!status.ok()) {
      fail(ErrorKind::kInternal, std::string("SentencePiece cannot encode: ") + status.message());
    }
    impl_->append(part, ids);
    text.remove_prefix(cut);
  }
  return ids;
}

std::string Tokenizer::decode(const std::vector<std::int32_t>& ids) const {
  std::string text;
  for (const std::int32_t id : ids) text += token_bytes(id);
  return text;
}

std::string Tokenizer::token_bytes(std::int32_t id) const {
  if (id < 0 || id >= vocab()) {
    fail(ErrorKind::kData, "token " + std::to_string(id) + " is outside the vocabulary of " +
                               std::to_string(vocab()));
  }
  return impl_->bytes[static_cast<std::size_t>(id)];
}

}  // namespace k25::data
