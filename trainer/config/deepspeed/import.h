#pragma once
// A DeepSpeed config as keys of ours: each key is mapped, has no effect here, or is refused.

#include <string>

#include "trainer/config/yaml_tree.h"

namespace k25::trainer {

struct DeepSpeedImport {
  std::string yaml;  ///< our keys, each with the place it came from; empty when there are problems
  std::string report;  ///< comment lines: every key of the file and what became of it
  Problems problems;   ///< "FILE:line:column: key: reason", in the order of the file
};

/// `text` under the name `file`. The fragment lacks what a DeepSpeed config does not hold (model,
/// data, run directory); lines of it that are comments name what to add.
DeepSpeedImport import_deepspeed(const std::string& text, const std::string& file);

}  // namespace k25::trainer
