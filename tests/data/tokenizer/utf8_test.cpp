#include "data/tokenizer/utf8.h"

#include <gtest/gtest.h>

#include <string>

#include "data/tokenizer/tokenizer.h"

namespace k25::data {
namespace {

using namespace std::string_literals;

/// The definition, spelled out by arithmetic instead of byte ranges: decode and check the value.
std::string encode_code_point(char32_t c) {
  std::string s;
  if (c < 0x80) {
    s += static_cast<char>(c);
  } else if (c < 0x800) {
    s += static_cast<char>(0xC0 | c >> 6);
    s += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    s += static_cast<char>(0xE0 | c >> 12);
    s += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    s += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    s += static_cast<char>(0xF0 | c >> 18);
    s += static_cast<char>(0x80 | (c >> 12 & 0x3F));
    s += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    s += static_cast<char>(0x80 | (c & 0x3F));
  }
  return s;
}

TEST(Utf8, AcceptsEveryScalarValueAndNoSurrogate) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    const std::string s = encode_code_point(c);
    const bool scalar = c < 0xD800 || c > 0xDFFF;
    ASSERT_EQ(find_invalid_utf8(s), scalar ? -1 : 0) << std::hex << static_cast<unsigned>(c);
    if (!scalar) continue;
    ASSERT_EQ(utf8_sequence_length(s), s.size());
    ASSERT_EQ(utf8_code_point(s), c);
  }
  EXPECT_EQ(find_invalid_utf8(encode_code_point(0x110000)), 0);
}

TEST(Utf8, NamesTheFirstBadByte) {
  EXPECT_EQ(find_invalid_utf8(""), -1);
  EXPECT_EQ(find_invalid_utf8("a\0b"s), -1);
  EXPECT_EQ(find_invalid_utf8("abc\xFF"), 3);
  EXPECT_EQ(find_invalid_utf8("ab\x80"), 2);             // stray continuation
  EXPECT_EQ(find_invalid_utf8("\xC0\xAF"), 0);           // overlong '/'
  EXPECT_EQ(find_invalid_utf8("x\xE0\x80\xAF"), 1);      // overlong in three bytes
  EXPECT_EQ(find_invalid_utf8("x\xF0\x80\x80\xAF"), 1);  // overlong in four
  EXPECT_EQ(find_invalid_utf8("x\xED\xA0\x80"), 1);      // surrogate
  EXPECT_EQ(find_invalid_utf8("x\xF5\x80\x80\x80"), 1);  // beyond U+10FFFF
  EXPECT_EQ(find_invalid_utf8("\xC3\xA9\xE4\xB8"), 2);   // cut off at the end
  EXPECT_EQ(find_invalid_utf8("\xFF\xFE"
                              "a\0"s),
            0);  // UTF-16 with its mark
}

TEST(Utf8, FindsTheReservedCharacter) {
  EXPECT_EQ(find_reserved_character("plain _ text"), -1);
  EXPECT_EQ(find_reserved_character("ab\xE2\x96\x81"), 2);
  EXPECT_EQ(find_reserved_character("\xE2\x96\x82"), -1);
}

TEST(Utf8, TellsIncompleteFromInvalid) {
  EXPECT_EQ(classify_utf8_prefix("\xE4\xB8"), Utf8Prefix::kIncomplete);
  EXPECT_EQ(classify_utf8_prefix("\xF0"), Utf8Prefix::kIncomplete);
  EXPECT_EQ(classify_utf8_prefix("\xE0\x80"), Utf8Prefix::kInvalid);
  EXPECT_EQ(classify_utf8_prefix("\x80"), Utf8Prefix::kInvalid);
  EXPECT_EQ(classify_utf8_prefix("\xE4\xB8\x41"), Utf8Prefix::kInvalid);
}

TEST(Utf8, PositionsCountCharacters) {
  const std::string text =
      "one\n\xC3\xA9\xE4\xB8\xAD"
      "x";
  EXPECT_EQ(text_position(text, 0).line, 1);
  EXPECT_EQ(text_position(text, 0).column, 1);
  const TextPosition x = text_position(text, 9);
  EXPECT_EQ(x.line, 2);
  EXPECT_EQ(x.column, 3);
}

TEST(Utf8, InvalidBytesAreReplacedOneByOne) {
  const std::string mark = "\xEF\xBF\xBD";
  EXPECT_EQ(replace_invalid_utf8(""), "");
  EXPECT_EQ(replace_invalid_utf8("a\xC3\xA9\xF0\x9F\x98\x80"), "a\xC3\xA9\xF0\x9F\x98\x80");
  EXPECT_EQ(replace_invalid_utf8("a\x80z"), "a" + mark + "z");
  EXPECT_EQ(replace_invalid_utf8("\xE2\x82"), mark + mark);  // cut off
  EXPECT_EQ(replace_invalid_utf8("\xC3(\xFF"), mark + "(" + mark);
}

}  // namespace
}  // namespace k25::data
