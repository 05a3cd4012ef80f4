#pragma once
// Files that are either the old one or the whole new one, never a half.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <string_view>

#include "kernels/core/check.h"
#include "kernels/core/dtype.h"

namespace k25::data {

/// Writes `content` to a temporary name beside `path`, fsyncs, renames, fsyncs the folder.
/// Throws `kind` naming path and errno text; nothing is left behind then. `before_rename` has the
/// last word: what it throws leaves the old file (the fsync before it may take long).
void write_file_atomically(const std::filesystem::path& path, std::string_view content,
                           ErrorKind kind, const std::function<void()>& before_rename = {});

/// The whole file, which must be a regular one of at most `most` bytes. Throws `kind` naming path
/// and reason.
std::string read_file(const std::filesystem::path& path, ErrorKind kind,
                      Bytes most = {std::numeric_limits<std::int64_t>::max()});

/// fsync of a folder, so that renames inside it survive a power loss.
void sync_folder(const std::filesystem::path& folder, ErrorKind kind);

/// Renames a finished folder into place and syncs the parent.
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to,
                    ErrorKind kind);

}  // namespace k25::data
