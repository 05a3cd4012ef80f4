// The lock that keeps two runs out of one directory.

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>

#include "trainer/checkpoint/checkpoint.h"

namespace k25::trainer {
namespace {

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

}  // namespace

RunLock::RunLock(const std::filesystem::path& run_dir) : path_(run_dir / "lock") {
  fd_ = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd_ < 0) {
    fail(ErrorKind::kCheckpoint, path_.string() + ": " + std::strerror(errno));
  }
  try {
    take(run_dir);
  } catch (const Error&) {
    close(fd_);
    fd_ = -1;
    throw;
  }
}

void RunLock::take(const std::filesystem::path& run_dir) {
  if (flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    const int reason = errno;
    if (reason == EWOULDBLOCK) {
      fail(ErrorKind::kCheckpoint, run_dir.string() + ": directory in use by " + read_owner(fd_) +
                                       "; wait for that run, stop it, or choose another run.dir");
    }
    fail(ErrorKind::kCheckpoint, path_.string() + ": cannot be locked: " + std::strerror(reason) +
                                     " (the file system must support flock)");
  }
  char host[128] = "?";
  gethostname(host, sizeof host - 1);
  owner_ = fmt::format("pid {} on host {} since {}", getpid(), host, now_text());
  if (ftruncate(fd_, 0) != 0 ||
      pwrite(fd_, owner_.data(), owner_.size(), 0) != static_cast<ssize_t>(owner_.size())) {
    fail(ErrorKind::kCheckpoint, path_.string() + ": " + std::strerror(errno));
  }
}

RunLock::~RunLock() {
  if (fd_ >= 0) close(fd_);  // the kernel lets go of the lock, as it does when a process dies
}

}  // namespace k25::trainer
