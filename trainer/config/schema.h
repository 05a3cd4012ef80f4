#pragma once
// Every key of a config: its path, type, default, help, and how a node becomes a field of Config.

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/config/parse.h"
#include "trainer/config/yaml_tree.h"

namespace k25::trainer {

/// What was expected instead of a node; empty when the node is fine. For an element of a list or a
/// map, what it is called ("[2]", ".law") and where it stands.
struct Mismatch {
  Mismatch(std::string text) : expected(std::move(text)) {}  // NOLINT(google-explicit-constructor)
  Mismatch(const char* text) : expected(text) {}             // NOLINT(google-explicit-constructor)
  Mismatch(std::string text, std::string name, const YamlNode& node)
      : expected(std::move(text)), element(std::move(name)), at(&node) {}

  std::string expected, element;
  const YamlNode* at = nullptr;
};

struct Key {
  KeyInfo info;           ///< default_value "" means required
  bool open_map = false;  ///< children are user names (data.mixture.weights)
  /// Reads the node into the config. `canonical` receives the value's YAML.
  std::function<Mismatch(const YamlNode&, Config&, std::string& canonical)> read;
};

const std::vector<Key>& schema();

}  // namespace k25::trainer
