#include "parallel/offload/file_tier.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "parallel/offload/file_engine.h"

namespace k25::parallel {
namespace {

constexpr int kMostThreads = 8;

// Without a name from the start, or from the moment it is made.
int open_unnamed(const std::filesystem::path& folder, int flags) {
  const int fd = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | flags, 0600);
  if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR)) return fd;
  std::string name = (folder / ".k25-offload-XXXXXX").string();
  const int named = ::mkostemp(name.data(), O_CLOEXEC | flags);
  const int reason = errno;
  if (named >= 0) ::unlink(name.c_str());
  errno = reason;
  return named;
}

[[noreturn]] void fail_to_make(const FileTierOptions& options, int reason) {
  std::string room;
  struct statvfs found{};
  if (reason == ENOSPC && ::statvfs(options.folder.c_str(), &found) == 0) {
    room = fmt::format(" (it has {} bytes free)", found.f_bavail * found.f_frsize);
  }
  fail(ErrorKind::kUsage,
       fmt::format("{}: cannot hold {} bytes of offloaded state: {}{}; give a folder of a local "
                   "disk where this user may write and that has the room, for each rank of the "
                   "host",
                   options.folder.string(), options.size.n, std::strerror(reason), room));
}

int allocate(int fd, std::int64_t size) {
  struct statvfs found{};
  if (::fstatvfs(fd, &found) == 0 &&
      static_cast<std::uint64_t>(size) / found.f_frsize > found.f_bavail) {
    return ENOSPC;  // fallocate would fill the disk before it said so
  }
  if (size == 0 || ::fallocate(fd, 0, 0, size) == 0) return 0;
  if (errno != EOPNOTSUPP) return errno;
  return ::ftruncate(fd, size) == 0 ? 0 : errno;  // may still run full later, and says so then
}

}  // namespace

FileTier::FileTier(const FileTierOptions& options) : size_(options.size) {
  K25_CHECK(size_.n >= 0 && size_.n % kGranule.n == 0, "the size is a multiple of the granule");
  K25_CHECK(options.depth > 0, "at least one request at a time");
  fd_ = open_unnamed(options.folder, O_DIRECT);
  if (fd_ < 0 && errno == EINVAL) {  // a file system that only knows its cache
    direct_ = false;
    fd_ = open_unnamed(options.folder, 0);
  }
  if (fd_ < 0) fail_to_make(options, errno);
  if (const int reason = allocate(fd_, size_.n); reason != 0) {
    ::close(fd_);
    fail_to_make(options, reason);
  }
  const std::string name = options.folder.string();
  if (options.engine != FileEngineKind::kThreads) {
    engine_ = make_uring_engine(fd_, name, options.depth);
  }
  if (engine_ == nullptr) {
    if (options.engine == FileEngineKind::kUring) {
      ::close(fd_);
      fail(ErrorKind::kUsage, name + ": io_uring was asked for, and this build or kernel has none");
    }
    engine_ = make_thread_engine(fd_, name, std::min(options.depth, kMostThreads));
  }
}

FileTier::~FileTier() {
  {
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [&] { return in_flight_ == 0; });
  }
  engine_.reset();
  ::close(fd_);
}

std::string_view FileTier::engine() const { return engine_->name(); }

void FileTier::read(Bytes offset, std::span<std::byte> to, Done done) {
  submit({.kind = FileRequest::Kind::kRead,
          .offset = offset.n,
          .memory = to.data(),
          .left = std::ssize(to),
          .done = std::move(done)});
}

void FileTier::write(Bytes offset, std::span<const std::byte> from, Done done) {
  submit({.kind = FileRequest::Kind::kWrite,
          .offset = offset.n,
          .memory = const_cast<std::byte*>(from.data()),  // only read, see FileRequest
          .left = std::ssize(from),
          .done = std::move(done)});
}

void FileTier::submit(FileRequest request) {
  const auto address = static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(request.memory));
  const std::int64_t whole = request.offset | request.left | address;
  if (whole % kGranule.n != 0 || request.left <= 0 || request.offset < 0 ||
      request.left > size_.n - request.offset) {
    fail(ErrorKind::kInternal,
         fmt::format("{} bytes at offset {} of a tier of {}: not inside it, or no multiples of {}",
                     request.left, request.offset, size_.n, kGranule.n));
  }
  {
    const std::lock_guard lock(mutex_);
    ++in_flight_;
  }
  request.done = [this, done = std::move(request.done)](const std::optional<Error>& error) {
    done(error);
    const std::lock_guard lock(mutex_);
    if (--in_flight_ == 0) idle_.notify_all();
  };
  engine_->submit(std::move(request));
}

}  // namespace k25::parallel
