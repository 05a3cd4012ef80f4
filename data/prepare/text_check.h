#pragma once
// Whether a file is text that the corpus can hold, without holding the file.

#include <filesystem>
#include <string>
#include <string_view>

namespace k25::data {

/// Throws kData naming file, byte offset, line and column for a file that is empty, not UTF-8,
/// holds U+2581, or is mostly NUL bytes.
void check_text_file(const std::filesystem::path& path);

/// Bytes outside printable ASCII and UTF-8 as \xNN, for messages.
std::string printable(std::string_view text);

}  // namespace k25::data
