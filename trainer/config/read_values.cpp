#include "trainer/config/read_values.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "trainer/config/printable.h"

namespace k25::trainer {
namespace {

bool is_digits(std::string_view text) {
  if (text.empty()) return false;
  for (const char c : text) {
    if (c < '0' || c > '9') return false;
  }
  return true;
}

bool octal_looking(std::string_view text) {
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) text.remove_prefix(1);
  return text.size() > 1 && text[0] == '0' && text[1] >= '0' && text[1] <= '9';
}

bool parse_double(const std::string& text, double& out) {
  const bool plus = text.size() > 1 && text[0] == '+' && text[1] != '-';
  const char* begin = text.data() + (plus ? 1 : 0);
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(begin, end, out);
  return error == std::errc() && rest == end && std::isfinite(out) &&
         text.find_first_of("0123456789") != std::string::npos;
}

std::string range_text(std::int64_t low, std::int64_t high) {
  return fmt::format("an integer in [{}, {}]", low, high);
}

std::string range_text(const NumberRange& r) {
  const bool open_low = r.low_bound == Bound::kExclusive,
             open_high = r.high_bound == Bound::kExclusive;
  return fmt::format("a number in {}{:g}, {:g}{}", open_low ? "(" : "[", r.low, r.high,
                     open_high ? ")" : "]");
}

}  // namespace

namespace {

constexpr std::size_t kEnough = 60;  // bytes; more is not shown

// In YAML's short form.
void write_out(const YamlNode& node, std::string& text) {
  const bool list = node.kind == YamlNode::Kind::kList;
  if (node.kind == YamlNode::Kind::kNull) text += "null";
  if (node.kind == YamlNode::Kind::kScalar) {
    text += node.quoted ? "\"" + node.scalar + "\"" : node.scalar;
  }
  if (node.kind == YamlNode::Kind::kNull || node.kind == YamlNode::Kind::kScalar) return;
  text += list ? '[' : '{';
  const std::size_t start = text.size();
  const auto separate = [&] { text += text.size() == start ? "" : ", "; };
  for (std::size_t i = 0; i < node.items.size() && text.size() <= kEnough; ++i) {
    separate();
    write_out(node.items[i], text);
  }
  for (std::size_t i = 0; i < node.entries.size() && text.size() <= kEnough; ++i) {
    separate();
    text += node.entries[i].key + ": ";
    write_out(node.entries[i].value, text);
  }
  text += list ? ']' : '}';
}

}  // namespace

std::string given(const YamlNode& node) {
  std::string text;
  switch (node.kind) {
    case YamlNode::Kind::kNull:
      return "nothing";
    case YamlNode::Kind::kScalar:
      return (node.quoted ? "the quoted text '" : "'") + printable_start(node.scalar) + "'";
    case YamlNode::Kind::kList:
    case YamlNode::Kind::kMap:
      write_out(node, text);
      return (node.kind == YamlNode::Kind::kList ? "a list " : "a map ") + printable_start(text);
  }
  return "?";
}

std::string read_integer(const YamlNode& node, std::int64_t low, std::int64_t high,
                         std::int64_t& out) {
  const std::string expected = range_text(low, high);
  if (node.kind != YamlNode::Kind::kScalar || node.quoted) return expected;
  const std::string& text = node.scalar;
  if (octal_looking(text)) return expected + " without leading zeros";
  const std::size_t sign = text.find_first_of("+-") == 0 ? 1 : 0;
  std::int64_t value = 0;
  if (is_digits(std::string_view(text).substr(sign))) {
    const char* begin = text.data() + (text[0] == '+' ? 1 : 0);
    if (std::from_chars(begin, text.data() + text.size(), value).ec != std::errc()) return expected;
  } else {
    double number = 0.0;
    const bool exponent = text.find_first_of("eE") != std::string::npos;
    if (!exponent || !parse_double(text, number) || number != std::floor(number) ||
        std::fabs(number) > static_cast<double>(kMaxInteger)) {
      return expected;
    }
    value = static_cast<std::int64_t>(number);
  }
  if (value < low || value > high) return expected;
  out = value;
  return "";
}

std::string read_number(const YamlNode& node, const NumberRange& range, double& out) {
  const std::string expected = range_text(range);
  if (node.kind != YamlNode::Kind::kScalar || node.quoted) return expected;
  if (octal_looking(node.scalar)) return expected + " without leading zeros";
  double value = 0.0;
  if (!parse_double(node.scalar, value)) return expected;
  const bool above = range.low_bound == Bound::kExclusive ? value > range.low : value >= range.low;
  const bool below =
      range.high_bound == Bound::kExclusive ? value < range.high : value <= range.high;
  if (!above || !below) return expected;
  out = value;
  return "";
}

std::string read_bool(const YamlNode& node, bool& out) {
  if (node.kind == YamlNode::Kind::kScalar && !node.quoted &&
      (node.scalar == "true" || node.scalar == "false")) {
    out = node.scalar == "true";
    return "";
  }
  return "true or false";
}

std::string read_text(const YamlNode& node, std::string& out) {
  if (node.kind != YamlNode::Kind::kScalar || node.scalar.empty()) return "text";
  if (node.scalar.find('\0') != std::string::npos) return "text without NUL characters";
  out = node.scalar;
  return "";
}

std::string read_choice(const YamlNode& node, const std::vector<std::string>& choices,
                        std::size_t& index) {
  if (node.kind == YamlNode::Kind::kScalar) {
    for (std::size_t i = 0; i < choices.size(); ++i) {
      if (choices[i] != node.scalar) continue;
      index = i;
      return "";
    }
  }
  std::string expected = "one of";
  for (const std::string& choice : choices)
    expected += (choice == choices[0] ? " " : " | ") + choice;
  return expected;
}

std::string yaml_text(const std::string& text) {
  static constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./+=@%";
  bool plain = !text.empty() && text.find_first_not_of(kPlain) == std::string::npos &&
               text[0] != '-' && text[0] != '%' && text[0] != '@' && text[0] != '=';
  double number = 0.0;
  for (const char* word : {"null", "Null", "NULL", "true", "false"}) plain = plain && text != word;
  if (plain && !parse_double(text, number)) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    if ((c >= 0 && c < ' ') || c == '\x7f') {
      quoted += fmt::format("\\x{:02x}", static_cast<unsigned>(c));
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

std::string yaml_list(const std::vector<std::string>& texts) {
  std::string list = "[";
  for (std::size_t i = 0; i < texts.size(); ++i) list += (i == 0 ? "" : ", ") + yaml_text(texts[i]);
  return list + "]";
}

std::string yaml_number(double value) { return fmt::format("{}", value); }

void NestedYaml::add(const std::string& path, const std::string& before, const std::string& value,
                     const std::string& comment) {
  std::vector<std::string> sections = split_path(path);
  const std::string name = sections.back();
  sections.pop_back();
  std::size_t common = 0;
  while (common < open_.size() && common < sections.size() && open_[common] == sections[common]) {
    ++common;
  }
  for (std::size_t i = common; i < sections.size(); ++i) {
    text_ += std::string(2 * i, ' ') + sections[i] + ":\n";
  }
  text_ += std::string(2 * sections.size(), ' ') + before + name + ": " + value +
           (comment.empty() ? "" : "  # " + comment) + "\n";
  open_ = std::move(sections);
}

}  // namespace k25::trainer
