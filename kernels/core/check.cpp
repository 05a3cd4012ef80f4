#include "kernels/core/check.h"

namespace k25 {

Error::Error(ErrorKind kind, const std::string& message, std::source_location where)
    : std::runtime_error(message), kind_(kind), where_(where) {}

void fail(ErrorKind kind, const std::string& message, std::source_location where) {
  throw Error(kind, message, where);
}

void check_failed(const char* condition, const std::string& why, std::source_location where) {
  throw Error(ErrorKind::kUsage,
              std::string(where.file_name()) + ":" + std::to_string(where.line()) + ": " + why +
                  " (" + condition + ")",
              where);
}

}  // namespace k25
