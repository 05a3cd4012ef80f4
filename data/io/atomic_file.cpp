#include "data/io/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <span>

#include "data/io/file_handle.h"
#include "fmt/format.h"

namespace k25::data {

namespace {

std::filesystem::path parent_of(const std::filesystem::path& path) {
  // "a/b/" names the folder b: its parent is a.
  const auto clean = path.has_filename() ? path : path.parent_path();
  return clean.has_parent_path() ? clean.parent_path() : std::filesystem::path(".");
}

}  // namespace

void sync_folder(const std::filesystem::path& folder, ErrorKind kind) {
  int fd = -1;
  do {
    fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) fail_errno(kind, folder, "open the folder", errno);
  const FileHandle handle(fd, folder, kind);
  int rc = 0;
  do {
    rc = ::fsync(fd);
  } while (rc != 0 && errno == EINTR);
  // Some network file systems do not sync folders; they are durable by their own means.
  if (rc != 0 && errno != EINVAL && errno != ENOTSUP) {
    fail_errno(kind, folder, "sync the folder", errno);
  }
}

void write_file_atomically(const std::filesystem::path& path, std::string_view content,
                           ErrorKind kind, const std::function<void()>& before_rename) {
  const auto temporary = temporary_beside(path);
  try {
    auto file = FileHandle::create(temporary, kind);
    file.write(0, std::as_bytes(std::span(content)));
    file.sync();
    file.close();
    if (before_rename) before_rename();
    if (::rename(temporary.c_str(), path.c_str()) != 0) {
      fail_errno(kind, path, "replace", errno);
    }
  } catch (const Error& error) {
    const std::string message = error.what();
    ::unlink(temporary.c_str());
    // The user knows the final name, not the temporary one.
    const auto name = temporary.string();
    fail(kind, message.rfind(name, 0) == 0 ? path.string() + message.substr(name.size()) : message);
  }
  sync_folder(parent_of(path), kind);
}

std::string read_file(const std::filesystem::path& path, ErrorKind kind, Bytes most) {
  const auto file = FileHandle::open_to_read(path, kind);
  if (file.size() > most.n) {
    fail(kind,
         fmt::format("{}: has {} bytes, expected at most {}", path.string(), file.size(), most.n));
  }
  std::string content;
  // Size is a hint: files under /proc say 0.
  std::size_t used = 0;
  content.resize(static_cast<std::size_t>(file.size()) + 1);
  while (true) {
    const ssize_t n = ::read(file.get(), content.data() + used, content.size() - used);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_errno(kind, path, "read", errno);
    if (n == 0) break;
    used += static_cast<std::size_t>(n);
    if (used == content.size()) content.resize(2 * used);
  }
  content.resize(used);
  return content;
}

void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to,
                    ErrorKind kind) {
  if (std::filesystem::is_directory(from)) sync_folder(from, kind);
  if (::rename(from.c_str(), to.c_str()) != 0) {
    fail_errno(kind, to, fmt::format("rename {} to it", from.string()), errno);
  }
  sync_folder(parent_of(to), kind);
  if (parent_of(from) != parent_of(to)) sync_folder(parent_of(from), kind);
}

}  // namespace k25::data
