#include "kernels/core/check.h"

#include <sys/resource.h>

#include <filesystem>
#include <system_error>

namespace k25 {
namespace {

std::string thread_limits() {
  rlimit limit{};
  const bool known = getrlimit(RLIMIT_NPROC, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return "the limit is on the processes and threads of this user (ulimit -u: " +
         (known ? std::to_string(limit.rlim_cur) : std::string("unlimited")) +
         ") or of its control group (pids.max); raise it, or start fewer ranks or run.cpu_threads";
}

std::string path_words(const std::filesystem::filesystem_error& error) {
  std::string paths = error.path1().string();
  if (!error.path2().empty()) paths += " (" + error.path2().string() + ")";
  return paths + ": " + error.code().message();
}

}  // namespace

Error::Error(ErrorKind kind, const std::string& message, std::source_location where)
    : std::runtime_error(message), kind_(kind), where_(where) {}

void fail(ErrorKind kind, const std::string& message, std::source_location where) {
  throw Error(kind, message, where);
}

Error as_error(const std::exception& error) {
  if (const auto* ours = dynamic_cast<const Error*>(&error)) return *ours;
  if (const auto* path = dynamic_cast<const std::filesystem::filesystem_error*>(&error)) {
    return {ErrorKind::kCheckpoint, path_words(*path)};
  }
  const auto* system = dynamic_cast<const std::system_error*>(&error);
  if (system != nullptr && system->code() == std::errc::resource_unavailable_try_again) {
    return {ErrorKind::kUsage, "no thread can be started: " + thread_limits()};
  }
  return {ErrorKind::kInternal, error.what()};
}

void check_failed(const char* condition, const std::string& why, std::source_location where) {
  throw Error(ErrorKind::kUsage,
              std::string(where.file_name()) + ":" + std::to_string(where.line()) + ": " + why +
                  " (" + condition + ")",
              where);
}

}  // namespace k25
