#include "parallel/offload/file_engine.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>

namespace k25::parallel {

bool advance(FileRequest& request, std::int64_t result, const std::string& file,
             std::optional<Error>& error) {
  if (result == -EINTR || result == -EAGAIN) return false;
  const char* const what = request.kind == FileRequest::Kind::kRead ? "read" : "write";
  if (result <= 0) {
    error.emplace(
        ErrorKind::kCheckpoint,
        fmt::format(
            "{}: cannot {} {} bytes at offset {}: {}", file, what, request.left, request.offset,
            result == 0 ? "the file ends there" : std::strerror(static_cast<int>(-result))));
    return true;
  }
  request.offset += result;
  request.memory += result;
  request.left -= result;
  return request.left == 0;
}

}  // namespace k25::parallel
