#include "data/io/h5_library.h"

#include "kernels/core/buffer.h"

namespace k25::data {

namespace {

std::mutex& h5_mutex() {
  static std::mutex mutex;
  return mutex;
}

herr_t keep_innermost(unsigned depth, const H5E_error2_t* error, void* out) {
  if (depth == 0 && error->desc != nullptr) *static_cast<std::string*>(out) = error->desc;
  return 0;
}

}  // namespace

H5Lock::H5Lock() : lock_(h5_mutex()) {
  constexpr Bytes kEnough{std::int64_t{8} << 20};
  require_host_memory(kEnough);
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

std::string hdf5_version() {
  const H5Lock lock;
  unsigned major = 0, minor = 0, release = 0;
  if (H5get_libversion(&major, &minor, &release) < 0) return "unknown";
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(release);
}

std::string h5_error_text() {
  std::string text = "HDF5 gives no reason";
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_innermost, &text);
  return text;
}

H5Id h5_file_access(H5Image& image) {
  H5Id access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  constexpr hsize_t kAlignment = 4096;
  // The format of HDF5 1.8 has check sums in its headers.
  const bool ok = access.valid() && use_image(access.get(), image) &&
                  H5Pset_alignment(access.get(), 1, kAlignment) >= 0 &&
                  H5Pset_libver_bounds(access.get(), H5F_LIBVER_V18, H5F_LIBVER_V18) >= 0 &&
                  H5Pset_fclose_degree(access.get(), H5F_CLOSE_STRONG) >= 0;
  if (!ok) fail(ErrorKind::kInternal, "HDF5 refuses a file access list: " + h5_error_text());
  return access;
}

H5Id h5_file_type(H5Type type) {
  const auto copy = [](hid_t id) { return H5Id(H5Tcopy(id), H5Tclose); };
  switch (type) {
    case H5Type::kU8:
      return copy(H5T_STD_U8LE);
    case H5Type::kU16:
      return copy(H5T_STD_U16LE);
    case H5Type::kU32:
      return copy(H5T_STD_U32LE);
    case H5Type::kI32:
      return copy(H5T_STD_I32LE);
    case H5Type::kI64:
      return copy(H5T_STD_I64LE);
    case H5Type::kF32:
      return copy(H5T_IEEE_F32LE);
    case H5Type::kF64:
      return copy(H5T_IEEE_F64LE);
    case H5Type::kBF16: {
      // A true floating-point type, so that other HDF5 readers convert it to float by themselves.
      H5Id t = copy(H5T_IEEE_F32LE);
      H5Tset_fields(t.get(), 15, 7, 8, 0, 7);
      H5Tset_precision(t.get(), 16);
      H5Tset_size(t.get(), 2);
      H5Tset_ebias(t.get(), 127);
      return t;
    }
  }
  fail(ErrorKind::kInternal, "unknown H5Type");
}

}  // namespace k25::data
