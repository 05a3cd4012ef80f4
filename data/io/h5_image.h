#pragma once
// Where HDF5's bytes come from and go to: a file driver of ours instead of the library's. The
// library never opens a path (no locks, no renames under it) and never sees the disk, whose
// failures it answers with a crash at exit. Internal to data/io.

#include <hdf5.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>

#include "data/io/file_handle.h"

namespace k25::data {

class H5Image {
 public:
  virtual ~H5Image() = default;
  virtual std::int64_t end() const = 0;
  virtual void set_end(std::int64_t end) = 0;
  virtual void read(std::int64_t at, std::span<std::byte> out) = 0;
  virtual void write(std::int64_t at, std::span<const std::byte> bytes) = 0;
};

/// Only what is written takes memory; all else reads as zero.
class H5MemoryImage final : public H5Image {
 public:
  std::int64_t end() const override { return end_; }
  void set_end(std::int64_t end) override { end_ = end; }
  void read(std::int64_t at, std::span<std::byte> out) override;
  void write(std::int64_t at, std::span<const std::byte> bytes) override;
  /// Writes the touched pages to `file`.
  void copy_to(const FileHandle& file) const;

 private:
  static constexpr std::int64_t kPage = 4096;
  std::map<std::int64_t, std::array<std::byte, kPage>> pages_;
  std::int64_t end_ = 0;
};

/// A finished file, read through its descriptor.
class H5FileImage final : public H5Image {
 public:
  explicit H5FileImage(const FileHandle& file) : file_(file) {}
  std::int64_t end() const override { return file_.size(); }
  void set_end(std::int64_t end) override;
  void read(std::int64_t at, std::span<std::byte> out) override { file_.read(at, out); }
  void write(std::int64_t at, std::span<const std::byte> bytes) override;

 private:
  const FileHandle& file_;
};

/// Makes `access` use `image`, which must outlive the opened file. False when the library refuses.
bool use_image(hid_t access, H5Image& image);

}  // namespace k25::data
