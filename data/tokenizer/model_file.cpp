#include "data/tokenizer/model_file.h"

#include <bit>
#include <cstdint>
#include <cstdio>
#include <optional>

namespace k25::data {

namespace {

/// One field of a protocol-buffer message: a number, or the bytes of a string or sub-message.
struct Field {
  std::uint64_t number = 0;
  std::uint64_t value = 0;
  std::string_view bytes;
};

/// Reads the protocol-buffer wire format: a sequence of (key, payload).
class WireReader {
 public:
  explicit WireReader(std::string_view bytes) : rest_(bytes) {}

  /// The next field; nothing at the end or, with broken() set, at a malformed one.
  std::optional<Field> next() {
    if (rest_.empty() || broken_) return std::nullopt;
    const std::uint64_t key = varint();
    Field field{key >> 3, 0, {}};
    switch (key & 7) {
      case 0:
        field.value = varint();
        break;
      case 1:
        field.bytes = take(8);
        break;
      case 2:
        field.bytes = take(varint());
        break;
      case 5:
        field.bytes = take(4);
        break;
      default:
        broken_ = true;
    }
    if (broken_) return std::nullopt;
    return field;
  }

  bool broken() const { return broken_; }

 private:
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (rest_.empty()) break;
      const auto b = static_cast<unsigned char>(rest_[0]);
      rest_.remove_prefix(1);
      value |= static_cast<std::uint64_t>(b & 0x7F) << shift;
      if (b < 0x80) return value;
    }
    broken_ = true;
    return 0;
  }

  std::string_view take(std::uint64_t count) {
    if (broken_ || count > rest_.size()) {
      broken_ = true;
      return {};
    }
    const std::string_view taken = rest_.substr(0, static_cast<std::size_t>(count));
    rest_.remove_prefix(taken.size());
    return taken;
  }

  std::string_view rest_;
  bool broken_ = false;
};

/// Writes the same format.
class WireWriter {
 public:
  void varint(std::uint64_t field, std::uint64_t value) {
    raw_varint(field << 3);
    raw_varint(value);
  }
  void fixed(std::uint64_t field, float value) {
    raw_varint(field << 3 | 5);
    const auto bits = std::bit_cast<std::uint32_t>(value);
    for (int shift = 0; shift < 32; shift += 8) message_ += static_cast<char>(bits >> shift & 0xFF);
  }
  void bytes(std::uint64_t field, std::string_view value) {
    raw_varint(field << 3 | 2);
    raw_varint(value.size());
    message_ += value;
  }
  const std::string& message() const { return message_; }

 private:
  void raw_varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) message_ += static_cast<char>((value & 0x7F) | 0x80);
    message_ += static_cast<char>(value);
  }

  std::string message_;
};

enum class PieceType : std::uint8_t { kNormal = 1, kUnknown = 2, kControl = 3, kByte = 6 };

std::string escape_spaces(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == ' ') {
      escaped += "\xE2\x96\x81";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

constexpr std::string_view kNoModel = "is not a SentencePiece model, or is truncated";

// Field numbers and defaults of sentencepiece_model.proto; they are its stable file format.
std::string why_trainer_is_unfit(std::string_view spec) {
  std::uint64_t model_type = 1;
  bool byte_fallback = false;
  WireReader reader(spec);
  while (const auto field = reader.next()) {
    if (field->number == 3) model_type = field->value;
    if (field->number == 35) byte_fallback = field->value != 0;
  }
  if (reader.broken()) return std::string(kNoModel);
  if (model_type != 2) return "is not a BPE model (model_type must be bpe)";
  if (!byte_fallback) return "has no byte fallback (byte_fallback must be true)";
  return {};
}

std::string why_normalizer_is_unfit(std::string_view spec) {
  bool charsmap = false, dummy_prefix = true, removes_space = true, escapes_space = true;
  std::string name;
  WireReader reader(spec);
  while (const auto field = reader.next()) {
    if (field->number == 1) name = field->bytes;
    if (field->number == 2) charsmap = !field->bytes.empty();
    if (field->number == 3) dummy_prefix = field->value != 0;
    if (field->number == 4) removes_space = field->value != 0;
    if (field->number == 5) escapes_space = field->value != 0;
  }
  if (reader.broken()) return std::string(kNoModel);
  if (charsmap) {
    return "normalises text by '" + name + "' (normalization_rule_name must be identity)";
  }
  if (dummy_prefix) return "adds a space before each text (add_dummy_prefix must be false)";
  if (removes_space) return "removes white space (remove_extra_whitespaces must be false)";
  if (!escapes_space) return "does not escape spaces (escape_whitespaces must be true)";
  return {};
}

}  // namespace

std::string why_model_is_unfit(std::string_view bytes) {
  std::string_view trainer, normalizer, denormalizer;
  std::int64_t pieces = 0;
  WireReader reader(bytes);
  while (const auto field = reader.next()) {
    if (field->number == 1) ++pieces;
    if (field->number == 2) trainer = field->bytes;
    if (field->number == 3) normalizer = field->bytes;
    if (field->number == 5) denormalizer = field->bytes;
  }
  if (reader.broken() || pieces == 0) return std::string(kNoModel);
  if (std::string why = why_trainer_is_unfit(trainer); !why.empty()) return why;
  if (std::string why = why_normalizer_is_unfit(normalizer); !why.empty()) return why;
  WireReader inner(denormalizer);
  while (const auto field = inner.next()) {
    if (field->number == 2 && !field->bytes.empty()) return "changes text when decoding";
  }
  return {};
}

std::string make_model(const std::vector<std::string>& merges,
                       const std::vector<std::string>& characters) {
  WireWriter model;
  const auto add_piece = [&](const std::string& text, float score, PieceType type) {
    WireWriter piece;
    piece.bytes(1, text);
    piece.fixed(2, score);
    piece.varint(3, static_cast<std::uint64_t>(type));
    model.bytes(1, piece.message());
  };
  add_piece("<unk>", 0, PieceType::kUnknown);
  add_piece("</s>", 0, PieceType::kControl);
  for (int byte = 0; byte < 256; ++byte) {
    char text[8];
    std::snprintf(text, sizeof text, "<0x%02X>", static_cast<unsigned>(byte));
    add_piece(text, 0, PieceType::kByte);
  }
  // Higher scores merge first.
  std::int64_t rank = 0;
  for (const auto* pieces : {&merges, &characters}) {
    for (const std::string& text : *pieces) {
      add_piece(escape_spaces(text), -static_cast<float>(rank++), PieceType::kNormal);
    }
  }
  constexpr auto kNoId = static_cast<std::uint64_t>(std::int64_t{-1});
  WireWriter trainer;
  trainer.varint(3, 2);  // model_type: BPE
  trainer.varint(4, static_cast<std::uint64_t>(258 + rank));
  trainer.varint(26, 1);  // allow_whitespace_only_pieces
  trainer.varint(35, 1);  // byte_fallback
  trainer.varint(40, 0);  // unk_id
  trainer.varint(41, kNoId);
  trainer.varint(42, 1);  // eos_id
  trainer.varint(43, kNoId);
  model.bytes(2, trainer.message());
  WireWriter normalizer;
  normalizer.bytes(1, "identity");
  normalizer.varint(3, 0);  // add_dummy_prefix
  normalizer.varint(4, 0);  // remove_extra_whitespaces
  normalizer.varint(5, 1);  // escape_whitespaces
  model.bytes(3, normalizer.message());
  return model.message();
}

}  // namespace k25::data
