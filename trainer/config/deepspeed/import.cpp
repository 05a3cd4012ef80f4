#include "trainer/config/deepspeed/import.h"

#include <algorithm>
#include <utility>

#include "kernels/core/check.h"
#include "trainer/config/deepspeed/importer.h"
#include "trainer/config/deepspeed/json_tree.h"
#include "trainer/config/printable.h"
#include "trainer/config/read_values.h"
#include "trainer/config/schema.h"

namespace k25::trainer {
namespace {

std::string shown(const YamlNode& node) {
  if (node.kind == YamlNode::Kind::kNull) return "null";
  if (node.kind == YamlNode::Kind::kScalar) return printable_start(node.scalar);
  const std::string text = given(node);
  return text.substr(text.find_first_of("[{"));
}

const char* status_text(DsStatus status) {
  switch (status) {
    case DsStatus::kMapped:
      return "mapped        ";
    case DsStatus::kNoEffect:
      return "without effect";
    case DsStatus::kRefused:
      return "refused       ";
    case DsStatus::kOpen:
      break;
  }
  fail(ErrorKind::kInternal, "a key was forgotten");
}

std::string report_of(const DsImporter& importer) {
  std::string text = "# What became of the keys of " + importer.file() + ":\n";
  for (const DsEntry& entry : importer.entries()) {
    text += std::string("# ") + status_text(entry.status) + "  " + entry.where + ": " + entry.path +
            " = " + shown(*entry.node) + (entry.status == DsStatus::kMapped ? " -> " : ": ") +
            entry.text + "\n";
  }
  return text;
}

// In the order of the schema, nested by section.
std::string fragment_of(std::vector<DsLine> lines) {
  const auto rank = [](const DsLine& line) {
    const auto key =
        std::ranges::find_if(schema(), [&](const Key& k) { return k.info.path == line.key; });
    return key - schema().begin();
  };
  std::ranges::stable_sort(lines, {}, rank);
  NestedYaml yaml;
  for (const DsLine& line : lines) {
    yaml.add(line.key, line.to_add ? "# " : "", line.value, line.comment);
  }
  return yaml.text();
}

}  // namespace

DeepSpeedImport import_deepspeed(const std::string& text, const std::string& file) {
  DeepSpeedImport result;
  const std::string name = printable(file);
  const YamlNode root = parse_json(text, name, result.problems);
  if (!result.problems.empty()) return result;
  DsImporter importer(root, name);
  map_deepspeed(importer);
  importer.close();
  result.problems = importer.problems();
  result.report = report_of(importer);
  if (!result.problems.empty()) return result;
  result.yaml = "# Add run.dir, the model and data sections, and each line that is a comment.\n" +
                fragment_of(importer.lines());
  return result;
}

}  // namespace k25::trainer
