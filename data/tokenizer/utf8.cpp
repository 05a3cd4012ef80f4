#include "data/tokenizer/utf8.h"

#include <algorithm>

#include "data/tokenizer/tokenizer.h"

namespace k25::data {

namespace {

/// What may follow a lead byte. RFC 3629: only the second byte's range depends on the first.
struct Lead {
  std::size_t length = 0;  ///< 0: not a lead byte
  unsigned char low = 0x80, high = 0xBF;
};

Lead lead_of(unsigned char b) {
  if (b < 0x80) return {1};
  if (b >= 0xC2 && b <= 0xDF) return {2};
  if (b == 0xE0) return {3, 0xA0, 0xBF};
  if (b == 0xED) return {3, 0x80, 0x9F};
  if (b >= 0xE1 && b <= 0xEF) return {3};
  if (b == 0xF0) return {4, 0x90, 0xBF};
  if (b >= 0xF1 && b <= 0xF3) return {4};
  if (b == 0xF4) return {4, 0x80, 0x8F};
  return {};
}

/// How many bytes of `text` fit the sequence that its first byte announces.
std::size_t matching_bytes(std::string_view text, const Lead& lead) {
  const std::size_t available = std::min(lead.length, text.size());
  for (std::size_t i = 1; i < available; ++i) {
    const auto b = static_cast<unsigned char>(text[i]);
    const unsigned char low = i == 1 ? lead.low : 0x80;
    const unsigned char high = i == 1 ? lead.high : 0xBF;
    if (b < low || b > high) return i;
  }
  return available;
}

}  // namespace

std::size_t utf8_sequence_length(std::string_view text) {
  if (text.empty()) return 0;
  const Lead lead = lead_of(static_cast<unsigned char>(text[0]));
  if (lead.length == 0 || matching_bytes(text, lead) < lead.length) return 0;
  return lead.length;
}

char32_t utf8_code_point(std::string_view s) {
  const auto byte = [&](std::size_t i) {
    return static_cast<char32_t>(static_cast<unsigned char>(s[i]));
  };
  switch (s.size()) {
    case 1:
      return byte(0);
    case 2:
      return (byte(0) & 0x1F) << 6 | (byte(1) & 0x3F);
    case 3:
      return (byte(0) & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    default:
      return (byte(0) & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 |
             (byte(3) & 0x3F);
  }
}

std::string to_utf8(char32_t c) {
  const auto tail = [&](int shift) { return static_cast<char>(0x80 | (c >> shift & 0x3F)); };
  if (c < 0x80) return {static_cast<char>(c)};
  if (c < 0x800) return {static_cast<char>(0xC0 | c >> 6), tail(0)};
  if (c < 0x10000) return {static_cast<char>(0xE0 | c >> 12), tail(6), tail(0)};
  return {static_cast<char>(0xF0 | c >> 18), tail(12), tail(6), tail(0)};
}

Utf8Prefix classify_utf8_prefix(std::string_view text) {
  if (text.empty()) return Utf8Prefix::kIncomplete;
  const Lead lead = lead_of(static_cast<unsigned char>(text[0]));
  const bool incomplete = text.size() < lead.length && matching_bytes(text, lead) == text.size();
  return incomplete ? Utf8Prefix::kIncomplete : Utf8Prefix::kInvalid;
}

std::string replace_invalid_utf8(std::string_view text) {
  constexpr char32_t kReplacement = 0xFFFD;
  std::string valid;
  while (!text.empty()) {
    const std::size_t length = utf8_sequence_length(text);
    valid += length == 0 ? to_utf8(kReplacement) : std::string(text.substr(0, length));
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return valid;
}

TextPosition text_position(std::string_view text, std::int64_t offset) {
  const std::string_view before = text.substr(0, static_cast<std::size_t>(offset));
  TextPosition at;
  at.line += std::count(before.begin(), before.end(), '\n');
  const std::size_t newline = before.rfind('\n');
  const std::string_view line =
      newline == std::string_view::npos ? before : before.substr(newline + 1);
  // Every byte that does not continue a character starts one.
  at.column += std::count_if(line.begin(), line.end(),
                             [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
  return at;
}

std::int64_t find_invalid_utf8(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    const std::size_t length = utf8_sequence_length(text.substr(at));
    if (length == 0) return static_cast<std::int64_t>(at);
    at += length;
  }
  return -1;
}

std::int64_t find_reserved_character(std::string_view text) {
  const std::size_t at = text.find("\xE2\x96\x81");
  return at == std::string_view::npos ? -1 : static_cast<std::int64_t>(at);
}

}  // namespace k25::data
