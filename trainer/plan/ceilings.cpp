#include "trainer/plan/ceilings.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "kernels/core/check.h"
#include "trainer/config/parse.h"
#include "trainer/config/printable.h"
#include "trainer/config/yaml_tree.h"

namespace k25::trainer {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "k25 ceilings 1";

struct Field {
  const char* name;
  std::optional<double> Ceilings::* value;
};
constexpr Field kFields[] = {
    {"copy_gb_per_s", &Ceilings::copy_gb},
    {"gemm_tflop_per_s", &Ceilings::gemm_tflop},
    {"attention_forward_tflop_per_s", &Ceilings::attention_forward_tflop},
    {"attention_backward_tflop_per_s", &Ceilings::attention_backward_tflop},
    {"all_gather_gb_per_s", &Ceilings::all_gather_gb},
    {"reduce_scatter_gb_per_s", &Ceilings::reduce_scatter_gb},
    {"triad_gb_per_s", &Ceilings::triad_gb},
};

class Reader {
 public:
  Reader(std::string file, const Json& json) : file_(std::move(file)), json_(json) {}

  CeilingsFile read() const {
    if (!json_.is_object()) refuse("is no JSON object");
    check_keys();
    if (json_.at("format") != kFormat) bad("format", fmt::format("\"{}\"", kFormat));
    CeilingsFile file;
    file.device = text("device");
    file.ranks = integer("ranks");
    if (!json_.at("memory_bytes").is_null()) file.memory = Bytes{integer("memory_bytes")};
    const std::string precision = text("precision");
    if (precision != "fp32" && precision != "bf16") bad("precision", "\"fp32\" or \"bf16\"");
    file.ceilings.precision = precision == "bf16" ? DType::kBFloat16 : DType::kFloat32;
    for (const Field& field : kFields) file.ceilings.*field.value = rate(field.name);
    return file;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    fail(ErrorKind::kUsage,
         fmt::format("{}: {}; make it with k25 doctor --measure FILE", file_, what));
  }
  [[noreturn]] void bad(const std::string& key, const std::string& expected) const {
    refuse(fmt::format(
        "{}: expected {}, got {}", key, expected,
        printable_start(json_.at(key).dump(-1, ' ', false, Json::error_handler_t::replace))));
  }
  void check_keys() const {
    std::vector<std::string> keys = {"format", "device", "ranks", "memory_bytes", "precision"};
    for (const Field& field : kFields) keys.emplace_back(field.name);
    for (const std::string& key : keys) {
      if (!json_.contains(key)) refuse("the key '" + key + "' is missing");
    }
    for (const auto& [key, value] : json_.items()) {
      if (std::ranges::find(keys, key) != keys.end()) continue;
      const std::string near = nearest(key, keys);
      refuse(fmt::format("unknown key '{}'{}", printable_start(key),
                         near.empty() ? "" : " (did you mean '" + near + "'?)"));
    }
  }
  std::string text(const std::string& key) const {
    const Json& value = json_.at(key);
    if (!value.is_string() || value.get_ref<const std::string&>().empty()) bad(key, "a text");
    return value;
  }
  std::int64_t integer(const std::string& key) const {
    const Json& value = json_.at(key);
    if (!value.is_number_integer() || value < 1 || value > (std::int64_t{1} << 53)) {
      bad(key, "a positive integer");
    }
    return value;
  }
  std::optional<double> rate(const std::string& key) const {
    const Json& value = json_.at(key);
    if (value.is_null()) return std::nullopt;
    const double number = value.is_number() ? value.get<double>() : 0.0;
    if (!std::isfinite(number) || number <= 0.0) bad(key, "a number above 0, or null");
    return number;
  }

  std::string file_;
  const Json& json_;
};

}  // namespace

std::string ceilings_json(const CeilingsFile& file) {
  Json json = {{"format", kFormat},
               {"device", file.device},
               {"ranks", file.ranks},
               {"memory_bytes", nullptr},
               {"precision", dtype_name(file.ceilings.precision)}};
  if (file.memory) json["memory_bytes"] = file.memory->n;
  for (const Field& field : kFields) {
    const std::optional<double>& value = file.ceilings.*field.value;
    json[field.name] = value ? Json(*value) : Json();
  }
  return json.dump(2) + "\n";
}

CeilingsFile read_ceilings(const std::filesystem::path& path) {
  return parse_ceilings(read_config_file(path), path.string());
}

CeilingsFile parse_ceilings(const std::string& text, const std::string& file) {
  const std::string name = printable(file);
  Json json;
  try {
    json = Json::parse(text);
  } catch (const Json::exception& error) {
    fail(ErrorKind::kUsage, fmt::format("{}: no JSON ({}); make it with k25 doctor --measure FILE",
                                        name, printable(error.what())));
  }
  return Reader(name, json).read();
}

}  // namespace k25::trainer
