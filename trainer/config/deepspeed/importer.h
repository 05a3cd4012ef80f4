#pragma once
// The keys of one DeepSpeed file, what became of each, and the keys of ours that they make.
// Internal to trainer/config/deepspeed.

#include <map>
#include <string>
#include <vector>

#include "trainer/config/deepspeed/keys.h"
#include "trainer/config/yaml_tree.h"

namespace k25::trainer {

enum class DsStatus : std::uint8_t { kOpen, kMapped, kNoEffect, kRefused };

/// A key of the file.
struct DsEntry {
  std::string path, where;
  std::vector<std::string> parts;
  const YamlNode* node = nullptr;
  const DsRow* row = nullptr;  ///< null: unknown
  DsStatus status = DsStatus::kOpen;
  std::string text;      ///< why, or what it became
  bool problem = false;  ///< refused on its own account, not with another key
};

/// A line of the fragment.
struct DsLine {
  std::string key, value, comment;
  bool to_add = false;  ///< a comment that asks for the key
};

class DsImporter {
 public:
  /// Walks the tree and judges every key but the mapped ones.
  DsImporter(const YamlNode& root, std::string file);

  /// The value of a mapped key that was given and is not refused, else null.
  const YamlNode* value(const std::string& path) const;
  /// Whether the file has the key, with another value than null.
  bool has(const std::string& path) const;
  /// Whether the file has a key of the section.
  bool has_section(const std::string& section) const;
  bool flag(const std::string& path, bool fallback) const;

  void mapped(const std::string& path, const std::string& text);
  void no_effect(const std::string& path, const std::string& text);
  void refuse(const std::string& path, const std::string& text);
  /// A problem of what the file lacks.
  void refuse_file(const std::string& text) { file_problems_.push_back(file_ + ": " + text); }

  /// `key` of ours with `value`, made from `path` ("" and a reason: DeepSpeed's default).
  void set(const std::string& key, const std::string& value, const std::string& path,
           const std::string& reason = "");
  /// The value of `path` read as `key` of ours, by its own rules; refused when it is none.
  bool copy(const std::string& path, const std::string& key);
  void ask(const std::string& key, const std::string& comment);
  /// The value of `key` so far, "" when there is none.
  std::string made(const std::string& key) const;

  const std::vector<DsEntry>& entries() const { return entries_; }
  const std::vector<DsLine>& lines() const { return lines_; }
  const std::string& file() const { return file_; }
  Problems problems() const;
  /// Settles the mapped keys that a problem of another one kept from being read.
  void close();

 private:
  void walk(const YamlNode& node, const std::vector<std::string>& section);
  void judge(DsEntry& entry);
  void judge_value(DsEntry& entry);
  std::string refusing_scope(const DsEntry& entry) const;
  std::string refused_type(const DsEntry& entry) const;
  std::string unknown(const DsEntry& entry) const;

  std::string file_;
  std::vector<DsEntry> entries_;
  std::map<std::string, std::size_t> index_;
  std::vector<DsLine> lines_;
  Problems file_problems_;
};

bool is_known_optimizer(const YamlNode& type);
bool is_known_scheduler(const YamlNode& type);

/// Makes keys of ours of the mapped ones.
void map_deepspeed(DsImporter& importer);

}  // namespace k25::trainer
