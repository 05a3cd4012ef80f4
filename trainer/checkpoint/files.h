#pragma once
// File system calls whose failure is a checkpoint error, the pointers latest and best, and the
// rules of retention. Private to checkpoints, to opening runs and to `k25 inspect`.

#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace k25::trainer {

/// Runs `body`; an exception of std::filesystem becomes kCheckpoint (it names path and reason).
void with_file_errors(const std::function<void()>& body);

/// What stands at `path`, links followed; not_found when nothing does. Throws kCheckpoint when it
/// may not be looked at: that is not the same as nothing.
std::filesystem::file_type type_at(const std::filesystem::path& path);
bool is_there(const std::filesystem::path& path);
bool is_folder(const std::filesystem::path& path);

/// Throws kCheckpoint when something stands at a checkpoint's place that is no folder.
void require_checkpoint_folder(const std::filesystem::path& folder);

/// Throws kCheckpoint when it is no folder, or when the folder or a file in it may not be read:
/// that is no damage, and must not be called so.
void require_readable(const std::filesystem::path& folder);

/// What the JSON library says, without its own tags and without raw bytes of the file.
std::string json_reason(const std::exception& error);

/// Throws kCheckpoint when one of a run's files (lock, config.yaml, plans.json, metrics.jsonl,
/// latest, best) is there and no regular file (a pipe would make the run wait for ever), or one of
/// its folders (checkpoints, tensorboard) is there and no folder.
void require_regular_files(const std::filesystem::path& run_dir);

/// What RUN/latest or RUN/best says: a folder's name, or "" when there is none.
std::string read_pointer(const std::filesystem::path& run_dir, const std::string& pointer);
void write_pointer(const std::filesystem::path& run_dir, const std::string& pointer,
                   const std::string& folder_name, const std::function<void()>& before_rename = {});

/// Readers see the whole folder or none: renamed first, then removed. What cannot be removed stays
/// under the new name, which remove_leftovers() knows.
void remove_whole(const std::filesystem::path& folder);

/// Makes the empty folder step-N.tmp for step-N, whatever stood there.
void make_unfinished(const std::filesystem::path& folder);

/// step-N.set-aside-M beside a checkpoint's folder, the first M that is free.
std::filesystem::path free_name_aside(const std::filesystem::path& folder);

/// Moves a finished folder to its name. What stands there is not this run's doing (whoever starts
/// sets later steps aside) and may be a checkpoint: it is set aside. Returns its new name, or "".
std::string move_into_place(const std::filesystem::path& unfinished,
                            const std::filesystem::path& folder);

/// Called when `newest` is in place: keeps the `keep` newest steps up to it, the one RUN/best names
/// and `resumed_from`; removes the other steps and what remove_leftovers() does. Later steps are
/// not counted and stay; so does a folder that holds another step than its name says. Returns what
/// was not removed, a line each.
std::vector<std::string> retain(const std::filesystem::path& run_dir, std::int64_t newest,
                                std::int64_t keep,
                                const std::optional<std::filesystem::path>& resumed_from);

/// What a run that was killed in the middle of writing left behind: checkpoints/step-N*.tmp folders
/// and the temporary files of latest, best, config.yaml, plans.json and metrics.jsonl, known by the
/// names that only k25 gives. Nobody else may be writing there (hold the lock). Returns what could
/// not be removed, a line each.
std::vector<std::string> remove_leftovers(const std::filesystem::path& run_dir);

}  // namespace k25::trainer
