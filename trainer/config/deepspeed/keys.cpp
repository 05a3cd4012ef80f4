#include "trainer/config/deepspeed/keys.h"

#include <sstream>
#include <string_view>

#include "trainer/config/yaml_tree.h"

namespace k25::trainer {
namespace {

constexpr std::string_view kTechnique = "TECHNIQUE";
constexpr const char* kTechniques[] = {"weight_quantization", "activation_quantization",
                                       "sparse_pruning",      "row_pruning",
                                       "head_pruning",        "channel_pruning"};

void add_keys(const DsRow& row, const std::string& section, std::vector<DsKey>& keys) {
  std::istringstream names(row.names);
  for (std::string name; names >> name;) {
    const std::string path = section.empty() ? name : section + "." + name;
    keys.push_back({path, split_path(path), &row});
  }
}

std::vector<DsKey> build_keys() {
  std::vector<DsKey> keys;
  for (const auto& rows : {deepspeed_training_rows(), deepspeed_feature_rows()}) {
    for (const DsRow& row : rows) {
      const std::string section = row.section;
      const std::size_t at = section.find(kTechnique);
      if (at == std::string::npos) {
        add_keys(row, section, keys);
        continue;
      }
      for (const char* technique : kTechniques) {
        add_keys(row, std::string(section).replace(at, kTechnique.size(), technique), keys);
      }
    }
  }
  return keys;
}

}  // namespace

const std::vector<DsKey>& deepspeed_keys() {
  static const std::vector<DsKey> kKeys = build_keys();
  return kKeys;
}

std::string fate_text(const DsRow& row) {
  switch (row.fate) {
    case DsFate::kMapped:
      return "mapped";
    case DsFate::kNoEffect:
      return "without effect";
    case DsFate::kSwitch:
      return "refused if true";
    case DsFate::kPart:
      return "follows its feature";
    case DsFate::kRefused:
      break;
  }
  std::string values = row.detail;
  for (std::size_t at = values.find(' '); at != std::string::npos; at = values.find(' ', at + 4)) {
    values.replace(at, 1, " or ");
  }
  return values.empty() ? "refused" : "refused unless " + values;
}

const char* type_text(DsType type) {
  switch (type) {
    case DsType::kBool:
      return "true or false";
    case DsType::kInteger:
      return "an integer";
    case DsType::kNumber:
      return "a number";
    case DsType::kText:
      return "a text";
    case DsType::kList:
      return "a list";
    case DsType::kMap:
      return "an object";
    case DsType::kAny:
      break;
  }
  return "any value";
}

}  // namespace k25::trainer
