#include "trainer/config/yaml_tree.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/utf8.h"
#include "kernels/core/check.h"
#include "trainer/config/printable.h"

namespace k25::trainer {
namespace {

// No key lies deeper than four maps; a parser that recurses needs a limit.
constexpr std::size_t kMaxDepth = 16;

struct TooDeep {
  YAML::Mark mark;
};

std::string place(const std::string& file, const YAML::Mark& mark) {
  return file + ":" + std::to_string(mark.line + 1) + ":" + std::to_string(mark.column + 1);
}

// Builds the tree; a stack entry is a container that is still open.
class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(const std::string& file, Problems& problems) : file_(file), problems_(problems) {}

  YamlNode take_root() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    refuse_anchor(mark, anchor);
    add(YamlNode{.kind = YamlNode::Kind::kNull, .where = place(file_, mark)}, mark);
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    problems_.push_back(place(file_, mark) + ": aliases are not supported, write the value out");
    add(YamlNode{.where = place(file_, mark)}, mark);
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    refuse_anchor(mark, anchor);
    refuse_tag(mark, tag);
    const bool plain = tag == "?";
    const bool quoted = tag == "!";
    const bool null = plain && (value.empty() || value == "~" || value == "null");
    add(YamlNode{.kind = null ? YamlNode::Kind::kNull : YamlNode::Kind::kScalar,
                 .scalar = value,
                 .quoted = quoted,
                 .where = place(file_, mark)},
        mark);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    refuse_anchor(mark, anchor);
    refuse_tag(mark, tag);
    open(YamlNode::Kind::kList, mark);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    refuse_anchor(mark, anchor);
    refuse_tag(mark, tag);
    open(YamlNode::Kind::kMap, mark);
  }
  void OnMapEnd() override { close(); }

 private:
  struct Open {
    YamlNode node;
    bool have_key = false;
    std::string key, key_where;
    std::map<std::string, std::string> places;  // of the keys so far
  };

  void refuse_anchor(const YAML::Mark& mark, YAML::anchor_t anchor) {
    if (anchor != 0) {
      problems_.push_back(place(file_, mark) + ": anchors are not supported, write the value out");
    }
  }

  void refuse_tag(const YAML::Mark& mark, const std::string& tag) {
    if (tag.empty() || tag == "?" || tag == "!")
      return;  // none, and what a plain or quoted scalar has
    problems_.push_back(place(file_, mark) + ": tags are not supported (here '" +
                        printable_start(tag) + "')");
  }

  void open(YamlNode::Kind kind, const YAML::Mark& mark) {
    if (open_.size() == kMaxDepth) throw TooDeep{mark};
    open_.push_back({.node = {.kind = kind, .where = place(file_, mark)}});
  }

  void close() {
    YamlNode node = std::move(open_.back().node);
    open_.pop_back();
    add(std::move(node), YAML::Mark::null_mark());
  }

  void add(YamlNode node, const YAML::Mark& mark) {
    if (open_.empty()) {
      root_ = std::move(node);
      return;
    }
    Open& parent = open_.back();
    if (parent.node.kind == YamlNode::Kind::kList) {
      parent.node.items.push_back(std::move(node));
    } else if (!parent.have_key) {
      take_key(parent, node, mark);
    } else {
      // The parser places a value that is not there at what comes next.
      if (node.kind == YamlNode::Kind::kNull) node.where = parent.key_where;
      parent.node.entries.push_back({parent.key, parent.key_where, std::move(node)});
      parent.have_key = false;
    }
  }

  void take_key(Open& parent, const YamlNode& node, const YAML::Mark&) {
    if (node.kind != YamlNode::Kind::kScalar) {
      problems_.push_back(node.where + ": a key must be plain text");
    } else if (node.scalar == "<<") {
      problems_.push_back(node.where + ": merge keys (<<) are not supported, write the keys out");
    } else if (const auto [first, fresh] = parent.places.emplace(node.scalar, node.where); !fresh) {
      problems_.push_back(node.where + ": duplicate key '" + printable_start(node.scalar) +
                          "', first given at " + first->second);
    }
    parent.have_key = true;
    parent.key = node.scalar;
    parent.key_where = node.where;
  }

  const std::string& file_;
  Problems& problems_;
  YamlNode root_;
  std::vector<Open> open_;
};

// The YAML library takes some control characters for the end of the file and drops what follows.
void find_bad_bytes(const std::string& text, const std::string& file, Problems& problems) {
  const auto problem = [&](std::int64_t offset, const std::string& what) {
    const data::TextPosition at = data::text_position(text, offset);
    problems.push_back(file + ":" + std::to_string(at.line) + ":" + std::to_string(at.column) +
                       ": " + what);
  };
  if (const std::int64_t offset = data::find_invalid_utf8(text); offset >= 0) {
    return problem(offset, "the text is not UTF-8; a config is UTF-8 text");
  }
  const auto control = std::find_if(text.begin(), text.end(), [](char c) {
    return c == '\x7f' || (c >= 0 && c < ' ' && c != '\t' && c != '\n' && c != '\r');
  });
  if (control != text.end()) {
    problem(control - text.begin(), "a control character (byte " +
                                        std::to_string(static_cast<int>(*control)) +
                                        "); write it as an escape inside double quotes");
  }
}

// Tabs that lead a line with content are indentation; in empty and comment lines, where the YAML
// library takes them for it too, they become spaces.
void find_tab_indentation(std::string& text, const std::string& file, Problems& problems) {
  int line = 1;
  for (std::size_t begin = 0; begin < text.size(); ++line) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::size_t first = std::min(text.find_first_not_of(" \t\r", begin), end);
    const std::size_t tab = std::min(text.find('\t', begin), first);
    if (tab < first && (first == end || text[first] == '#')) {
      std::replace(text.begin() + static_cast<std::ptrdiff_t>(tab),
                   text.begin() + static_cast<std::ptrdiff_t>(first), '\t', ' ');
    } else if (tab < first) {
      problems.push_back(file + ":" + std::to_string(line) + ":" + std::to_string(tab - begin + 1) +
                         ": a tab is used for indentation; YAML indents with spaces");
    }
    begin = end + 1;
  }
}

// The YAML library skips those it does not know. They stand before the document alone.
void find_directives(const std::string& text, const std::string& file, Problems& problems) {
  std::istringstream lines(text);
  int number = 1;
  for (std::string line; std::getline(lines, line); ++number) {
    const bool skipped = line.find_first_not_of(" \t\r") == std::string::npos || line[0] == '#';
    if (!skipped && line[0] != '%') return;
    if (skipped) continue;
    problems.push_back(file + ":" + std::to_string(number) + ":1: directives are not supported (" +
                       printable_start(line) + "), remove the line");
  }
}

std::string hint(const std::string& message) {
  if (message.find("map value") != std::string::npos) {
    return " (is the indentation right, and a space after ':' in the line before?)";
  }
  if (message.find("EOF in scalar") != std::string::npos) return " (a quote is not closed)";
  return "";
}

YamlNode read_document(const std::string& text, const std::string& file, Problems& problems) {
  std::istringstream in(text);
  YAML::Parser parser(in);
  TreeBuilder builder(file, problems);
  if (!parser.HandleNextDocument(builder)) return {};
  Problems ignored;
  TreeBuilder second(file, ignored);
  if (parser.HandleNextDocument(second)) {
    const std::string where = second.take_root().where;
    problems.push_back((where.empty() ? file : where) +
                       ": a second document ('---') begins here; a config is one document");
  }
  return builder.take_root();
}

}  // namespace

void fail_with(const Problems& problems) {
  std::string message;
  const std::size_t told = std::min(problems.size(), kMostTold);
  for (std::size_t i = 0; i < told; ++i) message += (i == 0 ? "" : "\n") + problems[i];
  if (told < problems.size()) {
    message += "\nand " + std::to_string(problems.size() - told) + " more problems";
  }
  fail(ErrorKind::kUsage, message);
}

std::vector<std::string> split_path(const std::string& path) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  for (std::size_t dot = path.find('.'); dot != std::string::npos; dot = path.find('.', begin)) {
    parts.push_back(path.substr(begin, dot - begin));
    begin = dot + 1;
  }
  parts.push_back(path.substr(begin));
  return parts;
}

const YamlNode* YamlNode::find(const std::string& key) const {
  for (const Entry& entry : entries) {
    if (entry.key == key) return &entry.value;
  }
  return nullptr;
}

YamlNode& YamlNode::child(const std::string& key, const std::string& place_of_key) {
  kind = Kind::kMap;
  for (Entry& entry : entries) {
    if (entry.key == key) return entry.value;
  }
  entries.push_back({key, place_of_key, {.where = place_of_key}});
  return entries.back().value;
}

YamlNode parse_yaml(const std::string& original, const std::string& file, Problems& problems) {
  const std::size_t before = problems.size();
  std::string text = original;
  if (text.rfind("\xEF\xBB\xBF", 0) == 0) text.erase(0, 3);
  find_bad_bytes(text, file, problems);
  if (problems.size() == before) find_tab_indentation(text, file, problems);
  if (problems.size() == before) find_directives(text, file, problems);
  if (problems.size() > before) return {};
  // An unclosed quote is an error at the end of the text, but not in the empty line behind it.
  text.erase(text.find_last_not_of(" \t\r\n") + 1);
  YamlNode root;
  try {
    root = read_document(text, file, problems);
  } catch (const TooDeep& error) {
    problems.push_back(place(file, error.mark) + ": nested deeper than " +
                       std::to_string(kMaxDepth) + " levels; close the lists or maps before");
    return {};
  } catch (const YAML::Exception& error) {
    problems.push_back(place(file, error.mark) + ": " + error.msg + hint(error.msg));
    return {};
  }
  if (root.kind == YamlNode::Kind::kNull && problems.size() == before) {
    problems.push_back(file + ": the file is empty; expected a map of sections (run, model, ...)");
  }
  return root;
}

namespace {

// An override is one place: columns inside it would not help.
void place_all(YamlNode& node, const std::string& where) {
  node.where = where;
  for (YamlNode& item : node.items) place_all(item, where);
  for (YamlNode::Entry& entry : node.entries) {
    entry.where = where;
    place_all(entry.value, where);
  }
}

}  // namespace

void apply_override(YamlNode& root, const std::string& text, Problems& problems,
                    const std::string& place) {
  const std::string where = place.empty() ? "--set " + printable(text) : printable(place);
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    problems.push_back(where + ": expected key=value, such as optim.lr=1e-3");
    return;
  }
  Problems inner;
  const std::string value_text = text.substr(equals + 1);
  const std::size_t first = value_text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos || value_text[first] == '#') {
    problems.push_back(where + ": the value is empty; write null to leave the key out");
    return;
  }
  YamlNode value = parse_yaml(value_text + "\n", where, inner);
  const bool only_null = inner.size() == 1 && value.kind == YamlNode::Kind::kNull &&
                         inner[0].find("the file is empty") != std::string::npos;
  if (!only_null) problems.insert(problems.end(), inner.begin(), inner.end());
  place_all(value, where);

  YamlNode* node = &root;
  for (const std::string& key : split_path(text.substr(0, equals))) {
    if (node->kind == YamlNode::Kind::kScalar || node->kind == YamlNode::Kind::kList) {
      problems.push_back(where + ": '" + printable_start(key) +
                         "' lies below a key that is no map");
      return;
    }
    node = &node->child(key, where);
  }
  *node = std::move(value);
}

void merge_missing(YamlNode& node, const YamlNode& defaults) {
  for (const YamlNode::Entry& entry : defaults.entries) {
    if (node.find(entry.key) == nullptr) {
      node.entries.push_back(entry);
    } else {
      merge_missing(node.child(entry.key, entry.where), entry.value);
    }
  }
}

std::string nearest(const std::string& word, const std::vector<std::string>& candidates) {
  if (word.size() > 100) return "";
  std::string best;
  // Of a word of three letters, two changes leave nothing to know it by.
  const std::size_t most = word.size() <= 3 ? 1 : std::max<std::size_t>(2, word.size() / 3);
  std::size_t best_distance = most + 1;
  for (const std::string& candidate : candidates) {
    if (candidate.size() >= 3 && word.rfind(candidate, 0) == 0) return candidate;
    std::vector<std::size_t> row(candidate.size() + 1);
    for (std::size_t j = 0; j < row.size(); ++j) row[j] = j;
    for (std::size_t i = 1; i <= word.size(); ++i) {
      std::size_t diagonal = row[0];
      row[0] = i;
      for (std::size_t j = 1; j < row.size(); ++j) {
        const std::size_t substitute = diagonal + (word[i - 1] == candidate[j - 1] ? 0 : 1);
        diagonal = row[j];
        row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
      }
    }
    if (row.back() < best_distance) {
      best_distance = row.back();
      best = candidate;
    }
  }
  return best;
}

}  // namespace k25::trainer
