#include "trainer/checkpoint/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "data/io/atomic_file.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/files.h"
#include "trainer/checkpoint/json_value.h"
#include "trainer/checkpoint/step_folder.h"

namespace k25::trainer {
namespace {

using Json = nlohmann::json;

constexpr const char* kFormat = "k25-checkpoint";
constexpr int kVersion = 1;
constexpr const char* kSelfDigest = "sha256";

Json unit_json(const ManifestUnit& unit) {
  Json parameters = Json::array(), ranges = Json::array();
  for (const ManifestParameter& p : unit.parameters) {
    parameters.push_back({{"name", p.name}, {"shape", p.shape}, {"offset", p.offset}});
  }
  for (const ManifestRange& r : unit.ranges) {
    ranges.push_back({{"file", r.file}, {"begin", r.begin}, {"length", r.length}});
  }
  return {
      {"name", unit.name}, {"numel", unit.numel}, {"parameters", parameters}, {"ranges", ranges}};
}

ManifestUnit unit_from_json(const JsonValue& j) {
  ManifestUnit unit{.name = j.at("name").text(), .numel = j.at("numel").integer()};
  for (const JsonValue& p : j.at("parameters").items()) {
    ManifestParameter parameter{.name = p.at("name").text(), .offset = p.at("offset").integer()};
    for (const JsonValue& d : p.at("shape").items()) parameter.shape.push_back(d.integer());
    unit.parameters.push_back(std::move(parameter));
  }
  for (const JsonValue& r : j.at("ranges").items()) {
    constexpr std::int64_t kAny = JsonValue::kMost;  // told below, with the unit
    unit.ranges.push_back(
        {static_cast<int>(r.at("file").integer(-1, std::numeric_limits<int>::max())),
         r.at("begin").integer(-kAny), r.at("length").integer(-kAny)});
  }
  return unit;
}

ManifestFile file_from_json(const JsonValue& j) {
  ManifestFile file{.name = j.at("name").text(), .digest = {.size = j.at("size").integer()}};
  for (const JsonValue& block : j.at("blocks").items()) file.digest.blocks.push_back(block.text());
  return file;
}

// Of everything besides the digest itself, in the one form that dump() has for it: spaces and the
// order of keys do not matter.
std::string digest_of(const Json& j) {
  Json content = j;
  content.erase(kSelfDigest);
  return data::sha256_hex(content.dump());
}

void require_self_digest(const Json& j, const std::string& path) {
  if (!j.contains(kSelfDigest)) {
    fail(ErrorKind::kCheckpoint,
         fmt::format("{}: damaged manifest: it has no '{}' of its own content (an older k25 wrote "
                     "it, or somebody changed it), so its counters cannot be trusted; go on from "
                     "another checkpoint, or start over with --resume none",
                     path, kSelfDigest));
  }
  const std::string expected = JsonValue(j, path + ": damaged manifest").at(kSelfDigest).text();
  const std::string actual = digest_of(j);
  if (expected == actual) return;
  fail(ErrorKind::kCheckpoint,
       fmt::format("{}: damaged manifest: its content has SHA-256 {}, it says {}: it was changed "
                   "after it was written",
                   path, actual, expected));
}

// A folder named step-N holds step N, also when it was set aside (step-000004.set-aside-1).
void require_step_of_name(const std::filesystem::path& folder, std::int64_t step) {
  std::filesystem::path clean = std::filesystem::absolute(folder).lexically_normal();
  if (!clean.has_filename()) clean = clean.parent_path();
  const std::string name = clean.filename().string();
  if (name.rfind("step-", 0) != 0) return;
  const std::size_t end = std::min(name.find_first_not_of("0123456789", 5), name.size());
  if (end == 5 || (end < name.size() && name[end] != '.')) return;
  const std::string digits = name.substr(5, end - 5);
  const std::size_t leading = std::min(digits.find_first_not_of('0'), digits.size() - 1);
  if (digits.substr(leading) == std::to_string(step)) return;
  fail(ErrorKind::kCheckpoint,
       fmt::format("{}: the folder is named step {}, its {} says step {}; give the folder back its "
                   "name, {}",
                   folder.string(), digits, kManifestName, step, step_folder_name(step)));
}

Manifest manifest_from_json(const Json& j, const std::string& path) {
  if (!j.is_object()) {
    fail(ErrorKind::kCheckpoint, path + ": damaged manifest: it holds no JSON object");
  }
  const JsonValue top(j, path + ": damaged manifest");
  const std::string format = top.at("format").text();
  const std::int64_t version = top.at("version").integer();
  if (format != kFormat || version != kVersion) {
    fail(ErrorKind::kCheckpoint,
         fmt::format("{}: format '{}' version {} is not known; this k25 reads '{}' version {}",
                     path, format, version, kFormat, kVersion));
  }
  require_self_digest(j, path);
  top.at("state");  // or it is missing
  Manifest manifest{.state = state_from_json(j.at("state").dump(), path),
                    .config = top.at("config").text()};
  for (const JsonValue& unit : top.at("units").items()) {
    manifest.units.push_back(unit_from_json(unit));
  }
  for (const JsonValue& file : top.at("files").items()) {
    manifest.files.push_back(file_from_json(file));
    if (std::filesystem::path(manifest.files.back().name).has_parent_path()) {
      fail(ErrorKind::kCheckpoint, path + ": file name '" + manifest.files.back().name +
                                       "' leaves the checkpoint's folder");
    }
  }
  for (const ManifestUnit& unit : manifest.units) {
    for (const ManifestRange& range : unit.ranges) {
      if (range.file < 0 || range.file >= static_cast<int>(manifest.files.size()) ||
          range.begin < 0 || range.length < 0 || range.length > unit.numel - range.begin) {
        fail(ErrorKind::kCheckpoint, path + ": unit '" + unit.name + "' has a range outside its " +
                                         std::to_string(unit.numel) + " elements or files");
      }
    }
  }
  const JsonValue digests = top.at("digests");
  manifest.digests = {digests.at("master").text(), digests.at("m").text(), digests.at("v").text()};
  return manifest;
}

}  // namespace

std::string to_json(const Manifest& manifest) {
  Json units = Json::array(), files = Json::array();
  for (const ManifestUnit& unit : manifest.units) units.push_back(unit_json(unit));
  for (const ManifestFile& file : manifest.files) {
    files.push_back(
        {{"name", file.name}, {"size", file.digest.size}, {"blocks", file.digest.blocks}});
  }
  Json j = {{"format", kFormat},
            {"version", kVersion},
            {"state", Json::parse(to_json(manifest.state))},
            {"config", manifest.config},
            {"units", units},
            {"files", files},
            {"digests",
             {{"master", manifest.digests.master},
              {"m", manifest.digests.m},
              {"v", manifest.digests.v}}}};
  j[kSelfDigest] = digest_of(j);
  return j.dump(1) + "\n";
}

Manifest read_manifest(const std::filesystem::path& folder) {
  require_checkpoint_folder(folder);
  const std::filesystem::path path = folder / kManifestName;
  if (!is_there(path)) {
    fail(ErrorKind::kCheckpoint,
         folder.string() + ": no " + kManifestName + ", so this checkpoint is unfinished or none");
  }
  const std::string text = data::read_file(path, ErrorKind::kCheckpoint);
  try {
    Manifest manifest = manifest_from_json(Json::parse(text), path.string());
    require_step_of_name(folder, manifest.state.step);
    return manifest;
  } catch (const Json::exception& error) {
    fail(ErrorKind::kCheckpoint, path.string() + ": damaged manifest: " + json_reason(error));
  }
}

void require_own_step(const std::filesystem::path& folder) {
  std::optional<std::int64_t> step;
  try {
    const Json j = Json::parse(data::read_file(folder / kManifestName, ErrorKind::kCheckpoint));
    step = state_from_json(j.at("state").dump(), folder.string()).step;
  } catch (const std::exception&) {
    return;  // damaged or none: it says nothing else
  }
  require_step_of_name(folder, *step);
}

ManifestUnit describe_unit(const parallel::UnitLayout& layout) {
  ManifestUnit unit{.name = layout.name, .numel = layout.numel};
  for (std::size_t i = 0; i < layout.parameters.size(); ++i) {
    unit.parameters.push_back(
        {layout.parameters[i].name, layout.parameters[i].shape, layout.offsets[i]});
  }
  return unit;
}

std::string shard_file_name(int index) { return fmt::format("rank-{:05}.h5", index); }

std::string dataset_name(const std::string& unit, const std::string& tensor) {
  return "/units/" + unit + "/" + tensor;
}

}  // namespace k25::trainer
