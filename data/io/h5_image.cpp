#include "data/io/h5_image.h"

#include <algorithm>
#include <cstring>

namespace k25::data {

namespace {

struct Settings {
  H5Image* image;
};

/// What the library keeps of an open file: its own part must come first.
struct OpenFile {
  H5FD_t library;
  H5Image* image;
  haddr_t allocated;
};

OpenFile& cast(H5FD_t* file) { return *reinterpret_cast<OpenFile*>(file); }
const OpenFile& cast(const H5FD_t* file) { return *reinterpret_cast<const OpenFile*>(file); }

/// Exceptions may not pass through C code.
template <class Action>
herr_t guarded(Action action) {
  try {
    action();
    return 0;
  } catch (const std::exception&) {
    return -1;
  }
}

H5FD_t* open_image(const char* /*name*/, unsigned /*flags*/, hid_t access, haddr_t /*max*/) {
  const auto* settings = static_cast<const Settings*>(H5Pget_driver_info(access));
  if (settings == nullptr) return nullptr;
  auto file = std::make_unique<OpenFile>();
  file->image = settings->image;
  return &file.release()->library;
}

herr_t close_image(H5FD_t* file) {
  const std::unique_ptr<OpenFile> owner(&cast(file));
  return 0;
}

herr_t query(const H5FD_t* /*file*/, unsigned long* flags) {
  if (flags != nullptr) *flags = 0;
  return 0;
}

haddr_t get_allocated(const H5FD_t* file, H5FD_mem_t /*type*/) { return cast(file).allocated; }

herr_t set_allocated(H5FD_t* file, H5FD_mem_t /*type*/, haddr_t end) {
  cast(file).allocated = end;
  return 0;
}

haddr_t get_end(const H5FD_t* file, H5FD_mem_t /*type*/) {
  return static_cast<haddr_t>(cast(file).image->end());
}

herr_t read_image(H5FD_t* file, H5FD_mem_t /*type*/, hid_t /*list*/, haddr_t at, size_t size,
                  void* out) {
  return guarded([&] {
    cast(file).image->read(static_cast<std::int64_t>(at), {static_cast<std::byte*>(out), size});
  });
}

herr_t write_image(H5FD_t* file, H5FD_mem_t /*type*/, hid_t /*list*/, haddr_t at, size_t size,
                   const void* bytes) {
  return guarded([&] {
    cast(file).image->write(static_cast<std::int64_t>(at),
                            {static_cast<const std::byte*>(bytes), size});
  });
}

herr_t truncate_image(H5FD_t* file, hid_t /*list*/, hbool_t /*closing*/) {
  return guarded([&] {
    const auto end = static_cast<std::int64_t>(cast(file).allocated);
    if (cast(file).image->end() != end) cast(file).image->set_end(end);
  });
}

H5FD_class_t driver_class() {
  H5FD_class_t c{};
#ifdef H5FD_CLASS_VERSION  // HDF5 1.14
  c.version = H5FD_CLASS_VERSION;
  c.value = static_cast<H5FD_class_value_t>(600);  // of the range that is free for private use
#endif
  c.name = "k25";
  c.maxaddr = (haddr_t{1} << 63) - 1;
  c.fc_degree = H5F_CLOSE_STRONG;
  c.fapl_size = sizeof(Settings);
  c.open = open_image;
  c.close = close_image;
  c.query = query;
  c.get_eoa = get_allocated;
  c.set_eoa = set_allocated;
  c.get_eof = get_end;
  c.read = read_image;
  c.write = write_image;
  c.truncate = truncate_image;
  constexpr H5FD_mem_t kMap[] = H5FD_FLMAP_DICHOTOMY;
  std::copy(std::begin(kMap), std::end(kMap), c.fl_map);
  return c;
}

}  // namespace

void H5MemoryImage::read(std::int64_t at, std::span<std::byte> out) {
  while (!out.empty()) {
    const auto n = std::min(static_cast<std::size_t>(kPage - at % kPage), out.size());
    const auto page = pages_.find(at / kPage);
    if (page == pages_.end()) {
      std::memset(out.data(), 0, n);
    } else {
      std::memcpy(out.data(), page->second.data() + at % kPage, n);
    }
    out = out.subspan(n);
    at += static_cast<std::int64_t>(n);
  }
}

void H5MemoryImage::write(std::int64_t at, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto n = std::min(static_cast<std::size_t>(kPage - at % kPage), bytes.size());
    std::memcpy(pages_[at / kPage].data() + at % kPage, bytes.data(), n);
    bytes = bytes.subspan(n);
    at += static_cast<std::int64_t>(n);
  }
  end_ = std::max(end_, at);
}

void H5MemoryImage::copy_to(const FileHandle& file) const {
  for (const auto& [number, page] : pages_) {
    const auto n = std::clamp<std::int64_t>(end_ - number * kPage, 0, kPage);
    file.write(number * kPage, std::span(page).first(static_cast<std::size_t>(n)));
  }
}

void H5FileImage::set_end(std::int64_t /*end*/) {
  fail(ErrorKind::kInternal, file_.path().string() + ": HDF5 changes the size of a finished file");
}

void H5FileImage::write(std::int64_t /*at*/, std::span<const std::byte> /*bytes*/) {
  fail(ErrorKind::kInternal, file_.path().string() + ": HDF5 writes to a finished file");
}

bool use_image(hid_t access, H5Image& image) {
  const H5FD_class_t driver = driver_class();
  const hid_t id = H5FDregister(&driver);
  if (id < 0) return false;
  const Settings settings{&image};
  const bool ok = H5Pset_driver(access, id, &settings) >= 0;
  H5FDunregister(id);  // the access list keeps a reference of its own
  return ok;
}

}  // namespace k25::data
