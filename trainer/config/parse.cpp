#include "trainer/config/parse.h"

#include <algorithm>

#include "data/io/atomic_file.h"
#include "trainer/config/effects.h"
#include "trainer/config/printable.h"
#include "trainer/config/read_values.h"
#include "trainer/config/resolve.h"
#include "trainer/config/schema.h"

namespace k25::trainer {
namespace {

const YamlNode* find_path(const YamlNode& root, const std::string& path) {
  const YamlNode* node = &root;
  for (const std::string& part : split_path(path)) {
    if (node->kind != YamlNode::Kind::kMap) return nullptr;
    node = node->find(part);
    if (node == nullptr) return nullptr;
  }
  return node;
}

// Reads one tree into a Config, collecting every problem.
class Reader {
 public:
  Reader(const YamlNode& root, const std::string& file) : root_(root), file_(file) {
    for (const Key& key : schema()) {
      keys_[key.info.path] = &key;
      const std::vector<std::string> parts = split_path(key.info.path);
      std::string section;
      for (const std::string& part : parts) {
        children_[section].push_back(part);
        section += (section.empty() ? "" : ".") + part;
      }
    }
  }

  void check_names(const YamlNode& node, const std::string& path, Problems& problems) const {
    if (node.kind != YamlNode::Kind::kMap) {
      if (node.kind == YamlNode::Kind::kNull && !path.empty()) return;  // an empty section
      problems.push_back(
          (node.where.empty() ? file_ : node.where) + ": " +
          (path.empty() ? "the config" : "'" + path + "'") + " must be a map of keys, got " +
          given(node) +
          (node.scalar.find(':') == std::string::npos ? "" : " (write a space after ':')"));
      return;
    }
    for (const YamlNode::Entry& entry : node.entries) {
      const std::string full = path.empty() ? entry.key : path + "." + entry.key;
      // A dot inside a key, or no letter at all, would be taken for a path.
      const bool is_name = !entry.key.empty() && entry.key.find('.') == std::string::npos;
      if (is_name && keys_.count(full) != 0) continue;
      if (is_name && children_.count(full) != 0) {
        check_names(entry.value, full, problems);
      } else if (problems.size() < kMostTold) {
        problems.push_back(entry.where + ": unknown key '" +
                           printable_start(is_name ? full : entry.key) + "'" +
                           suggestion(entry.key, path));
      } else {
        problems.emplace_back();  // it is counted
      }
    }
  }

  void read(ParsedConfig& out, Problems& problems) {
    for (const Key& key : schema()) read_key(key, out, problems);
  }

  std::string where(const std::string& path) const {
    const YamlNode* node = find_path(root_, path);
    return node == nullptr || node->where.empty() ? file_ : node->where;
  }

 private:
  std::string suggestion(const std::string& word, const std::string& section) const {
    const std::string full = section.empty() ? word : section + "." + word;
    const bool known = !word.empty() && (keys_.count(full) != 0 || children_.count(full) != 0);
    if (known) return "; write it nested: " + nested(word);
    const std::string near = nearest(word, children_.at(section));
    if (!near.empty()) return " (did you mean '" + near + "'?)";
    for (const auto& [path, key] : keys_) {
      if (split_path(path).back() == word) return " (did you mean '" + path + "'?)";
    }
    return " (see 'k25 config --keys' for all keys)";
  }

  // "optim: {schedule: {kind: ...}}" for optim.schedule.kind
  static std::string nested(const std::string& path) {
    std::string text, closing;
    for (const std::string& part : split_path(path)) {
      text += (text.empty() ? "" : ": {") + part;
      closing += closing.empty() && text == part ? "" : "}";
    }
    return text + ": ..." + closing;
  }

  void read_key(const Key& key, ParsedConfig& out, Problems& problems) {
    const std::string& path = key.info.path;
    const YamlNode* node = find_path(root_, path);
    YamlNode fallback;
    if (node == nullptr) {
      if (key.info.default_value.empty()) {
        if (!section_is_readable(path)) return;  // told already
        problems.push_back(section_place(path) + ": missing key '" + path + "' (" + key.info.type +
                           ": " + key.info.help + ")");
        return;
      }
      if (key.info.default_value != "null") {
        fallback = parse_yaml(key.info.default_value + "\n", "default", problems);
      }
      node = &fallback;
    }
    const Mismatch mismatch = key.read(*node, out.config, out.values[path]);
    if (!mismatch.expected.empty()) {
      const bool element = mismatch.at != nullptr && !mismatch.at->where.empty();
      problems.push_back((element ? mismatch.at->where : where(path)) + ": " + path +
                         ": expected " + mismatch.expected + ", got " + given(*node) +
                         (mismatch.at == nullptr
                              ? ""
                              : "; " + path + mismatch.element + " is " + given(*mismatch.at)));
      return;
    }
    out.origins[path] = node == &fallback ? "default" : node->where;
    for (std::size_t i = 0; i < node->items.size(); ++i) {
      const std::string name = path + "[" + std::to_string(i) + "]";
      out.values[name] = node->items[i].scalar;
      out.origins[name] = node->items[i].where;
    }
    for (const YamlNode::Entry& entry : node->entries) {
      out.values[path + "." + entry.key] = entry.key;
      out.origins[path + "." + entry.key] = entry.where;
    }
  }

  bool section_is_readable(const std::string& path) const {
    const YamlNode* section = find_path(root_, path.substr(0, path.rfind('.')));
    return section == nullptr || section->kind == YamlNode::Kind::kNull ||
           section->kind == YamlNode::Kind::kMap;
  }

  // Where the nearest enclosing section of a missing key stands.
  std::string section_place(const std::string& path) const {
    const std::size_t dot = path.rfind('.');
    if (dot == std::string::npos) return file_;
    const YamlNode* section = find_path(root_, path.substr(0, dot));
    return section == nullptr || section->where.empty() ? file_ : section->where;
  }

  const YamlNode& root_;
  const std::string& file_;
  std::map<std::string, const Key*> keys_;
  std::map<std::string, std::vector<std::string>> children_;
};

void apply_preset(YamlNode& root, Problems& problems) {
  const YamlNode* preset = find_path(root, "model.preset");
  if (preset == nullptr || preset->kind != YamlNode::Kind::kScalar) return;
  try {
    const std::string name = preset->scalar;
    merge_missing(root.child("model", ""),
                  parse_yaml(preset_yaml(name), "preset " + name, problems));
  } catch (const Error& error) {
    problems.push_back(preset->where + ": " + error.what());
  }
}

// Every key in schema order, nested by section; `comment` gives what stands behind a value.
std::string render(const std::function<std::string(const std::string&)>& value,
                   const std::function<std::string(const std::string&)>& comment) {
  NestedYaml yaml;
  for (const Key& key : schema()) {
    yaml.add(key.info.path, "", value(key.info.path), comment(key.info.path));
  }
  return yaml.text();
}

}  // namespace

ParsedConfig parse_config(const std::string& text, const std::string& file,
                          const std::vector<std::string>& overrides, std::int64_t ranks,
                          const OptionPlaces& option_places) {
  Problems problems;
  YamlNode root = parse_yaml(text, file, problems);
  for (const std::string& override_text : overrides) {
    const auto place = option_places.find(override_text);
    apply_override(root, override_text, problems,
                   place == option_places.end() ? "" : place->second);
  }
  if (!problems.empty()) fail_with(problems);
  apply_preset(root, problems);

  ParsedConfig parsed;
  Reader reader(root, file);
  reader.check_names(root, "", problems);
  reader.read(parsed, problems);
  if (!problems.empty()) fail_with(problems);
  resolve_config(parsed.config, ranks, {file, parsed.origins}, parsed.chosen, problems);
  if (!problems.empty()) fail_with(problems);
  parsed.warnings = settings_without_effect(parsed, ranks);
  const auto value = [&](const std::string& path) { return parsed.values.at(path); };
  parsed.resolved = render(value, [](const std::string&) { return std::string(); });
  parsed.annotated = render(value, [&](const std::string& path) {
    const auto chosen = parsed.chosen.find(path);
    return parsed.origins.at(path) +
           (chosen == parsed.chosen.end() ? "" : "; here " + chosen->second);
  });
  return parsed;
}

std::string read_config_file(const std::filesystem::path& path, const std::string& noun) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  const std::string name = printable(path.string());
  if (fs::is_directory(status)) fail(ErrorKind::kUsage, name + ": is a directory, not a " + noun);
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    fail(ErrorKind::kUsage,
         name + ": is no regular file (a pipe or a device); write the " + noun + " to a file");
  }
  const std::uintmax_t size = fs::is_regular_file(status) ? fs::file_size(path, error) : 0;
  if (!error && size > kMaxConfigBytes) {
    fail(ErrorKind::kUsage, name + ": has " + std::to_string(size) + " bytes; a " + noun +
                                " has at most " + std::to_string(kMaxConfigBytes));
  }
  return data::read_file(path, ErrorKind::kUsage);
}

ParsedConfig load_config(const std::filesystem::path& path,
                         const std::vector<std::string>& overrides, std::int64_t ranks) {
  return parse_config(read_config_file(path), path.string(), overrides, ranks);
}

std::vector<KeyInfo> config_keys() {
  std::vector<KeyInfo> keys;
  for (const Key& key : schema()) keys.push_back(key.info);
  return keys;
}

}  // namespace k25::trainer
