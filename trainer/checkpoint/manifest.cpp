#include "trainer/checkpoint/manifest.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "data/io/atomic_file.h"
#include "trainer/checkpoint/checkpoint.h"

namespace k25::trainer {
namespace {

using Json = nlohmann::json;

constexpr const char* kFormat = "k25-checkpoint";
constexpr int kVersion = 1;

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

ManifestUnit unit_from_json(const Json& j) {
  ManifestUnit unit{.name = j.at("name"), .numel = j.at("numel")};
  for (const Json& p : j.at("parameters")) {
    unit.parameters.push_back({p.at("name"), p.at("shape"), p.at("offset")});
  }
  for (const Json& r : j.at("ranges")) {
    unit.ranges.push_back({r.at("file"), r.at("begin"), r.at("length")});
  }
  return unit;
}

Manifest manifest_from_json(const Json& j, const std::string& path) {
  if (j.at("format") != kFormat || j.at("version") != kVersion) {
    fail(ErrorKind::kCheckpoint,
         fmt::format("{}: format '{}' version {} is not known; this k25 reads '{}' version {}",
                     path, j.at("format").get<std::string>(), j.at("version").get<int>(), kFormat,
                     kVersion));
  }
  Manifest manifest{.state = state_from_json(j.at("state").dump(), path), .config = j.at("config")};
  for (const Json& unit : j.at("units")) manifest.units.push_back(unit_from_json(unit));
  for (const Json& file : j.at("files")) {
    manifest.files.push_back(
        {file.at("name"), data::FileDigest{file.at("size"), file.at("blocks")}});
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
  const Json& digests = j.at("digests");
  manifest.digests = {digests.at("master"), digests.at("m"), digests.at("v")};
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
  const Json j = {{"format", kFormat},
                  {"version", kVersion},
                  {"state", Json::parse(to_json(manifest.state))},
                  {"config", manifest.config},
                  {"units", units},
                  {"files", files},
                  {"digests",
                   {{"master", manifest.digests.master},
                    {"m", manifest.digests.m},
                    {"v", manifest.digests.v}}}};
  return j.dump(1) + "\n";
}

Manifest read_manifest(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / kManifestName;
  std::error_code unreadable;
  const bool there = std::filesystem::exists(path, unreadable);
  if (unreadable) fail(ErrorKind::kCheckpoint, path.string() + ": " + unreadable.message());
  if (!there) {
    fail(ErrorKind::kCheckpoint,
         folder.string() + ": no " + kManifestName + ", so this checkpoint is unfinished or none");
  }
  const std::string text = data::read_file(path, ErrorKind::kCheckpoint);
  try {
    return manifest_from_json(Json::parse(text), path.string());
  } catch (const Json::exception& error) {
    fail(ErrorKind::kCheckpoint, path.string() + ": damaged manifest: " + error.what());
  }
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
