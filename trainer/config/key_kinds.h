#pragma once
// The kinds of keys: a kind makes a Key from a path, a default, a help text and the field it fills.
// Internal to trainer/config.

#include <fmt/format.h>

#include <string>
#include <type_traits>
#include <vector>

#include "trainer/config/read_values.h"
#include "trainer/config/schema.h"

namespace k25::trainer {

inline constexpr const char* kRequired = "";

/// As `recompute.layers` is written: [1, 5..8].
std::string layer_ranges_text(const std::vector<LayerRange>& ranges);

/// Whether the node is this word; "null" is also what stands for nothing.
bool is_word(const YamlNode& node, const char* word);

template <class Field>
Key integer(const std::string& path, const char* fallback, const std::string& help, Field field,
            std::int64_t low = 1, std::int64_t high = kMaxInteger) {
  return {.info = {path, "integer", fallback, help},
          .read = [=](const YamlNode& node, Config& c, std::string& canonical) {
            std::int64_t value = 0;
            std::string expected = read_integer(node, low, high, value);
            if (expected.empty()) {
              field(c) = static_cast<std::remove_reference_t<decltype(field(c))>>(value);
              canonical = std::to_string(value);
            }
            return expected;
          }};
}

// An integer, or a word ("auto", "null") that stands for `substitute`.
template <class Field>
Key integer_or(const std::string& path, const char* word, const std::string& help, Field field,
               std::int64_t substitute, std::int64_t low = 1, std::int64_t high = kMaxInteger) {
  Key key = integer(path, word, help, field, low, high);
  key.info.type = fmt::format("integer | {}", word);
  key.read = [=, number = key.read](const YamlNode& node, Config& c,
                                    std::string& canonical) -> Mismatch {
    if (is_word(node, word)) {
      field(c) = static_cast<std::remove_reference_t<decltype(field(c))>>(substitute);
      canonical = word;
      return "";
    }
    const std::string expected = number(node, c, canonical).expected;
    return expected.empty() ? expected : expected + ", or " + word;
  };
  return key;
}

template <class Field>
Key number(const std::string& path, const char* fallback, const std::string& help, Field field,
           NumberRange range) {
  return {.info = {path, "number", fallback, help},
          .read = [=](const YamlNode& node, Config& c, std::string& canonical) {
            double value = 0.0;
            std::string expected = read_number(node, range, value);
            if (expected.empty()) {
              field(c) = value;
              canonical = yaml_number(value);
            }
            return expected;
          }};
}

/// `assign(config, value)` for what is no bool in Config.
template <class Assign>
Key boolean_to(const std::string& path, const char* fallback, const std::string& help,
               Assign assign) {
  return {.info = {path, "true | false", fallback, help},
          .read = [=](const YamlNode& node, Config& c, std::string& canonical) {
            bool value = false;
            std::string expected = read_bool(node, value);
            if (expected.empty()) {
              assign(c, value);
              canonical = value ? "true" : "false";
            }
            return expected;
          }};
}

template <class Field>
Key boolean(const std::string& path, const char* fallback, const std::string& help, Field field) {
  return boolean_to(path, fallback, help, [=](Config& c, bool value) { field(c) = value; });
}

template <class Field>
Key text(const std::string& path, const char* fallback, const std::string& help, Field field) {
  const bool nullable = std::string_view(fallback) == "null";
  return {.info = {path, nullable ? "text | null" : "text", fallback, help},
          .read = [=](const YamlNode& node, Config& c, std::string& canonical) {
            if (nullable && is_word(node, "null") && !node.quoted) {
              field(c).clear();
              canonical = "null";
              return std::string();
            }
            std::string expected = read_text(node, field(c));
            if (expected.empty()) canonical = yaml_text(field(c));
            return nullable && !expected.empty() ? expected + ", or null" : expected;
          }};
}

Key choice(const std::string& path, const char* fallback, const std::string& help,
           const std::vector<std::string>& choices,
           const std::function<void(Config&, std::size_t)>& assign);

/// Reads texts; the first that is none is the mismatch.
Mismatch text_list_mismatch(const YamlNode& node, std::vector<std::string>& out,
                            const std::string& expected);

template <class Field>
Key text_list(const std::string& path, const char* fallback, const std::string& help, Field field) {
  return {.info = {path, "list of texts", fallback, help},
          .read = [=](const YamlNode& node, Config& c, std::string& canonical) {
            Mismatch mismatch =
                text_list_mismatch(node, field(c), "a list of texts, such as [a, b]");
            if (mismatch.expected.empty()) canonical = yaml_list(field(c));
            return mismatch;
          }};
}

// Readers of keys that are one of a kind.
Mismatch read_betas(const YamlNode& node, Config& c, std::string& canonical);
Mismatch read_recompute(const YamlNode& node, Config& c, std::string& canonical);
Mismatch read_weights(const YamlNode& node, Config& c, std::string& canonical);
std::string read_inject_value(const YamlNode& node, Config& c, std::string& canonical);

}  // namespace k25::trainer
