#pragma once
// Private to parallel/offload: how a FileTier's reads and writes get to the kernel.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "parallel/offload/tier.h"

namespace k25::parallel {

struct FileRequest {
  enum class Kind : std::uint8_t { kRead, kWrite };
  Kind kind = Kind::kRead;
  std::int64_t offset = 0;
  std::byte* memory = nullptr;  ///< only read from where kind is kWrite
  std::int64_t left = 0;        ///< bytes
  Tier::Done done;
};

/// Takes the outcome of one system call, bytes moved or -errno, into the request. True: it has
/// ended, well or with `error`; false: the rest is to be asked for.
bool advance(FileRequest& request, std::int64_t result, const std::string& file,
             std::optional<Error>& error);

class FileEngine {
 public:
  virtual ~FileEngine() = default;  ///< nothing is in flight any more
  virtual std::string_view name() const = 0;
  virtual void submit(FileRequest request) = 0;
};

/// Null where this build has no liburing or the kernel gives no ring (old, or forbidden by the
/// container). `file` is its name in messages; `depth` requests are with the kernel at a time.
std::unique_ptr<FileEngine> make_uring_engine(int fd, const std::string& file, int depth);
/// pread and pwrite from `threads` threads.
std::unique_ptr<FileEngine> make_thread_engine(int fd, const std::string& file, int threads);

}  // namespace k25::parallel
