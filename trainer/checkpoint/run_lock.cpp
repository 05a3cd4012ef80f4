// The lock that keeps two runs out of one directory.

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>

#include "data/io/atomic_file.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/files.h"
#include "trainer/checkpoint/step_folder.h"

namespace k25::trainer {
namespace {

namespace fs = std::filesystem;

std::string now_text() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &local);
  return text;
}

std::string read_owner(int fd) {
  char owner[256] = {};
  const ssize_t n = pread(fd, owner, sizeof owner - 1, 0);
  // Its owner locks first and signs a moment later.
  return n > 0 ? std::string(owner, static_cast<std::size_t>(n))
               : "another run that has just started";
}

// What every run signs its lock with. An empty one is of a run that ended between the two.
bool is_lock_of_a_run(const fs::path& lock) {
  if (!is_there(lock)) return false;
  if (type_at(lock) != fs::file_type::regular) return true;  // require_regular_files names it
  std::error_code error;
  if (fs::file_size(lock, error) == 0 || error) return true;
  std::string text;
  try {
    text = data::read_file(lock, ErrorKind::kCheckpoint, Bytes{4096});
  } catch (const Error&) {
    return true;  // its opening tells why
  }
  return text.rfind("pid ", 0) == 0 && text.find(" on host ") != std::string::npos;
}

// A run scatters its files over run.dir and replaces those of its names: a folder that holds
// something else is refused, be it a config.yaml. A run that was copied without its lock has steps.
void require_run_directory(const fs::path& folder) {
  if (is_lock_of_a_run(folder / "lock")) return;
  if (is_folder(folder / "checkpoints") && !step_folders(folder).empty()) return;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  if (error || entry == fs::directory_iterator()) return;
  fail(
      ErrorKind::kCheckpoint,
      fmt::format("run.dir: '{}' holds files that are no k25 run ({} and perhaps others); choose a "
                  "new or an empty folder",
                  folder.string(), entry->path().filename().string()));
}

// Told now, not at the first save.
void require_writable_checkpoints(const fs::path& run_dir) {
  const fs::path folder = run_dir / "checkpoints";
  if (!is_there(folder) || faccessat(AT_FDCWD, folder.c_str(), W_OK | X_OK, AT_EACCESS) == 0)
    return;
  fail(ErrorKind::kCheckpoint,
       folder.string() + ": this user cannot save checkpoints there: " + std::strerror(errno) +
           "; mend its permissions or its disk, or choose another run.dir");
}

[[noreturn]] void fail_to_write(const fs::path& lock) {
  const int reason = errno;
  fail(ErrorKind::kCheckpoint,
       lock.string() + ": cannot be opened and written: " + std::strerror(reason) +
           "; this user must be able to write there: choose another run.dir, or mend its "
           "permissions or its disk");
}

// create_directories that says what it made.
void make_folders(const fs::path& folder, std::vector<fs::path>& made) {
  fs::path path;
  for (const fs::path& part : folder) {
    if (part == ".." && !made.empty()) {
      fail(ErrorKind::kCheckpoint, "run.dir: '" + folder.string() + "': there is no folder '" +
                                       path.string() +
                                       "' to go up from; write the path without "
                                       "'..'");
    }
    path /= part;
    std::error_code error;
    if (fs::is_directory(path, error)) continue;
    error.clear();
    if (fs::create_directory(path, error)) made.push_back(path);
    if (error) {
      const std::string at = path / "" == folder / "" ? "" : "'" + path.string() + "': ";
      fail(ErrorKind::kCheckpoint, "run.dir: cannot create '" + folder.string() + "': " + at +
                                       error.message() +
                                       "; choose another run.dir, or make way there");
    }
  }
}

}  // namespace

RunLock::RunLock(const fs::path& run_dir) : run_dir_(run_dir), path_(run_dir / "lock") {
  try {
    make_folders(run_dir_, made_);
    require_run_directory(run_dir_);
    require_regular_files(run_dir_);
    require_writable_checkpoints(run_dir_);
    open_and_take();
    sign();
  } catch (const Error&) {
    remove_what_was_made();
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
    throw;
  }
}

void RunLock::open_and_take() {
  // A run that ends before it began removes its lock, perhaps between our open and our lock.
  constexpr int kTries = 100;
  for (int i = 0; i < kTries; ++i) {
    if (fd_ >= 0) close(fd_);
    fd_ = open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    made_lock_ = fd_ >= 0;
    if (fd_ < 0 && errno == EEXIST) fd_ = open(path_.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (fd_ < 0 && errno == ENOENT) continue;
    if (fd_ < 0) fail_to_write(path_);
    if (flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      const int reason = errno;
      made_lock_ = false;
      if (reason == EWOULDBLOCK) {
        fail(ErrorKind::kCheckpoint, run_dir_.string() + ": directory in use by " +
                                         read_owner(fd_) +
                                         "; wait for that run, stop it, or choose another run.dir");
      }
      fail(ErrorKind::kCheckpoint, path_.string() + ": cannot be locked: " + std::strerror(reason) +
                                       " (the file system must support flock)");
    }
    if (is_at_path()) return;
  }
  fail(ErrorKind::kCheckpoint, path_.string() + ": comes and goes; is another run starting here?");
}

void RunLock::sign() {
  char host[128] = "?";
  gethostname(host, sizeof host - 1);
  owner_ = fmt::format("pid {} on host {} since {}", getpid(), host, now_text());
  if (ftruncate(fd_, 0) != 0 ||
      pwrite(fd_, owner_.data(), owner_.size(), 0) != static_cast<ssize_t>(owner_.size())) {
    fail_to_write(path_);
  }
}

bool RunLock::is_at_path() const {
  struct stat held{}, found{};
  return fstat(fd_, &held) == 0 && stat(path_.c_str(), &found) == 0 &&
         held.st_dev == found.st_dev && held.st_ino == found.st_ino;
}

void RunLock::require_held() const {
  if (is_at_path()) return;
  struct stat found{};
  const bool there = stat(path_.c_str(), &found) == 0;
  fail(ErrorKind::kCheckpoint,
       fmt::format("{} is {}: run.dir was moved, removed or replaced, or its lock removed, while "
                   "this run ({}) held it. Nothing more is written there. Move the directory back, "
                   "or set run.dir to where it is now, and go on with --resume auto",
                   path_.string(), there ? "another file than the one locked" : "gone", owner_));
}

// Only what this object made and nobody else used: a folder that is not empty stays.
void RunLock::remove_what_was_made() noexcept {
  if (made_lock_) {
    if (!is_at_path()) return;
    std::error_code error;
    fs::directory_iterator entry(run_dir_, error);
    std::int64_t entries = 0;
    for (; !error && entry != fs::directory_iterator(); entry.increment(error)) ++entries;
    if (error || entries != 1) return;
    unlink(path_.c_str());
  }
  for (auto folder = made_.rbegin(); folder != made_.rend(); ++folder) rmdir(folder->c_str());
}

RunLock::~RunLock() {
  remove_what_was_made();
  if (fd_ >= 0) close(fd_);  // the kernel lets go of the lock, as it does when a process dies
}

}  // namespace k25::trainer
