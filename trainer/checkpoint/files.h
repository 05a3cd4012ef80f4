#pragma once
// File system calls whose failure is a checkpoint error, the pointers latest and best, and the
// rules of retention. Private to checkpoints and to opening runs.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace k25::trainer {

/// Runs `body`; an exception of std::filesystem becomes kCheckpoint (it names path and reason).
void with_file_errors(const std::function<void()>& body);

/// What RUN/latest or RUN/best says: a folder's name, or "" when there is none.
std::string read_pointer(const std::filesystem::path& run_dir, const std::string& pointer);
void write_pointer(const std::filesystem::path& run_dir, const std::string& pointer,
                   const std::string& folder_name);

/// Readers see the whole folder or none: renamed first, then removed.
void remove_whole(const std::filesystem::path& folder);

/// Moves a finished folder to its name. One that stands there (a broken one, or an abandoned run's)
/// is replaced.
void move_into_place(const std::filesystem::path& unfinished, const std::filesystem::path& folder);

/// Called when `newest` is in place: keeps the `keep` newest steps up to it, the one RUN/best names
/// and `resumed_from`; removes the other steps and what remove_leftovers() does. Later steps are
/// broken ones that `auto` passed over: they are not counted and stay until they are replaced.
void retain(const std::filesystem::path& run_dir, std::int64_t newest, std::int64_t keep,
            const std::optional<std::filesystem::path>& resumed_from);

/// What a run that was killed in the middle of writing left behind: checkpoints/step-N*.tmp folders
/// and the temporary files of latest, best, config.yaml and metrics.jsonl, known by the names that
/// only k25 gives. Nobody else may be writing there (hold the lock).
void remove_leftovers(const std::filesystem::path& run_dir);

}  // namespace k25::trainer
