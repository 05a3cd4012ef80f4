#pragma once
// Checks of command-line values, as strict as those of a config's, and told in the same words.

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "parallel/comm/communicator.h"
#include "trainer/config/read_values.h"

namespace k25::trainer {

/// CLI11's own integers take 010 for 8, and its ranges print 309 digits.
CLI::Validator integer_option(std::int64_t low, std::int64_t high = kMaxInteger);
/// CLI11's own checks compare, and nan passes every comparison.
CLI::Validator number_option(const NumberRange& range);

/// A path of the command line must exist (kUsage); what it holds is another matter.
void require_path(const std::string& path);
/// The same, decided by rank 0. Collective.
void require_path(parallel::Communicator& comm, const std::string& path);

}  // namespace k25::trainer
