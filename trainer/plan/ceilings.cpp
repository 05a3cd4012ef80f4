#include "trainer/plan/ceilings.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

#include "data/io/atomic_file.h"
#include "kernels/core/check.h"
#include "trainer/config/parse.h"
#include "trainer/config/printable.h"
#include "trainer/config/yaml_tree.h"

namespace k25::trainer {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kFormat = "k25 ceilings 1";
constexpr std::string_view kAnyFormat = "k25 ceilings ";  // of any version

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

// Whatever its version and its values are.
bool holds_ceilings(const std::filesystem::path& path) {
  const std::string text =
      data::read_file(path, ErrorKind::kUsage, {static_cast<std::int64_t>(kMaxConfigBytes)});
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("format") || !json.at("format").is_string()) return false;
  return json.at("format").get_ref<const std::string&>().starts_with(kAnyFormat);
}

// "" where ceilings may be written.
std::string what_stands_at(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  switch (fs::symlink_status(path, error).type()) {
    case fs::file_type::not_found:
      return "";
    case fs::file_type::directory:
      return "is a folder";
    case fs::file_type::symlink:
      return "is a link";
    case fs::file_type::regular:
      break;
    case fs::file_type::none:
      return "cannot be looked at (" + error.message() + ")";
    default:
      return "is a device, a pipe or a socket";
  }
  try {
    return holds_ceilings(path) ? "" : "is there already and holds something else";
  } catch (const Error&) {
    return "is there already and cannot be read as ceilings";
  }
}

}  // namespace

void require_place_for_ceilings(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  const std::string name = printable(path.string());
  if (const std::string what = what_stands_at(path); !what.empty()) {
    fail(ErrorKind::kUsage,
         fmt::format("{}: {}; only a file of ceilings is replaced: name another file, or remove "
                     "this one",
                     name, what));
  }
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  if (::access(folder.c_str(), W_OK | X_OK) == 0) return;
  fail(ErrorKind::kUsage,
       fmt::format("{}: no file can be made in {} ({}); name a file in a folder that is there and "
                   "that this user may write to",
                   name, printable(folder.string()), std::strerror(errno)));
}

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
  return parse_ceilings(read_config_file(path, "list of ceilings"), path.string());
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
