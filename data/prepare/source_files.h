#pragma once
// From folders to documents: which files are taken, what they must be, and reading them one
// document at a time.
//
// * Files are taken in the byte order of their path relative to the folder. Symbolic links are
// skipped and
//   counted, and so is everything whose name begins with a dot. Anything else that is not a regular
//   file or a folder is an error.
// * Every file must be UTF-8 without U+2581, and not empty. More than one NUL byte in eight is
// taken for a
//   binary file (UTF-16 text, a block of zeros).
// * A file is JSON lines when its name ends in ".jsonl" or ".ndjson" (in any case); or when it
// begins with
//   '{' and its first line is a JSON object or any of its lines a record (records.h). Then every
//   line that is not blank must be a record: damage is told, not taken for text.
// * A file that is one array of records, or one record over several lines, is an error. Other JSON
//   is text as every other file is, one document: an object over several lines, or a ".json" of
//   one line that is no record.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "data/prepare/records.h"

namespace k25::data {

enum class FileForm : std::uint8_t { kText, kJsonLines };

struct SourceFile {
  std::filesystem::path path;
  std::string name;  ///< relative to its folder
  std::int32_t domain = 0;
  FileForm form = FileForm::kText;
  bool form_by_content = false;  ///< JSON lines without the extension
};

struct SourceFiles {
  std::vector<SourceFile> files;
  std::vector<std::string> domains;
  std::int64_t links_skipped = 0;
  std::int64_t hidden_skipped = 0;
};

/// Walks the folders and checks every file. Throws kData naming file and offset or line, kUsage for
/// two folders with one name and for one that does not exist.
SourceFiles find_source_files(const std::vector<std::filesystem::path>& folders);

/// Calls `each` for the documents of a file, in order; Record::source is complete.
void for_each_record(const SourceFile& file, const std::function<void(const Record&)>& each);

}  // namespace k25::data
