#pragma once
// Private to parallel/zero: whole parameters, gathered when needed.
//
// A buffer is a cache entry: it keeps its unit after the release until the room is needed. The room
// of a unit that backward has released goes first, then that of one that forward has released
// (backward wants it again), oldest first; that of a prefetched unit only when acquire finds no
// other.
//
// Where every unit has a buffer of its own, this rank's part stays in it from one gather to the
// next: updates keep it equal to the master, rounded.

#include <vector>

#include "parallel/zero/host_state.h"
#include "parallel/zero/zero_memory.h"

namespace k25::parallel {

class Gatherer {
 public:
  Gatherer(Mesh& mesh, const ZeroShape& shape, const ZeroMemory& memory, HostState& host,
           Context& context);
  ~Gatherer();
  Gatherer(const Gatherer&) = delete;
  Gatherer& operator=(const Gatherer&) = delete;

  void prefetch(int unit);
  const std::vector<Tensor>& acquire(int unit);
  void release(int unit, Phase phase);
  /// This rank's part, for an update that writes each new element of the master there too, rounded
  /// to bf16. Absent: the next gather forms the part anew.
  Tensor part_to_update(int unit);
  /// Drops all gathered copies. `why` names the caller in the error for a unit still acquired.
  void drop(const char* why);
  /// Tells that masters were written by other means than part_to_update.
  void forget_parts();
  double take_wait_seconds();

 private:
  struct Unit {
    int buffer = -1;
    int users = 0;
    bool part_is_there = false;  ///< in its own buffer
    std::vector<Tensor> views;
  };
  struct Buffer {
    int unit = -1;
    bool wanted = false;  ///< prefetched and not yet acquired
    Phase released = Phase::kForward;
    std::int64_t released_at = 0;
    Work fetched;  ///< this rank's own part, from host memory
    Work work;
  };

  bool fixed() const { return shape_.gather_pool == 0; }
  Tensor storage(int unit, int buffer) const;  ///< the whole unit's
  Tensor part(int unit, const Tensor& storage) const;
  int find_room(int unit) const;
  bool better_victim(const Buffer& a, const Buffer& b) const;
  void start(int unit, int buffer);
  void vacate(int buffer);
  void point_views(int unit, const Tensor& storage);
  void wait(Work& work);
  [[noreturn]] void fail_no_room(int unit) const;

  Mesh& mesh_;
  const ZeroShape& shape_;
  const ZeroMemory& memory_;
  HostState& host_;
  Context& context_;
  std::vector<Unit> units_;
  std::vector<Buffer> buffers_;
  std::vector<int> own_buffer_;  ///< per unit, -1: none
  std::int64_t clock_ = 0;
  double waited_ = 0.0;
};

}  // namespace k25::parallel
