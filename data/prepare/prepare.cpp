#include "data/prepare/prepare.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <system_error>

#include "data/corpus/corpus.h"
#include "data/prepare/content.h"
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

/// A folder beside `out` for the time of preparing; also finds out early whether one can write
/// there.
class WorkFolder {
 public:
  explicit WorkFolder(const fs::path& out) {
    std::string name =
        (out.parent_path() / ("." + out.filename().string() + ".prepare-XXXXXX")).string();
    if (::mkdtemp(name.data()) == nullptr) {
      fail(ErrorKind::kData, out.string() + ": cannot write in " + out.parent_path().string() +
                                 ": " + std::strerror(errno));
    }
    path_ = name;
  }
  ~WorkFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;

  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

}  // namespace

PrepareReport prepare(const PrepareOptions& options) {
  check_options(options);
  const fs::path out = tidy(options.out);
  check_out(out, options.out);
  const WorkFolder work(out);
  PreparedContent prepared = prepare_content(options, work.path());
  write_corpus(out, prepared.content);
  return std::move(prepared.report);
}

}  // namespace k25::data
