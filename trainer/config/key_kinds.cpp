#include "trainer/config/key_kinds.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "trainer/config/printable.h"

namespace k25::trainer {
namespace {

std::string index_of(std::size_t i) { return "[" + std::to_string(i) + "]"; }

// N or A..B.
bool read_layer_range(const YamlNode& node, LayerRange& range) {
  if (node.kind != YamlNode::Kind::kScalar || node.quoted) return false;
  const std::size_t dots = node.scalar.find("..");
  YamlNode first = node, last = node;
  if (dots != std::string::npos) {
    first.scalar = node.scalar.substr(0, dots);
    last.scalar = node.scalar.substr(dots + 2);
  }
  return read_integer(first, 1, kMaxInteger, range.first).empty() &&
         read_integer(last, range.first, kMaxInteger, range.last).empty();
}

}  // namespace

bool is_word(const YamlNode& node, const char* word) {
  if (node.kind == YamlNode::Kind::kNull) return std::string_view(word) == "null";
  return node.kind == YamlNode::Kind::kScalar && node.scalar == word;
}

std::string layer_ranges_text(const std::vector<LayerRange>& ranges) {
  std::string text;
  for (const LayerRange& r : ranges) {
    text += (text.empty() ? "" : ", ") + std::to_string(r.first);
    if (r.last > r.first) text += ".." + std::to_string(r.last);
  }
  return "[" + text + "]";
}

Key choice(const std::string& path, const char* fallback, const std::string& help,
           const std::vector<std::string>& choices,
           const std::function<void(Config&, std::size_t)>& assign) {
  std::string type;
  for (const std::string& c : choices) type += (type.empty() ? "" : " | ") + c;
  return {.info = {path, type, fallback, help},
          .read = [=](const YamlNode& node, Config& c, std::string& canonical) {
            std::size_t index = 0;
            std::string expected = read_choice(node, choices, index);
            if (expected.empty()) {
              assign(c, index);
              canonical = choices[index];
            }
            return expected;
          }};
}

Mismatch text_list_mismatch(const YamlNode& node, std::vector<std::string>& out,
                            const std::string& expected) {
  if (node.kind != YamlNode::Kind::kList) return expected;
  out.clear();
  for (const YamlNode& item : node.items) {
    std::string text;
    if (!read_text(item, text).empty()) return {expected, index_of(out.size()), item};
    out.push_back(text);
  }
  return "";
}

Mismatch read_betas(const YamlNode& node, Config& c, std::string& canonical) {
  const std::string expected = "two numbers in [0, 1), such as [0.9, 0.95]";
  if (node.kind != YamlNode::Kind::kList || node.items.size() != 2) return expected;
  const NumberRange range{0.0, 1.0, Bound::kInclusive, Bound::kExclusive};
  double* const betas[] = {&c.optim.beta1, &c.optim.beta2};
  for (std::size_t i = 0; i < 2; ++i) {
    if (!read_number(node.items[i], range, *betas[i]).empty()) {
      return {expected, index_of(i), node.items[i]};
    }
  }
  canonical = fmt::format("[{}, {}]", yaml_number(c.optim.beta1), yaml_number(c.optim.beta2));
  return "";
}

Mismatch read_recompute(const YamlNode& node, Config& c, std::string& canonical) {
  const std::string expected =
      "all, middle, or a list of layers counted from 1, such as [7..18] or [1, 3, 5..8]";
  c.recompute = {.cheap = c.recompute.cheap, .check = c.recompute.check};
  std::size_t word = 0;
  if (read_choice(node, {"all", "middle"}, word).empty()) {
    c.recompute.band = word == 0 ? RecomputeBand::kAll : RecomputeBand::kMiddle;
    canonical = word == 0 ? "all" : "middle";
    return "";
  }
  if (node.kind != YamlNode::Kind::kList) return expected;
  for (std::size_t i = 0; i < node.items.size(); ++i) {
    LayerRange range;
    if (!read_layer_range(node.items[i], range)) return {expected, index_of(i), node.items[i]};
    c.recompute.layers.push_back(range);
  }
  std::sort(c.recompute.layers.begin(), c.recompute.layers.end(),
            [](const LayerRange& a, const LayerRange& b) { return a.first < b.first; });
  for (std::size_t i = 1; i < c.recompute.layers.size(); ++i) {
    if (c.recompute.layers[i].first <= c.recompute.layers[i - 1].last) {
      return fmt::format("each layer once (layer {} is named twice)", c.recompute.layers[i].first);
    }
  }
  canonical = layer_ranges_text(c.recompute.layers);
  return "";
}

Mismatch read_weights(const YamlNode& node, Config& c, std::string& canonical) {
  const std::string expected =
      "a map of domain names to weights >= 0, such as {law: 0.7, news: 0.3}";
  c.data.mixture_weights.clear();
  canonical = "{}";
  if (node.kind == YamlNode::Kind::kNull) return "";
  if (node.kind != YamlNode::Kind::kMap) return expected;
  canonical.clear();
  for (const YamlNode::Entry& entry : node.entries) {
    double weight = 0.0;
    if (!read_number(entry.value, {}, weight).empty()) {
      return {expected, "." + printable(entry.key), entry.value};
    }
    c.data.mixture_weights[entry.key] = weight;
    canonical +=
        (canonical.empty() ? "{" : ", ") + yaml_text(entry.key) + ": " + yaml_number(weight);
  }
  canonical = canonical.empty() ? "{}" : canonical + "}";
  return "";
}

std::string read_inject_value(const YamlNode& node, Config& c, std::string& canonical) {
  std::size_t index = 0;
  if (read_choice(node, {"nan", "inf", "-inf"}, index).empty()) {
    const double inf = std::numeric_limits<double>::infinity();
    c.inject.value = index == 0 ? std::nan("") : index == 1 ? inf : -inf;
    canonical = "\"" + node.scalar + "\"";
    return "";
  }
  if (read_number(node, {-1e300, 1e300}, c.inject.value).empty()) {
    canonical = yaml_number(c.inject.value);
    return "";
  }
  return "a number, nan, inf or -inf";
}

}  // namespace k25::trainer
