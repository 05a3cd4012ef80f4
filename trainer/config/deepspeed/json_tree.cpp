#include "trainer/config/deepspeed/json_tree.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/utf8.h"
#include "trainer/config/printable.h"

namespace k25::trainer {
namespace {

constexpr std::size_t kMaxDepth = 64;  // a parser that recurses needs a limit

struct SyntaxError {
  std::string message;
};

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

std::size_t skip_digits(std::string_view text, std::size_t at) {
  while (at < text.size() && is_digit(text[at])) ++at;
  return at;
}

// -? (0 | [1-9][0-9]*) (. [0-9]+)? ([eE] [+-]? [0-9]+)?
bool is_number(std::string_view text) {
  std::size_t at = text.starts_with('-') ? 1 : 0;
  const std::size_t whole = skip_digits(text, at);
  if (whole == at || (text[at] == '0' && whole > at + 1)) return false;
  at = whole;
  if (at < text.size() && text[at] == '.') {
    const std::size_t end = skip_digits(text, at + 1);
    if (end == at + 1) return false;
    at = end;
  }
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    ++at;
    if (at < text.size() && (text[at] == '+' || text[at] == '-')) ++at;
    const std::size_t end = skip_digits(text, at);
    if (end == at) return false;
    at = end;
  }
  return at == text.size();
}

std::string what_is_wrong(const std::string& word) {
  const std::string shown = "'" + printable_start(word) + "'";
  for (const auto& [name, right] : {std::pair{"True", "true"},
                                    {"False", "false"},
                                    {"None", "null"},
                                    {"TRUE", "true"},
                                    {"FALSE", "false"},
                                    {"NULL", "null"}}) {
    if (word == name) return shown + " is no JSON; write " + right;
  }
  std::string letters = word;
  std::erase_if(letters, [](char c) { return c == '-' || c == '+' || c == '.'; });
  for (const char* name : {"NaN", "nan", "Infinity", "inf", "Inf"}) {
    if (letters == name) return shown + " is no JSON number; write a finite number";
  }
  const bool number = is_digit(word.back()) || is_digit(word[0]);
  if (number && word.size() > 1 && word[0] == '0' && is_digit(word[1])) {
    return shown + " is no JSON number: remove the leading zeros";
  }
  if (number) return shown + " is no JSON number, such as 8, 0.1 or 2e-5";
  return shown + " is no JSON value; write texts inside double quotes";
}

class JsonReader {
 public:
  JsonReader(std::string_view text, const std::string& file, Problems& problems)
      : text_(text), file_(file), problems_(problems) {}

  YamlNode read() {
    skip_blanks();
    if (at_end()) {
      throw SyntaxError{file_ + ": the file is empty; expected one JSON object, {\"key\": value}"};
    }
    const std::string begin = place();
    YamlNode root = value();
    skip_blanks();
    if (!at_end()) fail_here("more text behind the end of the JSON value; a config is one object");
    if (root.kind != YamlNode::Kind::kMap) {
      throw SyntaxError{begin + ": expected one JSON object, {\"key\": value}"};
    }
    return root;
  }

 private:
  bool at_end() const { return at_ == text_.size(); }
  char peek() const { return at_end() ? '\0' : text_[at_]; }
  std::string place() const {
    return file_ + ":" + std::to_string(line_) + ":" + std::to_string(column_);
  }
  [[noreturn]] void fail_here(const std::string& message) const {
    throw SyntaxError{place() + ": " + message};
  }

  char take() {
    const char c = text_[at_++];
    const bool inside_character = (static_cast<unsigned char>(c) & 0xC0) == 0x80;
    if (c == '\n') {
      ++line_;
      column_ = 1;
    } else if (!inside_character) {
      ++column_;
    }
    return c;
  }

  void skip_blanks() {
    while (!at_end() && std::string_view(" \t\r\n").find(peek()) != std::string_view::npos) take();
    const std::string_view rest = text_.substr(at_);
    if (rest.starts_with('#') || rest.starts_with("//") || rest.starts_with("/*")) {
      fail_here("JSON has no comments; remove it (DeepSpeed reads Hjson, k25 strict JSON)");
    }
  }

  YamlNode value() {
    if (depth_ == kMaxDepth) {
      fail_here("nested deeper than " + std::to_string(kMaxDepth) + " levels");
    }
    YamlNode node;
    node.where = place();
    if (peek() == '{' || peek() == '[') {
      ++depth_;
      if (peek() == '{') {
        object(node);
      } else {
        list(node);
      }
      --depth_;
    } else if (peek() == '"') {
      node.kind = YamlNode::Kind::kScalar;
      node.quoted = true;
      node.scalar = string();
    } else {
      plain(node);
    }
    return node;
  }

  void plain(YamlNode& node) {
    if (peek() == '\'') fail_here("a text stands in double quotes, not in single ones");
    const std::size_t begin = at_;
    const std::size_t end = [&] {
      std::size_t i = at_;
      while (i < text_.size() && (is_letter(text_[i]) || is_digit(text_[i]) || text_[i] == '-' ||
                                  text_[i] == '+' || text_[i] == '.')) {
        ++i;
      }
      return i;
    }();
    const std::string word(text_.substr(begin, end - begin));
    if (word.empty()) fail_here("expected a value, got " + found());
    const bool known = word == "null" || word == "true" || word == "false";
    if (!known && !is_number(word)) fail_here(what_is_wrong(word));
    while (at_ < end) take();
    if (word == "null") return;
    node.kind = YamlNode::Kind::kScalar;
    node.scalar = word;
  }

  std::string found() const {
    if (at_end()) return "the end of the file";
    const std::size_t length =
        std::max<std::size_t>(1, data::utf8_sequence_length(std::string(text_.substr(at_, 4))));
    return "'" + printable(text_.substr(at_, length)) + "'";
  }

  // Behind an element: true when another one follows the comma.
  bool goes_on(char close, const std::string& begin) {
    skip_blanks();
    const std::string what = close == '}' ? "object" : "list";
    if (at_end()) {
      fail_here("the file ends inside the " + what + " that begins at " + begin +
                "; close it with '" + close + "'");
    }
    if (peek() == close) {
      take();
      return false;
    }
    if (peek() != ',') {
      fail_here(std::string("expected ',' or '") + close + "', got " + found());
    }
    const std::string comma = place();
    take();
    skip_blanks();
    if (peek() == close) {
      throw SyntaxError{comma + ": a comma before '" + close + "'; JSON has none there, remove it"};
    }
    return true;
  }

  void list(YamlNode& node) {
    node.kind = YamlNode::Kind::kList;
    take();
    skip_blanks();
    if (peek() == ']') {
      take();
      return;
    }
    do node.items.push_back(value());
    while (goes_on(']', node.where));
  }

  void object(YamlNode& node) {
    node.kind = YamlNode::Kind::kMap;
    take();
    skip_blanks();
    if (peek() == '}') {
      take();
      return;
    }
    std::map<std::string, std::string> places;
    do {
      YamlNode::Entry entry;
      entry.where = place();
      if (peek() != '"') fail_here("expected a key in double quotes, got " + found());
      entry.key = string();
      const auto [first, fresh] = places.emplace(entry.key, entry.where);
      if (!fresh) {
        problems_.push_back(entry.where + ": duplicate key '" + printable_start(entry.key) +
                            "', first given at " + first->second);
      }
      skip_blanks();
      if (peek() != ':') fail_here("expected ':' behind the key, got " + found());
      take();
      skip_blanks();
      entry.value = value();
      node.entries.push_back(std::move(entry));
    } while (goes_on('}', node.where));
  }

  std::string string() {
    const std::string begin = place();
    std::string text;
    take();
    while (peek() != '"') {
      if (at_end() || peek() == '\n') {
        throw SyntaxError{begin + ": the text is not closed; it ends with '\"' in the same line"};
      }
      if (static_cast<unsigned char>(peek()) < ' ') {
        fail_here("a control character (byte " + std::to_string(static_cast<int>(peek())) +
                  ") inside a text; write it as an escape");
      }
      if (peek() == '\\') {
        escape(text);
      } else {
        text += take();
      }
    }
    take();
    return text;
  }

  void escape(std::string& text) {
    static constexpr std::string_view kNames = "\"\\/bfnrt", kMeaning = "\"\\/\b\f\n\r\t";
    const std::string begin = place();
    take();
    const std::size_t known = at_end() ? std::string_view::npos : kNames.find(peek());
    if (known != std::string_view::npos) {
      take();
      text += kMeaning[known];
      return;
    }
    if (peek() != 'u')
      throw SyntaxError{begin + ": unknown escape; JSON has \\\" \\\\ \\n \\uXXXX"};
    take();
    std::uint32_t code = hexadecimal(begin);
    if (code >= 0xD800 && code < 0xDC00 && text_.substr(at_).starts_with("\\u")) {
      take();
      take();
      const std::uint32_t low = hexadecimal(begin);
      code = low >= 0xDC00 && low < 0xE000 ? 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00) : 0;
    }
    if (code == 0 || (code >= 0xD800 && code < 0xE000)) {
      throw SyntaxError{begin + ": the escape stands for no character"};
    }
    append_utf8(text, code);
  }

  std::uint32_t hexadecimal(const std::string& begin) {
    std::uint32_t code = 0;
    for (int i = 0; i < 4; ++i) {
      const std::size_t digit = at_end() ? std::string_view::npos
                                         : std::string_view("0123456789abcdefABCDEF").find(peek());
      if (digit == std::string_view::npos) throw SyntaxError{begin + ": \\u wants four hex digits"};
      take();
      code = code * 16 + static_cast<std::uint32_t>(digit < 16 ? digit : digit - 6);
    }
    return code;
  }

  static void append_utf8(std::string& text, std::uint32_t code) {
    const auto tail = [&](int shift) {
      text += static_cast<char>(0x80 | ((code >> shift) & 0x3F));
    };
    if (code < 0x80) {
      text += static_cast<char>(code);
    } else if (code < 0x800) {
      text += static_cast<char>(0xC0 | (code >> 6));
      tail(0);
    } else if (code < 0x10000) {
      text += static_cast<char>(0xE0 | (code >> 12));
      tail(6);
      tail(0);
    } else {
      text += static_cast<char>(0xF0 | (code >> 18));
      tail(12);
      tail(6);
      tail(0);
    }
  }

  std::string_view text_;
  const std::string& file_;
  Problems& problems_;
  std::size_t at_ = 0, depth_ = 0;
  int line_ = 1, column_ = 1;
};

}  // namespace

YamlNode parse_json(const std::string& original, const std::string& file, Problems& problems) {
  const bool marked = original.starts_with("\xEF\xBB\xBF");
  const std::string text = original.substr(marked ? 3 : 0);
  if (const std::int64_t offset = data::find_invalid_utf8(text); offset >= 0) {
    const data::TextPosition at = data::text_position(text, offset);
    problems.push_back(file + ":" + std::to_string(at.line) + ":" + std::to_string(at.column) +
                       ": the text is not UTF-8");
    return {};
  }
  try {
    return JsonReader(text, file, problems).read();
  } catch (const SyntaxError& error) {
    problems.push_back(error.message);
    return {};
  }
}

}  // namespace k25::trainer
