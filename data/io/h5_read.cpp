// Reading half of h5_layout.h.

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "data/io/file_handle.h"
#include "data/io/h5_layout.h"
#include "data/io/h5_library.h"
#include "fmt/format.h"

namespace k25::data {

namespace {

constexpr int kMaxDepth = 16;
constexpr std::array kTypes = {H5Type::kU8,  H5Type::kU16, H5Type::kU32, H5Type::kI32,
                               H5Type::kI64, H5Type::kF32, H5Type::kF64, H5Type::kBF16};

std::uint64_t little_endian(std::span<const std::byte> bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) {
    value = (value << 8) | std::to_integer<std::uint64_t>(bytes[i]);
  }
  return value;
}

/// The end of file that the superblock claims; nothing for a superblock unlike any that HDF5
/// writes. Layout: HDF5 File Format Specification 3.0, II.A.
std::optional<std::int64_t> end_of_file(std::span<const std::byte> head) {
  const std::size_t version = std::to_integer<std::size_t>(head[8]);
  const bool old = version < 2;
  if (version > 3 || std::to_integer<int>(head[old ? 13 : 9]) != 8) return std::nullopt;
  const std::size_t at = version == 0 ? 40 : version == 1 ? 44 : 28;
  return static_cast<std::int64_t>(little_endian(head.subspan(at, 8)));
}

/// What HDF5 would say cryptically or not at all.
void check_superblock(const FileHandle& file) {
  constexpr std::array<unsigned char, 8> kSignature = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};
  const std::int64_t size = file.size();
  std::array<std::byte, 52> head{};
  if (size >= static_cast<std::int64_t>(head.size())) file.read(0, head);
  if (std::memcmp(head.data(), kSignature.data(), kSignature.size()) != 0) {
    fail(file.kind(),
         fmt::format("{}: {} bytes without an HDF5 header: truncated or unfinished, or "
                     "another kind of file",
                     file.path().string(), size));
  }
  const auto claimed = end_of_file(head);
  if (!claimed) {
    fail(file.kind(), fmt::format("{}: {} bytes with a damaged or unknown HDF5 header",
                                  file.path().string(), size));
  }
  if (*claimed != size) {
    fail(file.kind(), fmt::format("{}: expected {} bytes by its header, has {}: {}",
                                  file.path().string(), *claimed, size,
                                  *claimed > size ? "truncated or unfinished"
                                                  : "written to after it was finished"));
  }
}

[[noreturn]] void fail_dataset(const FileHandle& file, const std::string& name,
                               const std::string& why) {
  fail(file.kind(), fmt::format("{}: {}: {}", file.path().string(), name, why));
}

H5Dataset describe(const FileHandle& file, const std::string& name, hid_t id) {
  const H5Id type(H5Dget_type(id), H5Tclose);
  const H5Id space(H5Dget_space(id), H5Sclose);
  const H5Id list(H5Dget_create_plist(id), H5Pclose);
  if (!type.valid() || !space.valid() || !list.valid()) fail_dataset(file, name, h5_error_text());
  if (H5Pget_layout(list.get()) != H5D_CONTIGUOUS || H5Pget_external_count(list.get()) != 0) {
    fail_dataset(file, name, "is not stored in one piece inside the file");
  }
  H5Dataset dataset;
  bool known = false;
  for (const H5Type candidate : kTypes) {
    if (H5Tequal(type.get(), h5_file_type(candidate).get()) > 0) {
      dataset.type = candidate;
      known = true;
    }
  }
  if (!known) fail_dataset(file, name, "has an element type that k25 does not use");
  std::vector<hsize_t> extents(
      static_cast<std::size_t>(std::max(0, H5Sget_simple_extent_ndims(space.get()))));
  H5Sget_simple_extent_dims(space.get(), extents.data(), nullptr);
  std::int64_t bytes = h5_type_bytes(dataset.type);
  bool too_large = false;
  for (const hsize_t extent : extents) {
    dataset.shape.push_back(static_cast<std::int64_t>(extent));
    too_large |=
        dataset.shape.back() < 0 || __builtin_mul_overflow(bytes, dataset.shape.back(), &bytes);
  }
  const std::int64_t size = file.size();
  if (!too_large && bytes == 0) return dataset;
  const haddr_t offset = H5Dget_offset(id);
  if (too_large || offset == HADDR_UNDEF || bytes > size || static_cast<std::int64_t>(offset) < 0 ||
      static_cast<std::int64_t>(offset) > size - bytes) {
    fail_dataset(file, name, fmt::format("claims more than the file's {} bytes", size));
  }
  dataset.offset = static_cast<std::int64_t>(offset);
  return dataset;
}

struct Link {
  std::string name;
  bool hard = false;
};

herr_t collect_link(hid_t /*group*/, const char* name, const H5L_info_t* info, void* out) {
  static_cast<std::vector<Link>*>(out)->push_back({name, info->type == H5L_TYPE_HARD});
  return 0;
}

void walk(const FileHandle& file, hid_t group, const std::string& prefix, int depth,
          H5Layout& layout) {
  if (depth > kMaxDepth) fail_dataset(file, prefix, "is nested too deeply");
  std::vector<Link> links;
  // In the order of the file: for any other HDF5 1.10 makes a table first, and frees entries of it
  // that it never filled when the group is damaged.
  if (H5Literate(group, H5_INDEX_NAME, H5_ITER_NATIVE, nullptr, collect_link, &links) < 0) {
    fail_dataset(file, prefix.empty() ? "/" : prefix, h5_error_text());
  }
  std::ranges::sort(links, {}, &Link::name);
  for (const auto& link : links) {
    const std::string name = prefix + "/" + link.name;
    if (!link.hard) fail_dataset(file, name, "is a link, k25 writes none");
    const H5Id object(H5Oopen(group, link.name.c_str(), H5P_DEFAULT), H5Oclose);
    if (!object.valid()) fail_dataset(file, name, h5_error_text());
    const H5I_type_t type = H5Iget_type(object.get());
    if (type == H5I_GROUP) {
      walk(file, object.get(), name, depth + 1, layout);
    } else if (type == H5I_DATASET) {
      layout[name] = describe(file, name, object.get());
    }
  }
}

H5Layout read_layout(const FileHandle& file) {
  check_superblock(file);
  const H5Lock lock;
  H5FileImage image(file);
  const H5Id access = h5_file_access(image);
  const H5Id id(H5Fopen("k25", H5F_ACC_RDONLY, access.get()), H5Fclose);
  if (!id.valid()) {
    fail(file.kind(), fmt::format("{}: {} bytes, damaged HDF5 header: {}", file.path().string(),
                                  file.size(), h5_error_text()));
  }
  H5Layout layout;
  walk(file, id.get(), "", 0, layout);
  return layout;
}

}  // namespace

H5Layout read_h5_layout(const std::filesystem::path& path, ErrorKind kind) {
  return read_layout(FileHandle::open_to_read(path, kind));
}

struct H5File::Impl {
  FileHandle file;
  H5Layout layout;
  FileStamp stamp;
};

H5File::H5File(const std::filesystem::path& path, ErrorKind kind)
    : impl_(std::make_unique<Impl>()) {
  impl_->file = FileHandle::open_to_read(path, kind);
  impl_->stamp = impl_->file.stamp();
  impl_->layout = read_layout(impl_->file);
}

H5File::~H5File() = default;
H5File::H5File(H5File&&) noexcept = default;
H5File& H5File::operator=(H5File&&) noexcept = default;

const H5Layout& H5File::layout() const { return impl_->layout; }

bool H5File::has(const std::string& dataset) const { return impl_->layout.contains(dataset); }

const H5Dataset& H5File::dataset(const std::string& name, H5Type type) const {
  const FileHandle& file = impl_->file;
  const auto found = impl_->layout.find(name);
  if (found == impl_->layout.end()) {
    fail(file.kind(), fmt::format("{}: dataset {} is missing", file.path().string(), name));
  }
  if (found->second.type != type) {
    fail(file.kind(), fmt::format("{}: dataset {} holds {}, expected {}", file.path().string(),
                                  name, h5_type_name(found->second.type), h5_type_name(type)));
  }
  return found->second;
}

void H5File::read(const H5Dataset& dataset, Bytes offset, std::span<std::byte> out) const {
  const auto bytes = static_cast<std::int64_t>(out.size());
  K25_CHECK(offset.n >= 0 && offset.n <= dataset.bytes() - bytes,
            fmt::format("{}: bytes [{}, {}) of a dataset of {}", impl_->file.path().string(),
                        offset.n, offset.n + bytes, dataset.bytes()));
  if (bytes > 0) impl_->file.read(dataset.offset + offset.n, out);
}

void H5File::require_unchanged() const {
  const FileHandle& file = impl_->file;
  const FileStamp now = file.stamp();
  if (now == impl_->stamp) return;
  fail(file.kind(),
       fmt::format("{}: {} while it was in use ({} bytes at first, now {}): restore it and start "
                   "again",
                   file.path().string(),
                   now.size < impl_->stamp.size ? "was shortened" : "was written to",
                   impl_->stamp.size, now.size));
}

}  // namespace k25::data
