#include "parallel/comm/agree.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <optional>
#include <string>

#include "kernels/core/philox.h"
#include "parallel/comm/single_backend.h"

namespace k25::parallel {
namespace {

struct Failure {
  ErrorKind kind = ErrorKind::kInternal;
  std::string message;
};

/// Runs `body`; communication errors pass, because then nothing can be agreed upon.
std::optional<Failure> attempt(const std::function<void()>& body) {
  try {
    body();
    return std::nullopt;
  } catch (const Error& e) {
    if (e.kind() == ErrorKind::kCommunication) throw;
    return Failure{e.kind(), e.what()};
  } catch (const std::exception& e) {
    const Error error = as_error(e);
    return Failure{error.kind(), error.what()};
  } catch (...) {
    return Failure{ErrorKind::kInternal, "an exception of an unknown type"};
  }
}

std::string broadcast_string(Communicator& comm, std::string_view name, std::string text,
                             int root) {
  auto size = static_cast<std::int64_t>(text.size());
  comm.broadcast({name}, {&size, Bytes{sizeof(size)}, root}).wait();
  text.resize(static_cast<std::size_t>(size));
  comm.broadcast({name}, {text.data(), Bytes{size}, root}).wait();
  return text;
}

enum class Prefix : std::uint8_t { kNone, kRank };

void agree(Communicator& comm, std::string_view name, const std::optional<Failure>& failure,
           Prefix prefix) {
  // min over ranks of: the failing rank; the failure's hash and its negative (equal everywhere or
  // not). 62 bits, so that the negative exists.
  const std::int64_t hash =
      failure ? static_cast<std::int64_t>(name_hash(failure->message) >> 2) : -1;
  std::array<std::int64_t, 3> votes = {failure ? comm.rank() : comm.size(), hash, -hash};
  AllReduceSmall args;
  args.integers = votes.data();
  args.count = static_cast<std::int64_t>(votes.size());
  args.op = ReduceOp::kMin;
  comm.all_reduce_small({name}, args).wait();
  if (votes[0] == comm.size()) return;

  const int origin = static_cast<int>(votes[0]);
  const bool same_everywhere = votes[1] == -votes[2];
  auto kind = static_cast<std::int64_t>(failure ? failure->kind : ErrorKind::kInternal);
  comm.broadcast({name}, {&kind, Bytes{sizeof(kind)}, origin}).wait();
  std::string message = failure ? failure->message : std::string();
  if (prefix == Prefix::kRank && !same_everywhere && comm.size() > 1) {
    message = fmt::format("rank {} on host {}: {}", comm.rank(), host_name(), message);
  }
  message = broadcast_string(comm, name, std::move(message), origin);
  throw AgreedError(static_cast<ErrorKind>(kind), message, origin);
}

}  // namespace

void collectively(Communicator& comm, std::string_view name, const std::function<void()>& body) {
  agree(comm, name, attempt(body), Prefix::kRank);
}

std::string from_rank0(Communicator& comm, std::string_view name,
                       const std::function<std::string()>& make) {
  std::string text;
  std::optional<Failure> failure;
  if (comm.rank() == 0) failure = attempt([&] { text = make(); });
  agree(comm, name, failure, Prefix::kNone);
  return broadcast_string(comm, name, std::move(text), 0);
}

}  // namespace k25::parallel
