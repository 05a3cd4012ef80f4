#pragma once
// Private to parallel/zero: whole gradients of units, and their way to the shards.
//
// A group is the run of micro-batches that adds up before a unit is reduced (a slot, a step, or
// one). A whole gradient is zero when the group first asks for it, but for what its blocks write
// first (GradientStart). Reductions run one at a time,
// behind the computation of the next unit's gradient: all share one scratch. One rank with one slot
// has nothing to reduce: the whole gradient is the shard's.

#include <vector>

#include "parallel/zero/finite_log.h"
#include "parallel/zero/host_state.h"
#include "parallel/zero/zero_memory.h"

namespace k25::parallel {

class Reducer {
 public:
  Reducer(Mesh& mesh, const ZeroShape& shape, const ZeroMemory& memory, HostState& host,
          Context& context);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  void begin_step();
  const std::vector<Tensor>& gradient(int unit);
  GradientState gradient_state(int unit) const;
  void gradient_done(int unit);
  void end_micro_batch();
  void finish();
  ZeroStore::BadElement first_bad() const { return finite_.first(); }
  double take_wait_seconds();

 private:
  struct Unit {
    bool open = false;   ///< asked for in this micro-batch
    bool done = false;   ///< done in this micro-batch
    bool dirty = false;  ///< holds or stands for gradients of this group that are not reduced yet
    bool has_buffer = false;
    bool formed = false;  ///< had a buffer in this step
    GradientState state = GradientState::kUnwritten;
    Tensor whole;  ///< [padded], while has_buffer
    std::vector<Tensor> views;
  };

  bool group_ends() const { return (micro_batch_ + 1) % shape_.per_reduction == 0; }
  void give_buffer(int unit);
  void clear(int unit) const;
  void clear_all_but_written(int unit) const;
  int free_pool_buffer(int unit);
  void reduce(int unit);
  void wait_running();
  void gather_replicated();

  Mesh& mesh_;
  const ZeroShape& shape_;
  const ZeroMemory& memory_;
  HostState& host_;
  Context& context_;
  std::vector<Unit> units_;
  std::vector<int> pool_owner_;     ///< unit, or -1
  std::vector<int> slice_of_rank_;  ///< of data_comm
  std::int64_t micro_batch_ = 0;
  Work running_;
  int running_unit_ = -1;
  bool running_is_last_ = false;  ///< of the step, for its unit
  FiniteLog finite_;
  double waited_ = 0.0;
};

}  // namespace k25::parallel
