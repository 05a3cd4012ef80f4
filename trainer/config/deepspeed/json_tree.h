#pragma once
// Strict JSON (RFC 8259) as the tree that YAML gives, with a place for every node. A YAML parser
// would take comments, bare words and trailing commas, and refuse tabs.

#include <string>

#include "trainer/config/yaml_tree.h"

namespace k25::trainer {

/// The object that `text` holds. The first syntax error ends the reading; duplicate keys are all
/// told. Problems are appended, each "FILE:line:column: what is wrong". A byte order mark is
/// skipped. Texts are quoted scalars, numbers and booleans plain ones with the text of the file.
YamlNode parse_json(const std::string& text, const std::string& file, Problems& problems);

}  // namespace k25::trainer
