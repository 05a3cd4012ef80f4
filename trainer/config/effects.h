#pragma once
// Settings that change nothing, or less than they say. They are no errors: a short trial of a long
// run is full of them.

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/config/parse.h"

namespace k25::trainer {

/// "optim.lr 0: has no effect because ... (cfg.yaml:17:7)", one line each, in the order of the
/// keys. Keys that have their default value are not looked at. `parsed` is resolved.
std::vector<std::string> settings_without_effect(const ParsedConfig& parsed, std::int64_t ranks);

/// What only the corpus shows.
struct DataFacts {
  std::int64_t tokens = 0;             ///< of all documents of the corpus
  std::int64_t validation_tokens = 0;  ///< of those kept for validation
  std::vector<std::string> domains_without_training;
};
std::vector<std::string> settings_without_effect(const ParsedConfig& parsed,
                                                 const DataFacts& facts);

}  // namespace k25::trainer
