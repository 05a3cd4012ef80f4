#pragma once
// Strict readers of YAML scalars and lists. Each returns what was expected, or "" when the node is
// fine.

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/config/yaml_tree.h"

namespace k25::trainer {

/// Beyond, doubles (the 1e6 form, JSON) skip integers.
inline constexpr std::int64_t kMaxInteger = std::int64_t{1} << 53;

/// Integers: digits without leading zeros, or an integral 1e6 form, within [low, high].
std::string read_integer(const YamlNode& node, std::int64_t low, std::int64_t high,
                         std::int64_t& out);
enum class Bound : unsigned char { kInclusive, kExclusive };
struct NumberRange {
  double low = 0.0, high = 1e300;
  Bound low_bound = Bound::kInclusive, high_bound = Bound::kInclusive;
};
/// Decimal numbers; .nan and .inf are refused.
std::string read_number(const YamlNode& node, const NumberRange& range, double& out);
std::string read_bool(const YamlNode& node, bool& out);
/// Non-empty text without NUL characters, which would end a path or a pattern early.
std::string read_text(const YamlNode& node, std::string& out);
/// One of `choices`; `index` is its position.
std::string read_choice(const YamlNode& node, const std::vector<std::string>& choices,
                        std::size_t& index);

/// What the user wrote, shortened, for messages: 'abc', "nothing", "a list [a, b]", "a map {a: 1}".
std::string given(const YamlNode& node);

/// `text` as a YAML scalar, quoted when it must be.
std::string yaml_text(const std::string& text);
std::string yaml_list(const std::vector<std::string>& texts);
/// Block YAML, key by key: opens the sections of a dotted path that the key before did not open.
class NestedYaml {
 public:
  /// One line "name: value  # comment"; `before` stands in front of the name.
  void add(const std::string& path, const std::string& before, const std::string& value,
           const std::string& comment);
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  std::vector<std::string> open_;
};
/// The shortest form that reads back as the same double.
std::string yaml_number(double value);

}  // namespace k25::trainer
