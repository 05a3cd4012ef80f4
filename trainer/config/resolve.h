#pragma once
// The part of a configuration that depends on other keys and on the number of ranks.

#include <cstdint>
#include <map>
#include <string>

#include "trainer/config/config.h"
#include "trainer/config/parse.h"
#include "trainer/config/yaml_tree.h"

namespace k25::trainer {

/// Where keys stand, for messages.
struct Places {
  const std::string& file;
  const Origins& origins;
};

/// Fills what `auto` and null stand for and checks what keys demand of each other. `chosen`
/// receives "key -> value" for everything that was filled in.
void resolve_config(Config& config, std::int64_t ranks, const Places& places,
                    std::map<std::string, std::string>& chosen, Problems& problems);

}  // namespace k25::trainer
