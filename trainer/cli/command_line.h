#pragma once
// The command line as the ranks of one job share it.

#include <CLI/CLI.hpp>
#include <span>
#include <string>

#include "parallel/comm/communicator.h"

namespace k25::trainer {

using Arguments = std::span<const char* const>;  ///< without the program's name

/// Whether this process is rank 0; known before MPI is.
bool is_first_process();

/// What is wrong with an argument without text, such as an unset shell variable gives: the rest of
/// the program takes "" for "not given". "" when there is none.
std::string problem_of_empty_arguments(Arguments arguments);

/// What `error` means, in words that name the first word at fault, and the known one that is near.
std::string command_line_problem(const CLI::App& app, const CLI::ParseError& error,
                                 Arguments arguments);

/// Commands that do not communicate are run by rank 0 alone, so mpirun must have started one
/// program: "" or what to do when there are several ("mpirun -np 1 k25 ... : -np 1 k25 ...").
std::string problem_of_several_programs();

/// Prints a usage error that was found before MPI starts: rank 0 at once. Another rank may be the
/// only one with it and speaks unless the launcher, which ends the job with its first failed
/// process, comes first.
void tell_usage_error(const std::string& message);

/// Collective: kUsage unless every rank has the arguments of rank 0.
void require_same_command_line(parallel::Communicator& comm, Arguments arguments);

}  // namespace k25::trainer
