#include "data/io/file_handle.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <utility>

#include "fmt/format.h"

namespace k25::data {

void fail_errno(ErrorKind kind, const std::filesystem::path& path, std::string_view action,
                int error) {
  fail(kind, fmt::format("{}: cannot {}: {}", path.string(), action, std::strerror(error)));
}

std::filesystem::path temporary_beside(const std::filesystem::path& path) {
  std::random_device device;
  const auto folder = path.parent_path();
  return folder /
         fmt::format(".{}.partial-{:08x}{:08x}", path.filename().string(), device(), device());
}

FileHandle::~FileHandle() {
  if (fd_ >= 0) ::close(fd_);
}

FileHandle::FileHandle(FileHandle&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)), kind_(other.kind_) {}

FileHandle& FileHandle::operator=(FileHandle&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(path_, other.path_);
  std::swap(kind_, other.kind_);
  return *this;
}

FileHandle FileHandle::open_to_read(const std::filesystem::path& path, ErrorKind kind) {
  int fd = -1;
  do {
    // Without O_NONBLOCK, opening a pipe waits for its writer.
    fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) fail_errno(kind, path, "open", errno);
  FileHandle file(fd, path, kind);
  struct stat info{};
  if (::fstat(fd, &info) != 0) fail_errno(kind, path, "stat", errno);
  if (S_ISDIR(info.st_mode)) fail_errno(kind, path, "read", EISDIR);
  if (!S_ISREG(info.st_mode)) fail(kind, path.string() + ": is no regular file");
  return file;
}

FileHandle FileHandle::create(const std::filesystem::path& path, ErrorKind kind) {
  int fd = -1;
  do {
    fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) fail_errno(kind, path, "create", errno);
  return FileHandle(fd, path, kind);
}

std::int64_t FileHandle::size() const { return stamp().size; }

FileStamp FileHandle::stamp() const {
  struct stat info{};
  if (::fstat(fd_, &info) != 0) fail_errno(kind_, path_, "stat", errno);
  return {info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec};
}

void FileHandle::read(std::int64_t offset, std::span<std::byte> out) const {
  const auto begin = offset;
  while (!out.empty()) {
    const ssize_t n = ::pread(fd_, out.data(), out.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_errno(kind_, path_, "read", errno);
    if (n == 0) {
      fail(kind_, fmt::format("{}: ends at byte {}, expected data at {}: truncated or unfinished",
                              path_.string(), size(), begin));
    }
    offset += n;
    out = out.subspan(static_cast<std::size_t>(n));
  }
}

void FileHandle::write(std::int64_t offset, std::span<const std::byte> payload) const {
  while (!payload.empty()) {
    const ssize_t n = ::pwrite(fd_, payload.data(), payload.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_errno(kind_, path_, "write", errno);
    if (n == 0) fail_errno(kind_, path_, "write", ENOSPC);
    offset += n;
    payload = payload.subspan(static_cast<std::size_t>(n));
  }
}

void FileHandle::sync() const {
  int rc = 0;
  do {
    rc = ::fsync(fd_);
  } while (rc != 0 && errno == EINTR);
  if (rc != 0) fail_errno(kind_, path_, "sync", errno);
}

void FileHandle::close() {
  const int fd = std::exchange(fd_, -1);
  // EINTR leaves the descriptor closed on Linux; a second close could hit another thread's file.
  if (fd >= 0 && ::close(fd) != 0 && errno != EINTR) fail_errno(kind_, path_, "close", errno);
}

}  // namespace k25::data
