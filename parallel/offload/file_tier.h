#pragma once
// A tier in one file of a local disk: scratch space that dies with the process and never has a
// name that another could find.
//
// Through io_uring where build and kernel have it, else by pread and pwrite on threads; past the
// page cache (O_DIRECT) where the file system can. The space is taken at construction, so that
// a full disk is told then.
//
// Errors  kUsage from the constructor, naming folder, size, reason and mend; kCheckpoint through
//         Done, naming folder, size and offset.

#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "parallel/offload/tier.h"

namespace k25::parallel {

enum class FileEngineKind : std::uint8_t { kAuto, kUring, kThreads };

struct FileTierOptions {
  std::filesystem::path folder;
  Bytes size;  ///< a multiple of the granule
  FileEngineKind engine = FileEngineKind::kAuto;
  int depth = 16;  ///< requests with the kernel at a time
};

class FileEngine;
struct FileRequest;

class FileTier final : public Tier {
 public:
  static constexpr Bytes kGranule{4096};

  explicit FileTier(const FileTierOptions& options);
  ~FileTier() override;
  FileTier(const FileTier&) = delete;
  FileTier& operator=(const FileTier&) = delete;

  Bytes size() const override { return size_; }
  Bytes granule() const override { return kGranule; }
  void read(Bytes offset, std::span<std::byte> to, Done done) override;
  void write(Bytes offset, std::span<const std::byte> from, Done done) override;

  std::string_view engine() const;            ///< "io_uring" or "threads"
  bool is_direct() const { return direct_; }  ///< past the page cache

 private:
  void submit(FileRequest request);

  Bytes size_;
  bool direct_ = true;
  int fd_ = -1;
  std::unique_ptr<FileEngine> engine_;
  std::mutex mutex_;
  std::condition_variable idle_;
  std::int64_t in_flight_ = 0;  // until their Done has returned
};

}  // namespace k25::parallel
