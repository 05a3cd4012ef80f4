#pragma once
// The HDF5 C library behind one lock. Internal to data/io.

#include <hdf5.h>

#include <mutex>
#include <string>
#include <utility>

#include "data/io/h5_image.h"
#include "data/io/h5_layout.h"

namespace k25::data {

/// Held around every HDF5 call. The library is one state of the whole process, and Debian builds it
/// without thread safety, so the lock is one of the process too. Silences the library's error
/// stack. Throws kUsage when memory is short: HDF5 1.10 crashes where it is refused its cache (1
/// MiB) in opening a file.
class H5Lock {
 public:
  H5Lock();

 private:
  std::scoped_lock<std::mutex> lock_;
};

/// An HDF5 identifier with the function that closes it.
class H5Id {
 public:
  H5Id(hid_t id, herr_t (*closer)(hid_t)) : id_(id), closer_(closer) {}
  ~H5Id() {
    if (id_ >= 0) closer_(id_);
  }
  H5Id(H5Id&& other) noexcept : id_(std::exchange(other.id_, -1)), closer_(other.closer_) {}
  H5Id& operator=(H5Id&&) = delete;
  hid_t get() const { return id_; }
  bool valid() const { return id_ >= 0; }
  /// Closes now; false when the library reports a failure.
  bool close() { return closer_(std::exchange(id_, -1)) >= 0; }

 private:
  hid_t id_;
  herr_t (*closer_)(hid_t);
};

/// The innermost message of the library's error stack, one line.
std::string h5_error_text();

/// File access to `image`, data aligned to 4096. The image must outlive the opened file.
H5Id h5_file_access(H5Image& image);

/// The file type of `type`.
H5Id h5_file_type(H5Type type);

}  // namespace k25::data
