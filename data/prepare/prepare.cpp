#include "data/prepare/prepare.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "data/corpus/corpus.h"
#include "data/io/atomic_file.h"
#include "data/prepare/content.h"
#include "data/prepare/work_folder.h"
#include "kernels/core/check.h"

namespace k25::data {

namespace {

namespace fs = std::filesystem;

void check_options(const PrepareOptions& options) {
  if (options.folders.empty()) {
    fail(ErrorKind::kUsage, "no folder is given: name one or more folders with documents");
  }
  if (options.out.empty()) fail(ErrorKind::kUsage, "--out is empty: name the corpus to write");
  if (!(options.containment > 0 && options.containment <= 1)) {
    fail(ErrorKind::kUsage,
         "containment " + std::to_string(options.containment) + " is outside (0, 1]");
  }
  if (options.max_file_tokens < 1) {
    fail(ErrorKind::kUsage,
         "max_file_tokens " + std::to_string(options.max_file_tokens) + " is not positive");
  }
}

/// The path without "." parts and without a slash at the end.
fs::path tidy(const fs::path& path) {
  const fs::path normal = fs::absolute(path).lexically_normal();
  return normal.has_filename() ? normal : normal.parent_path();
}

void check_out(const fs::path& out, const fs::path& given) {
  std::error_code error;
  if (fs::exists(fs::symlink_status(out, error))) {
    fail(ErrorKind::kData, given.string() + ": exists already: choose another --out or remove it");
  }
  if (!fs::is_directory(out.parent_path(), error)) {
    fail(ErrorKind::kData, given.string() + ": no folder " + out.parent_path().string() +
                               " to write it in: create it first");
  }
}

/// A corpus inside a folder of documents would be read as documents the next time.
void check_apart(const fs::path& out, const PrepareOptions& options) {
  std::error_code error;
  const fs::path whole = fs::weakly_canonical(out, error);
  if (error) return;  // told by what needs the folder
  for (const fs::path& folder : options.folders) {
    const fs::path root = fs::canonical(folder, error);
    if (error) continue;
    const auto [at, end] = std::mismatch(root.begin(), root.end(), whole.begin(), whole.end());
    if (at != root.end()) continue;
    fail(ErrorKind::kUsage, "--out " + options.out.string() + " lies in the folder " +
                                folder.string() +
                                " of documents: choose an --out outside, or the corpus would "
                                "become a document");
  }
}

}  // namespace

PrepareReport prepare(const PrepareOptions& options) {
  check_options(options);
  const fs::path out = tidy(options.out);
  check_out(out, options.out);
  check_apart(out, options);
  const WorkFolder work(out, options.when_stopped);
  check_out(out, options.out);  // another process may have made it before the lock was ours
  PreparedContent prepared = prepare_content(options, work.path());
  const fs::path made = work.path() / "corpus";
  write_corpus(made, prepared.content);
  check_out(out, options.out);
  rename_durably(made, out, ErrorKind::kData);
  return std::move(prepared.report);
}

}  // namespace k25::data
