#include "data/io/h5_layout.h"

#include <fcntl.h>  // posix_fallocate
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <set>

#include "data/io/file_handle.h"
#include "data/io/h5_library.h"
#include "data/io/sha256.h"
#include "fmt/format.h"

namespace k25::data {

namespace {

constexpr std::size_t kMaxRank = H5S_MAX_RANK;

void check_layout(const H5Layout& layout) {
  for (const auto& [name, dataset] : layout) {
    const bool rooted = name.size() > 1 && name.front() == '/' && name.back() != '/' &&
                        name.find("//") == std::string::npos &&
                        name.find('\0') == std::string::npos;
    K25_CHECK(rooted, "HDF5 dataset path '" + name + "' must look like /group/name");
    K25_CHECK(dataset.shape.size() <= kMaxRank,
              "HDF5 dataset " + name + " has too many dimensions");
    std::int64_t bytes = h5_type_bytes(dataset.type);
    for (const std::int64_t extent : dataset.shape) {
      K25_CHECK(extent >= 0, "HDF5 dataset " + name + " has a negative extent");
      K25_CHECK(!__builtin_mul_overflow(bytes, extent, &bytes),
                "HDF5 dataset " + name + " is larger than 2^63 bytes");
    }
  }
}

[[noreturn]] void fail_library(const std::filesystem::path& path, const std::string& what) {
  fail(ErrorKind::kInternal,
       fmt::format("{}: HDF5 cannot lay out {}: {}", path.string(), what, h5_error_text()));
}

H5Id untimed_list(hid_t list_class) {
  H5Id list(H5Pcreate(list_class), H5Pclose);
  // Without time stamps the same content gives the same bytes.
  H5Pset_obj_track_times(list.get(), false);
  return list;
}

void create_dataset(hid_t file, const std::filesystem::path& path, const std::string& name,
                    H5Dataset& dataset) {
  const H5Id type = h5_file_type(dataset.type);
  std::vector<hsize_t> extents(dataset.shape.begin(), dataset.shape.end());
  const H5Id space(
      extents.empty() ? H5Screate(H5S_SCALAR)
                      : H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr),
      H5Sclose);
  const H5Id list = untimed_list(H5P_DATASET_CREATE);
  H5Pset_layout(list.get(), H5D_CONTIGUOUS);
  H5Pset_alloc_time(list.get(), H5D_ALLOC_TIME_EARLY);
  H5Pset_fill_time(list.get(), H5D_FILL_TIME_NEVER);
  const H5Id created(
      H5Dcreate2(file, name.c_str(), type.get(), space.get(), H5P_DEFAULT, list.get(), H5P_DEFAULT),
      H5Dclose);
  if (!created.valid()) fail_library(path, name);
  const haddr_t offset = H5Dget_offset(created.get());
  if (dataset.bytes() > 0 && offset == HADDR_UNDEF) fail_library(path, name);
  dataset.offset = dataset.bytes() > 0 ? static_cast<std::int64_t>(offset) : -1;
}

void create_groups(hid_t file, const std::filesystem::path& path, const H5Layout& layout) {
  std::set<std::string> groups;
  for (const auto& [name, dataset] : layout) {
    for (auto slash = name.find('/', 1); slash != std::string::npos;
         slash = name.find('/', slash + 1)) {
      groups.insert(name.substr(0, slash));
    }
  }
  const H5Id list = untimed_list(H5P_GROUP_CREATE);
  for (const auto& group : groups) {  // a prefix sorts before what it contains
    K25_CHECK(!layout.contains(group), "HDF5 path " + group + " is both a dataset and a group");
    const H5Id created(H5Gcreate2(file, group.c_str(), H5P_DEFAULT, list.get(), H5P_DEFAULT),
                       H5Gclose);
    if (!created.valid()) fail_library(path, group);
  }
}

/// Lets HDF5 make the file in memory, where payload takes no room.
void lay_out(const std::filesystem::path& path, H5Layout& layout, H5MemoryImage& image) {
  const H5Lock lock;
  const H5Id creation = untimed_list(H5P_FILE_CREATE);
  const H5Id access = h5_file_access(image);
  H5Id file(H5Fcreate("k25", H5F_ACC_TRUNC, creation.get(), access.get()), H5Fclose);
  if (!file.valid()) fail_library(path, "the file");
  create_groups(file.get(), path, layout);
  for (auto& [name, dataset] : layout) create_dataset(file.get(), path, name, dataset);
  if (!file.close()) fail_library(path, "the file");
}

/// Space for all of the file, or an error that says how much is missing.
void reserve(const FileHandle& file, std::int64_t bytes) {
  struct statvfs disk{};
  int error = ::fstatvfs(file.get(), &disk) == 0 ? 0 : errno;
  const std::uint64_t free = static_cast<std::uint64_t>(disk.f_bfree) * disk.f_frsize;
  // Asked for too much, posix_fallocate would take all that is left from other programs for a
  // while.
  if (error == 0 && static_cast<std::uint64_t>(bytes) > free) error = ENOSPC;
  while (error == 0) {
    error = ::posix_fallocate(file.get(), 0, bytes);
    if (error == 0) return;
    if (error == EINTR) error = 0;
  }
  fail_errno(file.kind(), file.path(), fmt::format("reserve {} bytes ({} free)", bytes, free),
             error);
}

}  // namespace

std::int64_t h5_type_bytes(H5Type type) {
  switch (type) {
    case H5Type::kU8:
      return 1;
    case H5Type::kU16:
    case H5Type::kBF16:
      return 2;
    case H5Type::kU32:
    case H5Type::kI32:
    case H5Type::kF32:
      return 4;
    case H5Type::kI64:
    case H5Type::kF64:
      return 8;
  }
  fail(ErrorKind::kInternal, "unknown H5Type");
}

std::string_view h5_type_name(H5Type type) {
  switch (type) {
    case H5Type::kU8:
      return "u8";
    case H5Type::kU16:
      return "u16";
    case H5Type::kU32:
      return "u32";
    case H5Type::kI32:
      return "i32";
    case H5Type::kI64:
      return "i64";
    case H5Type::kF32:
      return "f32";
    case H5Type::kF64:
      return "f64";
    case H5Type::kBF16:
      return "bf16";
  }
  return "?";
}

std::int64_t H5Dataset::bytes() const {
  std::int64_t n = h5_type_bytes(type);
  for (const std::int64_t extent : shape) n *= extent;
  return n;
}

struct H5Writer::Impl {
  FileHandle file;
  std::int64_t size = 0;
  std::vector<std::pair<std::int64_t, std::int64_t>> payload;  ///< [begin, end) in the file, sorted

  std::mutex mutex;  ///< guards what follows
  DigestStream digest;
  bool in_order = true;
  bool finished = false;

  bool holds_payload(std::int64_t begin, std::int64_t end) const {
    auto after = std::upper_bound(payload.begin(), payload.end(), std::pair{begin, size});
    if (after != payload.begin() && std::prev(after)->second > begin) return begin < end;
    return after != payload.end() && after->first < end;
  }

  void digest_from_file(std::int64_t end) {
    std::vector<std::byte> buffer(std::size_t{1} << 20);
    while (digest.position() < end) {
      const auto n =
          std::min<std::int64_t>(static_cast<std::int64_t>(buffer.size()), end - digest.position());
      const auto part = std::span(buffer).first(static_cast<std::size_t>(n));
      file.read(digest.position(), part);
      digest.update(part);
    }
  }

  void digest_write(std::int64_t offset, std::span<const std::byte> bytes) {
    const std::scoped_lock lock(mutex);
    // Hash along while nothing that is still to be written lies before this write.
    in_order = in_order && offset >= digest.position() && !holds_payload(digest.position(), offset);
    if (!in_order) return;
    digest_from_file(offset);
    digest.update(bytes);
  }
};

H5Writer::H5Writer(const std::filesystem::path& path, H5Layout layout, ErrorKind kind)
    : layout_(std::move(layout)), impl_(std::make_unique<Impl>()) {
  check_layout(layout_);
  H5MemoryImage image;
  lay_out(path, layout_, image);
  impl_->size = image.end();
  for (const auto& [name, dataset] : layout_) {
    if (dataset.bytes() == 0) continue;
    impl_->payload.emplace_back(dataset.offset, dataset.offset + dataset.bytes());
  }
  std::sort(impl_->payload.begin(), impl_->payload.end());
  impl_->file = FileHandle::create(path, kind);
  try {
    reserve(impl_->file, impl_->size);
    image.copy_to(impl_->file);
  } catch (...) {
    ::unlink(path.c_str());
    throw;
  }
}

H5Writer::~H5Writer() {
  if (!impl_->finished) ::unlink(impl_->file.path().c_str());
}

void H5Writer::write(const std::string& dataset, Bytes offset, std::span<const std::byte> payload) {
  const auto found = layout_.find(dataset);
  K25_CHECK(found != layout_.end(), "HDF5 file has no dataset " + dataset);
  K25_CHECK(impl_->file.get() >= 0, "HDF5 file is finished already");
  const auto bytes = static_cast<std::int64_t>(payload.size());
  K25_CHECK(offset.n >= 0 && offset.n <= found->second.bytes() - bytes,
            fmt::format("write of bytes [{}, {}) leaves HDF5 dataset {} of {} bytes", offset.n,
                        offset.n + bytes, dataset, found->second.bytes()));
  if (payload.empty()) return;
  const std::int64_t at = found->second.offset + offset.n;
  impl_->file.write(at, payload);
  impl_->digest_write(at, payload);
}

FileDigest H5Writer::finish() {
  K25_CHECK(impl_->file.get() >= 0, "HDF5 file is finished already");
  impl_->file.sync();
  const std::scoped_lock lock(impl_->mutex);
  if (!impl_->in_order) impl_->digest = {};
  impl_->digest_from_file(impl_->size);
  impl_->file.close();
  impl_->finished = true;
  return impl_->digest.finish();
}

}  // namespace k25::data
