#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "parallel/comm/communicator.h"

namespace k25::parallel {

/// Collective: every rank's text, by rank.
std::vector<std::string> gather_texts(Communicator& comm, std::string_view name,
                                      const std::string& text);

}  // namespace k25::parallel
