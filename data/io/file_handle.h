#pragma once
// A file descriptor that closes itself, and whole reads and writes on it. Internal to data/.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "kernels/core/check.h"

namespace k25::data {

/// Throws `kind`: "PATH: cannot ACTION: No space left on device". `error` is an errno value.
[[noreturn]] void fail_errno(ErrorKind kind, const std::filesystem::path& path,
                             std::string_view action, int error);

/// `path` with a random suffix: a name beside it that no other process uses.
std::filesystem::path temporary_beside(const std::filesystem::path& path);

/// Tells whether a file has been written to.
struct FileStamp {
  std::int64_t size = 0;
  std::int64_t seconds = 0, nanoseconds = 0;  ///< of the last write
  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};

/// Reads and writes survive EINTR and short transfers. A write past RLIMIT_FSIZE is an Error
/// (EFBIG) only while SIGXFSZ is ignored, which the program's main does.
class FileHandle {
 public:
  FileHandle() = default;
  FileHandle(int fd, std::filesystem::path path, ErrorKind kind)
      : fd_(fd), path_(std::move(path)), kind_(kind) {}
  ~FileHandle();
  FileHandle(FileHandle&& other) noexcept;
  FileHandle& operator=(FileHandle&& other) noexcept;

  /// Regular files only: a pipe or a device could make a reader wait, or never end.
  static FileHandle open_to_read(const std::filesystem::path& path, ErrorKind kind);
  /// The file must not exist.
  static FileHandle create(const std::filesystem::path& path, ErrorKind kind);

  int get() const noexcept { return fd_; }
  const std::filesystem::path& path() const noexcept { return path_; }
  ErrorKind kind() const noexcept { return kind_; }

  std::int64_t size() const;
  FileStamp stamp() const;
  /// A file that ends early is an error: "truncated or unfinished".
  void read(std::int64_t offset, std::span<std::byte> out) const;
  void write(std::int64_t offset, std::span<const std::byte> payload) const;
  void sync() const;
  /// Closes and reports what close reports; the destructor cannot.
  void close();

 private:
  int fd_ = -1;
  std::filesystem::path path_;
  ErrorKind kind_ = ErrorKind::kInternal;
};

}  // namespace k25::data
