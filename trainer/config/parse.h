#pragma once
// Strict YAML -> Config. The problems of one stage are reported in one error (the first 20, and how
// many more), each as
// "cfg.yaml:12:3: unknown key 'optim.weight_deacy' (did you mean 'weight_decay'?)". The stages:
// bytes and tabs; the text as YAML, which ends at its first syntax error; names and values of keys;
// what keys demand of each other.
//
// Refused, always kUsage: unknown keys, dotted ones ("optim.lr: 1") among them, or duplicate keys
// (both lines named), merge keys, anchors, aliases, tags, directives, a second document, an empty
// file, tab indentation, text that is not UTF-8, control characters, NUL in a text, values of
// another type, .nan and .inf, octal looking numbers (010), numbers out of range. Accepted: 1e6 for
// an integer, tab as separator, CRLF, BOM.

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "trainer/config/config.h"

namespace k25::trainer {

/// Where a value came from: "quickstart.yaml:12:3", "--set a.b=c", "--log-format json", "preset
/// small:2:1", "default".
/// By key path, and by element where the value is a list or a map: "optim.freeze[0]".
using Origins = std::map<std::string, std::string>;

struct ParsedConfig {
  Config config;
  Origins origins;
  std::map<std::string, std::string> values;  ///< canonical YAML by key path and by element
  std::map<std::string, std::string> chosen;  ///< what `auto` and null came to, by key path
  std::string resolved;   ///< YAML of every key; parsing it again gives the same Config. `auto`
                          ///< stays `auto`, so the text does not depend on the rank count
  std::string annotated;  ///< the same with "# origin; here value" behind each key (k25 config)
  std::vector<std::string> warnings;  ///< settings without effect, one line each
};

/// What the user wrote for an override that did not come by --set, by its text: "log.format=json"
/// ->
/// "--log-format json".
using OptionPlaces = std::map<std::string, std::string>;

/// `text` under the name `file` (for messages), then `overrides` ("a.b=c", YAML values) in order.
/// `ranks` resolves what depends on the world: mesh.shard auto, batch triple, reduce.slots.
ParsedConfig parse_config(const std::string& text, const std::string& file,
                          const std::vector<std::string>& overrides, std::int64_t ranks,
                          const OptionPlaces& option_places = {});

/// Beyond, a file is no config.
inline constexpr std::uintmax_t kMaxConfigBytes = std::uintmax_t{1} << 20;

/// The text of a config, or of another small file that `noun` calls by its name. A file that is
/// missing, unreadable, larger, a folder, a pipe or a device is kUsage.
std::string read_config_file(const std::filesystem::path& path, const std::string& noun = "config");

/// Reads the file and parses it.
ParsedConfig load_config(const std::filesystem::path& path,
                         const std::vector<std::string>& overrides, std::int64_t ranks);

/// Every key path with its type and default, in order: the frozen list.
struct KeyInfo {
  std::string path, type, default_value, help;
};
std::vector<KeyInfo> config_keys();

/// The names a preset stands for: model keys as YAML text. Throws kUsage with the list of presets.
std::string preset_yaml(const std::string& name);

}  // namespace k25::trainer
