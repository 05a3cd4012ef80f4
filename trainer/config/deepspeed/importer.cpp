#include "trainer/config/deepspeed/importer.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "kernels/core/check.h"
#include "trainer/config/printable.h"
#include "trainer/config/read_values.h"
#include "trainer/config/schema.h"

namespace k25::trainer {
namespace {

using Parts = std::vector<std::string>;

Parts joined(Parts parts, const std::string& name) {
  parts.push_back(name);
  return parts;
}

std::string path_of(const Parts& parts) {
  std::string path;
  for (const std::string& part : parts) {
    const bool plain = !part.empty() && part.find('.') == std::string::npos;
    path += (path.empty() ? "" : ".") + (plain ? printable(part) : "\"" + printable(part) + "\"");
  }
  return path;
}

bool part_fits(const std::string& pattern, const std::string& part) {
  return pattern == "*" || pattern == part;
}

bool begins_with(const Parts& pattern, const Parts& parts) {
  return pattern.size() >= parts.size() &&
         std::equal(parts.begin(), parts.end(), pattern.begin(),
                    [](const std::string& p, const std::string& q) { return part_fits(q, p); });
}

const DsRow* row_of(const Parts& parts) {
  for (const DsKey& key : deepspeed_keys()) {
    if (key.parts.size() == parts.size() && begins_with(key.parts, parts)) return key.row;
  }
  return nullptr;
}

// The names that may stand in a section; empty when it is none. "*" is left out.
Parts names_in(const Parts& section) {
  Parts names;
  for (const DsKey& key : deepspeed_keys()) {
    if (key.parts.size() <= section.size() || !begins_with(key.parts, section)) continue;
    const std::string& name = key.parts[section.size()];
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  return names;
}

bool is_text(const YamlNode& node) { return node.kind == YamlNode::Kind::kScalar && node.quoted; }
bool is_auto(const YamlNode& node) { return is_text(node) && node.scalar == "auto"; }
bool is_true(const YamlNode& node) { return !node.quoted && node.scalar == "true"; }

bool has_type(const YamlNode& node, DsType type) {
  const bool plain = node.kind == YamlNode::Kind::kScalar && !node.quoted;
  const bool boolean = plain && (node.scalar == "true" || node.scalar == "false");
  switch (type) {
    case DsType::kBool:
      return boolean;
    case DsType::kInteger:
    case DsType::kNumber:
      return plain && !boolean;
    case DsType::kText:
      return is_text(node);
    case DsType::kList:
      return node.kind == YamlNode::Kind::kList;
    case DsType::kMap:
      return node.kind == YamlNode::Kind::kMap;
    case DsType::kAny:
      break;
  }
  return true;
}

// Whether the value is one of `words`, numbers by their value.
bool is_one_of(const YamlNode& node, const char* words) {
  std::istringstream in(words);
  for (std::string word; in >> word;) {
    if (node.kind == YamlNode::Kind::kMap && node.entries.empty() && word == "{}") return true;
    if (node.kind == YamlNode::Kind::kList && node.items.empty() && word == "[]") return true;
    if (node.kind != YamlNode::Kind::kScalar) continue;
    if (node.scalar == word) return true;
    const NumberRange any{-1e300, 1e300};
    const YamlNode wanted{.kind = YamlNode::Kind::kScalar, .scalar = word};
    double a = 0.0, b = 0.0;
    const bool numbers = read_number(node, any, a).empty() && read_number(wanted, any, b).empty();
    if (numbers && a == b) return true;
  }
  return false;
}

}  // namespace

DsImporter::DsImporter(const YamlNode& root, std::string file) : file_(std::move(file)) {
  walk(root, {});
  for (std::size_t i = 0; i < entries_.size(); ++i) index_[entries_[i].path] = i;
  for (DsEntry& entry : entries_) judge(entry);
}

void DsImporter::walk(const YamlNode& node, const Parts& section) {
  for (const YamlNode::Entry& child : node.entries) {
    const Parts parts = joined(section, child.key);
    DsEntry entry{.path = path_of(parts),
                  .where = child.where,
                  .parts = parts,
                  .node = &child.value,
                  .row = row_of(parts)};
    const bool is_section = !names_in(parts).empty();
    const bool fits = child.value.kind == YamlNode::Kind::kMap;
    if (is_section && !fits && entry.row == nullptr) {
      static constexpr DsRow kSection{"", "", DsType::kMap, DsFate::kPart, "", "empty"};
      entry.row = &kSection;
    }
    if (entry.row != nullptr || !is_section) entries_.push_back(entry);
    if (is_section && fits) walk(child.value, parts);
  }
}

std::string DsImporter::unknown(const DsEntry& entry) const {
  const Parts section(entry.parts.begin(), entry.parts.end() - 1);
  const std::string& word = entry.parts.back();
  const std::string near = nearest(word, names_in(section));
  std::string text = "unknown key";
  if (!near.empty() && near != "*") return text + " (did you mean '" + near + "'?)";
  for (const DsKey& key : deepspeed_keys()) {
    if (key.parts.back() == word) return text + " here (is it '" + key.path + "'?)";
  }
  return text + " (see 'k25 config --ds-keys' for all keys)";
}

// The type whose parameters are refused with it.
std::string DsImporter::refused_type(const DsEntry& entry) const {
  for (const std::string section : {"optimizer", "scheduler"}) {
    if (!has(section + ".type") || !entry.path.starts_with(section + ".params.")) continue;
    const YamlNode& node = *entries_[index_.at(section + ".type")].node;
    const bool known = section == "optimizer" ? is_known_optimizer(node) : is_known_scheduler(node);
    if (!known) return section + ".type";
  }
  return "";
}

// The key by which the entry is refused: a switch, a refused section, or a type above it.
std::string DsImporter::refusing_scope(const DsEntry& entry) const {
  const auto found = [&](const std::string& path) -> const DsEntry* {
    const auto at = index_.find(path);
    return at == index_.end() ? nullptr : &entries_[at->second];
  };
  for (std::size_t length = entry.parts.size() - 1; length > 0; --length) {
    const Parts above(entry.parts.begin(),
                      entry.parts.begin() + static_cast<std::ptrdiff_t>(length));
    const std::string path = path_of(above);
    if (const DsEntry* section = found(path)) {
      const bool refused = section->row != nullptr && section->row->fate == DsFate::kRefused;
      if (refused && !is_one_of(*section->node, section->row->detail)) return path;
    }
    for (const char* name : {".enabled", ".shared_parameters.enabled"}) {
      const DsEntry* key = found(path + name);
      const bool turns = key != nullptr && key->row != nullptr && key->row->fate == DsFate::kSwitch;
      if (turns && key != &entry && !is_one_of(*key->node, "false") &&
          key->node->kind != YamlNode::Kind::kNull) {
        return key->path;
      }
    }
  }
  return "";
}

void DsImporter::judge(DsEntry& entry) {
  const auto settle = [&](DsStatus status, const std::string& text) {
    entry.status = status;
    entry.text = text;
  };
  if (entry.row == nullptr) return refuse(entry.path, unknown(entry));
  if (entry.node->kind == YamlNode::Kind::kNull) {
    return settle(DsStatus::kNoEffect, "null is as if it were not given");
  }
  if (const std::string type = refused_type(entry); !type.empty()) {
    return settle(DsStatus::kRefused, "with " + type);
  }
  const bool any_will_do =
      entry.row->type != DsType::kMap &&
      (entry.row->fate == DsFate::kNoEffect || entry.row->fate == DsFate::kPart);
  if (is_auto(*entry.node) && !any_will_do && entry.row->type != DsType::kMap) {
    return refuse(entry.path,
                  "'auto' is a placeholder that the Hugging Face Trainer fills in from its own "
                  "arguments; write the value it had");
  }
  const bool placeholder = is_auto(*entry.node) && any_will_do;
  if (!placeholder && !has_type(*entry.node, entry.row->type)) {
    return refuse(entry.path, fmt::format("expected {}, got {}", type_text(entry.row->type),
                                          given(*entry.node)));
  }
  judge_value(entry);
}

void DsImporter::judge_value(DsEntry& entry) {
  const DsRow& row = *entry.row;
  const auto settle = [&](DsStatus status, const std::string& text) {
    entry.status = status;
    entry.text = text;
  };
  switch (row.fate) {
    case DsFate::kMapped:
      return;
    case DsFate::kNoEffect:
      return settle(DsStatus::kNoEffect, row.note);
    case DsFate::kSwitch:
      if (is_true(*entry.node)) return refuse(entry.path, row.note);
      return settle(DsStatus::kNoEffect, "it is off");
    case DsFate::kRefused:
      if (!is_one_of(*entry.node, row.detail)) return refuse(entry.path, row.note);
      return settle(DsStatus::kNoEffect, "asks for nothing that k25 lacks");
    case DsFate::kPart:
      break;
  }
  const std::string scope = refusing_scope(entry);
  if (!scope.empty()) return settle(DsStatus::kRefused, "with " + scope);
  settle(DsStatus::kNoEffect, std::string(row.note) + ", which is off");
}

const YamlNode* DsImporter::value(const std::string& path) const {
  const auto at = index_.find(path);
  if (at == index_.end()) return nullptr;
  const DsEntry& entry = entries_[at->second];
  const bool usable = entry.status == DsStatus::kOpen || entry.status == DsStatus::kMapped;
  return usable ? entry.node : nullptr;
}

bool DsImporter::has(const std::string& path) const {
  const auto at = index_.find(path);
  return at != index_.end() && entries_[at->second].node->kind != YamlNode::Kind::kNull;
}

bool DsImporter::has_section(const std::string& section) const {
  return std::ranges::any_of(
      entries_, [&](const DsEntry& entry) { return entry.path.starts_with(section + "."); });
}

bool DsImporter::flag(const std::string& path, bool fallback) const {
  const YamlNode* node = value(path);
  return node == nullptr ? fallback : is_true(*node);
}

void DsImporter::mapped(const std::string& path, const std::string& text) {
  DsEntry& entry = entries_.at(index_.at(path));
  entry.status = DsStatus::kMapped;
  entry.text = text;
}

void DsImporter::no_effect(const std::string& path, const std::string& text) {
  DsEntry& entry = entries_.at(index_.at(path));
  entry.status = DsStatus::kNoEffect;
  entry.text = text;
}

void DsImporter::refuse(const std::string& path, const std::string& text) {
  DsEntry& entry = entries_.at(index_.at(path));
  entry.status = DsStatus::kRefused;
  entry.text = text;
  entry.problem = true;
}

void DsImporter::set(const std::string& key, const std::string& value, const std::string& path,
                     const std::string& reason) {
  std::erase_if(lines_, [&](const DsLine& line) { return line.key == key; });
  std::string comment = reason;
  if (!path.empty()) {
    const DsEntry& entry = entries_.at(index_.at(path));
    comment = entry.where + ": " + path + (reason.empty() ? "" : ", " + reason);
    mapped(path, key + ": " + value + (reason.empty() ? "" : ", " + reason));
  }
  lines_.push_back({key, value, comment});
}

bool DsImporter::copy(const std::string& path, const std::string& key) {
  const YamlNode* node = value(path);
  if (node == nullptr) return false;
  const auto ours =
      std::ranges::find_if(schema(), [&](const Key& k) { return k.info.path == key; });
  K25_CHECK(ours != schema().end(), "no such key: " + key);
  Config ignored;
  std::string canonical;
  const Mismatch mismatch = ours->read(*node, ignored, canonical);
  if (!mismatch.expected.empty()) {
    // "auto" is ours, DeepSpeed's means something else.
    const std::string expected = mismatch.expected.substr(0, mismatch.expected.find(", or auto"));
    refuse(path, "expected " + expected + ", got " + given(*node));
    return false;
  }
  set(key, canonical, path);
  return true;
}

void DsImporter::ask(const std::string& key, const std::string& comment) {
  lines_.push_back({key, "...", comment, true});
}

std::string DsImporter::made(const std::string& key) const {
  for (const DsLine& line : lines_) {
    if (line.key == key && !line.to_add) return line.value;
  }
  return "";
}

void DsImporter::close() {
  const bool any = !problems().empty();
  for (DsEntry& entry : entries_) {
    if (entry.status != DsStatus::kOpen) continue;
    K25_CHECK(any, "a key was forgotten: " + entry.path);
    entry.status = DsStatus::kRefused;
    entry.text = "not read, because of the problems beside it";
  }
}

Problems DsImporter::problems() const {
  Problems problems;
  for (const DsEntry& entry : entries_) {
    if (entry.problem) problems.push_back(entry.where + ": " + entry.path + ": " + entry.text);
  }
  problems.insert(problems.end(), file_problems_.begin(), file_problems_.end());
  return problems;
}

}  // namespace k25::trainer
