#pragma once
// Errors. Host code throws one type; k25's main is the only catch.

#include <exception>
#include <source_location>
#include <stdexcept>
#include <string>

namespace k25 {

/// What went wrong, seen from the user. The value is the exit code of the k25 program.
enum class ErrorKind : int {
  kInternal = 1,       ///< a bug of ours, or a library that broke its contract
  kUsage = 2,          ///< config, command line, or an invalid argument of the kernel library
  kData = 3,           ///< documents, corpus or graph
  kCheckpoint = 4,     ///< checkpoint or run directory
  kNumeric = 5,        ///< the numeric policy gave up
  kCommunication = 6,  ///< a peer stopped, or a collective made no progress
  kGate = 7,           ///< a quality gate stopped the run
};

/// The one exception type. `message` is complete for the user: file, line, value and the mend.
/// `what()` equals `message()`; the source location is for bug reports (kInternal).
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message,
        std::source_location where = std::source_location::current());

  ErrorKind kind() const noexcept { return kind_; }
  int exit_code() const noexcept { return static_cast<int>(kind_); }
  const std::source_location& where() const noexcept { return where_; }

 private:
  ErrorKind kind_;
  std::source_location where_;
};

/// Throws Error. A function, so that the cold path stays out of callers.
[[noreturn]] void fail(ErrorKind kind, const std::string& message,
                       std::source_location where = std::source_location::current());

/// An exception of any kind as an Error. What the system refuses is no bug of ours: a path that may
/// not be used is kCheckpoint (callers that know of a better kind throw it themselves), a thread
/// that cannot be started and memory that is not given are kUsage, naming the limits. What is left
/// is kInternal.
Error as_error(const std::exception& error);

/// "out of memory: this rank asked for `wanted` more than the system gives; ...", with the limit on
/// the address space when there is one.
std::string out_of_memory(const std::string& wanted);

/// What limits threads, for messages: the address space (a thread needs a stack) when it is
/// limited, else the number of processes and threads.
std::string thread_limits();

/// Throws a kUsage error whose text names the failed condition and `why`.
[[noreturn]] void check_failed(const char* condition, const std::string& why,
                               std::source_location where);

inline constexpr bool kWithCuda = K25_WITH_CUDA;

}  // namespace k25

/// Always on, in every build. `why` is evaluated only on failure and says what would be right.
#define K25_CHECK(cond, why)                                              \
  do {                                                                    \
    if (!(cond)) [[unlikely]]                                             \
      ::k25::check_failed(#cond, (why), std::source_location::current()); \
  } while (false)
