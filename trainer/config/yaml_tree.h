#pragma once
// A YAML document as a plain tree with a place for every node, built from yaml-cpp's events. What
// strict configuration refuses (duplicates, anchors, merge keys, tags, directives, a second
// document, tabs) is found here.

#include <string>
#include <utility>
#include <vector>

namespace k25::trainer {

struct YamlNode {
  enum class Kind : unsigned char { kNull, kScalar, kList, kMap };
  Kind kind = Kind::kNull;
  std::string scalar;
  bool quoted = false;
  std::string where;  ///< "cfg.yaml:12:3" or "--set a.b=c"
  std::vector<YamlNode> items;
  struct Entry;
  std::vector<Entry> entries;

  const YamlNode* find(const std::string& key) const;
  YamlNode& child(const std::string& key, const std::string& place);  ///< created when missing
};

struct YamlNode::Entry {
  std::string key, where;
  YamlNode value;
};

/// "a.b.c" in its parts, empty ones too.
std::vector<std::string> split_path(const std::string& path);

/// One line per problem, in order of the text.
using Problems = std::vector<std::string>;

inline constexpr std::size_t kMostTold = 20;  ///< problems in one message

/// Throws kUsage with the first problems, and how many more there are.
[[noreturn]] void fail_with(const Problems& problems);

/// The tree of `text`; problems are appended. A file without a map at its top is a problem too.
YamlNode parse_yaml(const std::string& text, const std::string& file, Problems& problems);

/// Puts "a.b.c=value" into the tree (value: YAML). `place` says where the user gave it; "--set" and
/// the text when it is empty.
void apply_override(YamlNode& root, const std::string& text, Problems& problems,
                    const std::string& place = "");

/// Adds the entries of `defaults` that `node` lacks, maps recursively.
void merge_missing(YamlNode& node, const YamlNode& defaults);

/// The candidate nearest to `word` by edit distance, empty when none is near. A word of more than
/// 100 bytes is near to none.
std::string nearest(const std::string& word, const std::vector<std::string>& candidates);

}  // namespace k25::trainer
