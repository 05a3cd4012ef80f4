#pragma once
// Private to parallel/comm: a collective as a list of steps, run by the communication thread.
//
// A step posts messages (or computes); the next one runs when all of them have completed.
// Everything is a direct exchange between pairs of ranks, so a rank knows exactly which peers it
// still misses.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "parallel/comm/call_checks.h"
#include "parallel/comm/call_state.h"
#include "parallel/comm/collective_log.h"

namespace k25::parallel {

/// One communicator, shared by its handle and its calls in flight.
struct Channel {
  int number = 0;  ///< of the transport
  int rank = 0;
  std::vector<int> world_ranks;  ///< of the channel's ranks
  std::string name;
  std::atomic<std::int64_t> in_flight{0};

  int size() const { return static_cast<int>(world_ranks.size()); }
};

/// Posts the messages of one step, cut into chunks. Zero bytes make one empty message.
class Poster {
 public:
  virtual ~Poster() = default;
  virtual void send(int peer, const void* data, std::int64_t bytes) = 0;
  virtual void receive(int peer, void* data, std::int64_t bytes) = 0;
  virtual void reduce(int root, const float* input, float* output, std::int64_t count) = 0;
};

enum class Turn : std::uint8_t {
  kAny,    ///< the steps run as soon as they can
  kAlone,  ///< after earlier calls of the communicator (the library's collectives need one order)
};

struct Operation {
  using Step = std::function<void(Poster&)>;

  CallId id;
  std::shared_ptr<Channel> channel;
  std::shared_ptr<CallState> state;
  std::vector<Step> steps;
  Turn turn = Turn::kAny;
  std::int64_t max_chunk = 0;
  std::int64_t log_key = -1;

  // Written by the communication thread under its mutex, read by waiting_for().
  std::size_t next_step = 0;
  std::int64_t outstanding = 0;            ///< messages of the current step
  std::vector<std::int64_t> missing_from;  ///< receives outstanding, by rank of the channel
  std::vector<std::int64_t> unsent_to;     ///< sends outstanding
};

/// Calls `f(offset, size)` for the pieces of `bytes`, each at most `max_chunk`; once with (0, 0)
/// for nothing at all.
template <class F>
void for_each_chunk(std::int64_t bytes, std::int64_t max_chunk, const F& f) {
  if (bytes == 0) f(std::int64_t{0}, std::int64_t{0});
  for (std::int64_t offset = 0; offset < bytes; offset += max_chunk) {
    f(offset, bytes - offset < max_chunk ? bytes - offset : max_chunk);
  }
}

}  // namespace k25::parallel
