#pragma once
// Every key of a config: its path, type, default, help, and how a node becomes a field of Config.

#include <functional>
#include <string>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/config/parse.h"
#include "trainer/config/yaml_tree.h"

namespace k25::trainer {

struct Key {
  KeyInfo info;           ///< default_value "" means required
  bool open_map = false;  ///< children are user names (data.mixture.weights)
  /// Reads the node into the config. Returns what was expected, or "" when the node is fine;
  /// `canonical` receives the value's YAML.
  std::function<std::string(const YamlNode&, Config&, std::string& canonical)> read;
};

const std::vector<Key>& schema();

}  // namespace k25::trainer
