#pragma once
// HDF5 as a layout on disk, nothing more: the library lays the file out in memory with contiguous,
// early-allocated, 4096-aligned datasets and is closed again; space is reserved, payload goes by
// pwrite, and readers pread. The library reaches files only through descriptors of ours, so
// it takes no locks and meets no full disk (which makes it crash at exit). All HDF5 calls of the
// process are serialised by one mutex in here (Debian's build is not thread-safe), its error stack
// is silenced. SIGXFSZ must be ignored (the program's main does it) for a file size limit to be an
// Error.

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/io/block_digest.h"
#include "kernels/core/check.h"
#include "kernels/core/dtype.h"

namespace k25::data {

enum class H5Type : std::uint8_t { kU8, kU16, kU32, kI32, kI64, kF32, kF64, kBF16 };
std::int64_t h5_type_bytes(H5Type type);
std::string_view h5_type_name(H5Type type);

struct H5Dataset {
  H5Type type = H5Type::kU8;
  std::vector<std::int64_t> shape;
  std::int64_t offset = -1;  ///< in the file; set by the library; -1 for an empty dataset
  std::int64_t bytes() const;
};
using H5Layout = std::map<std::string, H5Dataset>;  ///< by path, "/tokens"

/// A file being written. Space for everything is reserved at construction (posix_fallocate): no
/// space is an error before any payload. The destructor removes an unfinished file.
class H5Writer {
 public:
  /// `layout`: types and shapes; offsets are filled in. The file must not exist. Throws `kind` with
  /// path, needed and free bytes, and errno text; nothing is left behind then.
  H5Writer(const std::filesystem::path& path, H5Layout layout, ErrorKind kind);
  ~H5Writer();
  H5Writer(const H5Writer&) = delete;
  H5Writer& operator=(const H5Writer&) = delete;

  const H5Layout& layout() const { return layout_; }
  /// Payload of `dataset` at `offset` bytes from its start. Any order, any thread. Writes in file
  /// order (that of `layout()`) are hashed on the way; else finish() reads the file again. Bytes
  /// that are never written read as zero.
  void write(const std::string& dataset, Bytes offset, std::span<const std::byte> payload);
  /// fsync and close; returns the digest of the finished file.
  FileDigest finish();

 private:
  struct Impl;
  H5Layout layout_;
  std::unique_ptr<Impl> impl_;
};

/// The layout of a finished file. Throws `kind` for a missing, truncated or foreign file (path,
/// actual size, reason in one line).
H5Layout read_h5_layout(const std::filesystem::path& path, ErrorKind kind);

/// Reads one finished file, which nobody may change meanwhile. Not by a memory map: where a file
/// has been shortened, touching one is a SIGBUS and not an Error. Reading is safe from any thread.
class H5File {
 public:
  H5File(const std::filesystem::path& path, ErrorKind kind);
  ~H5File();
  H5File(H5File&& o) noexcept;
  H5File& operator=(H5File&& o) noexcept;

  const H5Layout& layout() const;
  bool has(const std::string& dataset) const;
  /// Throws `kind` when the dataset is missing or has another type.
  const H5Dataset& dataset(const std::string& name, H5Type type) const;
  /// The bytes of `dataset` from `offset` on.
  void read(const H5Dataset& dataset, Bytes offset, std::span<std::byte> out) const;

  /// Elements of `dataset` from `first` on.
  template <class T>
  void read_values(const H5Dataset& dataset, std::int64_t first, std::span<T> out) const {
    read(dataset, Bytes{first * static_cast<std::int64_t>(sizeof(T))}, std::as_writable_bytes(out));
  }
  /// All elements.
  template <class T>
  std::vector<T> values(const std::string& name, H5Type type) const {
    const H5Dataset& d = dataset(name, type);
    std::vector<T> all(static_cast<std::size_t>(d.bytes()) / sizeof(T));
    read_values(d, 0, std::span<T>(all));
    return all;
  }

  /// Throws `kind` when the file was written to or shortened since it was opened.
  void require_unchanged() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// "1.10.8": of the library that is loaded.
std::string hdf5_version();

}  // namespace k25::data
