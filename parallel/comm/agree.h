#pragma once
// Errors that all ranks share: either every rank goes on, or every rank throws the same error.

#include <functional>
#include <string_view>

#include "kernels/core/check.h"
#include "parallel/comm/communicator.h"

namespace k25::parallel {

/// The same error on every rank; only rank 0 prints it. `origin` is the lowest rank that failed.
class AgreedError : public Error {
 public:
  AgreedError(ErrorKind kind, const std::string& message, int origin)
      : Error(kind, message), origin_(origin) {}
  int origin() const noexcept { return origin_; }

 private:
  int origin_;
};

/// Collective. Runs `body` on every rank; when any throws Error (or std::exception, as kInternal),
/// all throw AgreedError with the kind and message of the lowest failing rank, which is named in
/// the message when it is not alone ("rank 2 on host h: ..."). kCommunication errors pass through
/// unchanged.
void collectively(Communicator& comm, std::string_view name, const std::function<void()>& body);

/// Collective. Rank 0 runs `make` and its string reaches all; an error on rank 0 is agreed upon.
std::string from_rank0(Communicator& comm, std::string_view name,
                       const std::function<std::string()>& make);

}  // namespace k25::parallel
