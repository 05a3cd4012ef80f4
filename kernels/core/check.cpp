#include "kernels/core/check.h"

#include <sys/resource.h>

#include <cstdint>
#include <filesystem>
#include <new>
#include <optional>
#include <system_error>

namespace k25 {
namespace {

std::optional<std::uint64_t> limit_on(int resource) {
  rlimit limit{};
  const bool known = getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) == 0;
  if (!known || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return limit.rlim_cur;
}

/// Of the address space, as the shell shows it; "" when there is none.
std::string address_limit() {
  const std::optional<std::uint64_t> bytes = limit_on(RLIMIT_AS);
  return bytes ? "ulimit -v: " + std::to_string(*bytes / 1024) + " KiB" : std::string();
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

std::string out_of_memory(const std::string& wanted) {
  const std::string limit = address_limit();
  return "out of memory: this rank asked for " + wanted +
         " more than the system gives; use more ranks, a smaller train.micro_batch or "
         "data.sequence, or a "
         "smaller model" +
         (limit.empty() ? "" : ", or raise the limit on its address space (" + limit + ")");
}

std::string thread_limits() {
  const std::string addresses = address_limit();
  const std::optional<std::uint64_t> threads = limit_on(RLIMIT_NPROC);
  const std::string count = "on the processes and threads of this user (ulimit -u: " +
                            (threads ? std::to_string(*threads) : std::string("unlimited")) +
                            ") or of its control group (pids.max)";
  return "the limit is " +
         (addresses.empty() ? count
                            : "on the address space, since a thread needs a stack (" + addresses +
                                  "), or " + count) +
         "; raise it, or start fewer ranks or run.cpu_threads";
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
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    return {ErrorKind::kUsage, out_of_memory("memory")};
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
