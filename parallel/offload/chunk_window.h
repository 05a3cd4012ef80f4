#pragma once
// Passes over all chunks of a mover, 0, 1, 2, ... and again, through a few slots of memory: while
// one chunk is worked on, the next ones arrive and the last ones leave. The first chunks of a pass
// arrive at the end of the one before, so that a pass a step begins without waiting.
//
// take(), release() and drain() come from one thread at a time.
//
// Errors  those of the mover, from take() and drain(); after one, every call repeats it.

#include <condition_variable>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "parallel/offload/mover.h"

namespace k25::parallel {

enum class Change : std::uint8_t { kNone, kWritten };

class ChunkWindow {
 public:
  /// `slots`: memory of one chunk each, two or more; as many as there are chunks are used. Nobody
  /// else moves chunks of `mover`.
  ChunkWindow(Mover& mover, std::vector<std::span<std::byte>> slots);
  /// Waits for what is in flight; a chunk that is taken is lost.
  ~ChunkWindow();
  ChunkWindow(const ChunkWindow&) = delete;
  ChunkWindow& operator=(const ChunkWindow&) = delete;

  /// Blocks until the next chunk is here. Release the last one first.
  std::span<std::byte> take();
  /// kWritten: the chunk leaves. kNone: what the tier has is still right.
  void release(Change change);
  /// Blocks until all chunks are away. The next take() gives chunk 0.
  void drain();

 private:
  /// What fills a slot now: the position of the endless sequence of chunks.
  struct Slot {
    std::span<std::byte> memory;
    std::int64_t position = -1;
    bool here = false;
    std::int64_t wanted = -1;  ///< the position that comes as soon as its chunk is away
  };

  int chunk_at(std::int64_t position) const;
  Slot& slot_at(std::int64_t position);
  void fill();
  void want(std::int64_t position);
  void start_wanted();
  Slot* next_to_start();
  void require_well() const;

  Mover& mover_;
  std::vector<Slot> slots_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::int64_t next_ = 0;  // position that take() gives
  bool filled_ = false, taken_ = false, draining_ = false;
  std::int64_t in_flight_ = 0;
  std::optional<Error> failure_;
};

}  // namespace k25::parallel
