#pragma once
// Moves chunks between host memory and a tier behind it, and knows where each one is:
//
//   away --arrive--> arriving --> here --leave--> leaving --> away
//                                 here --drop--> away        (memory that was not changed)
//
// A move returns a token. When the tier is done, on a thread of the tier's, the chunk's state
// changes once, then the callback runs, then the token is done. A move that failed puts the chunk
// back where it was; callback and token have the error.
//
// All calls may come from any thread, a callback too.
//
// Errors  kInternal for a move from the wrong state, naming chunk and state; the tier's own.

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/offload/tier.h"

namespace k25::parallel {

enum class ChunkState : std::uint8_t { kAway, kArriving, kHere, kLeaving };

class Mover {
 public:
  /// Called once, with the error of a move that failed; it does not block.
  using Callback = Tier::Done;

  /// Chunk c lies at c * chunk of the tier, which holds `count` of them. All are away at first.
  Mover(Tier& tier, Bytes chunk, int count);
  /// Waits for everything in flight.
  ~Mover();
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  Bytes chunk() const { return chunk_; }
  int count() const { return static_cast<int>(states_.size()); }
  ChunkState state(int chunk) const;

  /// `to` and `from` have chunk() bytes and stay the mover's until the token is done.
  Work arrive(int chunk, std::span<std::byte> to, Callback callback = {});
  Work leave(int chunk, std::span<const std::byte> from, Callback callback = {});
  void drop(int chunk);

 private:
  struct Move {
    int chunk;
    ChunkState during, ends, fails;
  };
  class Token;

  void change(int chunk, ChunkState from, ChunkState to);
  Bytes begin(const Move& move, std::size_t bytes);
  Tier::Done finish(const Move& move, std::shared_ptr<Token> token, Callback callback);

  Tier& tier_;
  Bytes chunk_;
  mutable std::mutex mutex_;
  std::condition_variable idle_;
  std::vector<ChunkState> states_;
  std::int64_t in_flight_ = 0;  // until the callback has returned
};

}  // namespace k25::parallel
