#pragma once
// UTF-8 by the book (RFC 3629): no overlong forms, no surrogates, nothing above U+10FFFF.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace k25::data {

/// Length in bytes of the valid sequence at the start of `text`, 0 when it is invalid or cut off.
std::size_t utf8_sequence_length(std::string_view text);

/// Code point of a valid sequence.
char32_t utf8_code_point(std::string_view sequence);

std::string to_utf8(char32_t code_point);

/// Whether `text` is the beginning of a valid sequence that needs more bytes.
enum class Utf8Prefix : std::uint8_t { kIncomplete, kInvalid };
Utf8Prefix classify_utf8_prefix(std::string_view text);

/// `text` with U+FFFD in the place of each byte that belongs to no valid sequence.
std::string replace_invalid_utf8(std::string_view text);

/// Line and column (both from 1, columns in characters) of byte `offset` of a text whose bytes
/// before `offset` are valid UTF-8.
struct TextPosition {
  std::int64_t line = 1, column = 1;
};
TextPosition text_position(std::string_view text, std::int64_t offset);

}  // namespace k25::data
