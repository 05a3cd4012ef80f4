#include "data/prepare/work_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "kernels/core/check.h"

namespace k25::data {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kRandomLetters = 6;  // of mkdtemp

[[noreturn]] void refuse_to_write(const fs::path& out, int error) {
  fail(ErrorKind::kData, out.string() + ": cannot write in " + out.parent_path().string() + ": " +
                             std::strerror(error));
}

std::string read_owner(int fd) {
  char text[256] = "";
  const ssize_t count = ::pread(fd, text, sizeof text - 1, 0);
  return count > 0 ? std::string(text, static_cast<std::size_t>(count)) : "another process";
}

std::string this_process() {
  char host[128] = "?";
  ::gethostname(host, sizeof host - 1);
  return "process " + std::to_string(::getpid()) + " on host " + host;
}

/// Whoever ended in the meantime has removed the file: then the lock is one on a file without name.
bool is_still_there(int fd, const fs::path& path) {
  struct stat held{}, named{};
  return ::fstat(fd, &held) == 0 && ::stat(path.c_str(), &named) == 0 &&
         held.st_ino == named.st_ino && held.st_dev == named.st_dev;
}

bool is_letter_of_mkdtemp(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

}  // namespace

WorkFolder::WorkFolder(const fs::path& out,
                       const std::function<void(std::function<void()>)>& when_stopped)
    : prefix_("." + out.filename().string() + ".prepare-"),
      parent_(out.parent_path()),
      lock_path_(parent_ / (prefix_ + "lock")),
      when_stopped_(when_stopped) {
  take_lock(out);
  remove_left_behind();
  std::string name = (parent_ / (prefix_ + "XXXXXX")).string();
  if (::mkdtemp(name.data()) == nullptr) {
    const int error = errno;
    ::unlink(lock_path_.c_str());
    ::close(lock_);
    refuse_to_write(out, error);
  }
  path_ = name;
  if (when_stopped_) when_stopped_([this] { discard(); });
}

WorkFolder::~WorkFolder() {
  if (when_stopped_) when_stopped_({});
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  ::unlink(lock_path_.c_str());  // before the lock goes, see is_still_there
  ::close(lock_);
}

void WorkFolder::take_lock(const fs::path& out) {
  do {
    if (lock_ >= 0) ::close(lock_);
    lock_ = ::open(lock_path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (lock_ < 0) refuse_to_write(out, errno);
    if (::flock(lock_, LOCK_EX | LOCK_NB) == 0) continue;
    const int error = errno;
    const std::string owner = read_owner(lock_);
    ::close(lock_);
    if (error == EWOULDBLOCK) {
      fail(ErrorKind::kData, out.string() + ": " + owner +
                                 " is preparing it: wait for that one, or choose another --out");
    }
    fail(ErrorKind::kData, lock_path_.string() + ": cannot be locked: " + std::strerror(error) +
                               " (the file system must support flock)");
  } while (!is_still_there(lock_, lock_path_));
  const std::string owner = this_process();
  // Only for messages: a disk without a byte left shows soon enough.
  if (::ftruncate(lock_, 0) == 0) {
    [[maybe_unused]] const ssize_t n = ::pwrite(lock_, owner.data(), owner.size(), 0);
  }
}

void WorkFolder::remove_left_behind() const {
  std::error_code error;
  std::vector<fs::path> found;
  for (fs::directory_iterator at(parent_, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    const bool ours = name.size() == prefix_.size() + kRandomLetters && name.starts_with(prefix_) &&
                      std::all_of(name.begin() + static_cast<std::ptrdiff_t>(prefix_.size()),
                                  name.end(), is_letter_of_mkdtemp);
    if (ours && fs::is_directory(at->symlink_status(error))) found.push_back(at->path());
  }
  for (const fs::path& folder : found) fs::remove_all(folder, error);
}

// Runs on the thread of signals while the other one may still write. The folder gets another name
// first, so that nothing half removed can be renamed into place and nothing new comes into it.
void WorkFolder::discard() const {
  std::error_code ignored;
  std::string name = (parent_ / (prefix_ + "XXXXXX")).string();
  const bool moved =
      ::mkdtemp(name.data()) != nullptr && ::rename(path_.c_str(), name.c_str()) == 0;
  fs::remove_all(moved ? fs::path(name) : path_, ignored);
  ::unlink(lock_path_.c_str());
}

}  // namespace k25::data
