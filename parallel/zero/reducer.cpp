#include "parallel/zero/reducer.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/core/check.h"
#include "kernels/core/set_zero.h"
#include "kernels/core/stopwatch.h"
#include "parallel/zero/zero_queue.h"

namespace k25::parallel {

Reducer::Reducer(Mesh& mesh, const ZeroShape& shape, const ZeroMemory& memory, HostState& host,
                 Context& context)
    : mesh_(mesh),
      shape_(shape),
      memory_(memory),
      host_(host),
      context_(context),
      units_(shape.layouts.size()),
      pool_owner_(memory.gradients.size(), -1),
      finite_(memory.finite_marks, memory.host_marks) {
  for (std::size_t u = 0; u < units_.size(); ++u) {
    units_[u].views.resize(shape.layouts[u].parameters.size());
  }
  // The shard axis is the innermost, so data rank d = replicate * shards + shard.
  for (int d = 0; d < shape.data_ranks; ++d) slice_of_rank_.push_back(d % shape.shards);
}

Reducer::~Reducer() { settle(running_); }

void Reducer::begin_step() {
  wait_running();
  micro_batch_ = 0;
  finite_.begin_step();
  host_.begin_step();
  for (std::size_t u = 0; u < units_.size(); ++u) {
    units_[u].formed = false;
    const bool later = shape_.in_place && ZeroShape::trainable(shape_.layouts[u]);
    if (!later) set_zero(context_, memory_.shard_gradients[u]);
  }
}

const std::vector<Tensor>& Reducer::gradient(int unit) {
  Unit& u = at(units_, unit);
  const UnitLayout& layout = at(shape_.layouts, unit);
  if (u.done) {
    fail(ErrorKind::kInternal, fmt::format("unit {}: gradient after gradient_done in the same "
                                           "micro-batch; call gradient_done after the last use",
                                           layout.name));
  }
  if (!ZeroShape::trainable(layout)) return u.views;
  u.state = u.has_buffer ? GradientState::kSums : GradientState::kUnwritten;
  if (!u.has_buffer) {
    give_buffer(unit);
    clear_all_but_written(unit);
  }
  u.open = true;
  return u.views;
}

GradientState Reducer::gradient_state(int unit) const { return at(units_, unit).state; }

void Reducer::gradient_done(int unit) {
  Unit& u = at(units_, unit);
  if (u.done) {
    fail(ErrorKind::kInternal,
         fmt::format("unit {}: gradient_done twice in a micro-batch; a unit is reduced once",
                     at(shape_.layouts, unit).name));
  }
  u.done = true;
  if (!ZeroShape::trainable(at(shape_.layouts, unit))) return;
  u.dirty = true;
  if (group_ends()) reduce(unit);
}

void Reducer::end_micro_batch() {
  for (int i = 0; i < static_cast<int>(units_.size()); ++i) {
    const Unit& u = at(units_, i);
    if (u.open && !u.done) {
      fail(ErrorKind::kInternal,
           fmt::format("unit {}: gradient without gradient_done", at(shape_.layouts, i).name));
    }
    if (u.dirty && group_ends()) reduce(i);  // unused in the group's last micro-batch
  }
  for (Unit& u : units_) u.open = u.done = false;
  ++micro_batch_;
}

void Reducer::finish() {
  if (micro_batch_ != shape_.micro_batches) {
    fail(ErrorKind::kInternal,
         fmt::format("finish_gradients after {} micro-batches of this rank; the slots give it {}",
                     micro_batch_, shape_.micro_batches));
  }
  wait_running();
  for (int u = 0; shape_.in_place && u < static_cast<int>(units_.size()); ++u) {
    if (at(units_, u).formed || !ZeroShape::trainable(at(shape_.layouts, u))) continue;
    set_zero(context_, at(memory_.shard_gradients, u));  // no micro-batch used it
  }
  host_.finish_gradients();
  gather_replicated();
  finite_.finish_step(context_);
}

double Reducer::take_wait_seconds() { return std::exchange(waited_, 0.0); }

void Reducer::give_buffer(int unit) {
  Unit& u = at(units_, unit);
  const UnitLayout& layout = at(shape_.layouts, unit);
  if (running_unit_ == unit) wait_running();
  u.whole = at(memory_.own_gradients, unit);
  if (shape_.pooled(layout)) {
    const int buffer = free_pool_buffer(unit);
    at(pool_owner_, buffer) = unit;
    u.whole = at(memory_.gradients, buffer).slice(0, 0, layout.padded());
  }
  u.has_buffer = u.formed = true;
  point_parameters(layout, u.whole, u.views);
  for (std::size_t p = 0; p < u.views.size(); ++p) {
    if (layout.parameters[p].frozen) u.views[p] = Tensor{};
  }
}

void Reducer::clear(int unit) const { set_zero(context_, at(units_, unit).whole); }

void Reducer::clear_all_but_written(int unit) const {
  const UnitLayout& layout = at(shape_.layouts, unit);
  const Tensor& whole = at(units_, unit).whole;
  std::int64_t begin = 0;  // of what is not known to be written
  for (std::size_t p = 0; p < layout.parameters.size(); ++p) {
    const ParameterSpec& parameter = layout.parameters[p];
    if (parameter.frozen || parameter.gradient_start != GradientStart::kWritten) continue;
    if (parameter.numel() == 0) continue;
    set_zero(context_, whole.slice(0, begin, layout.offsets[p]));
    begin = layout.offsets[p] + parameter.numel();
  }
  set_zero(context_, whole.slice(0, begin, whole.numel()));
}

int Reducer::free_pool_buffer(int unit) {
  auto found = std::find(pool_owner_.begin(), pool_owner_.end(), -1);
  if (found == pool_owner_.end()) {
    wait_running();
    found = std::find(pool_owner_.begin(), pool_owner_.end(), -1);
  }
  if (found == pool_owner_.end()) {
    std::string open;
    for (const int u : pool_owner_) open += (open.empty() ? "" : ", ") + at(shape_.layouts, u).name;
    fail(ErrorKind::kInternal,
         fmt::format("unit {} gets no gradient buffer: {} are open at once, all that were planned "
                     "({}); plan more open_gradients",
                     at(shape_.layouts, unit).name, pool_owner_.size(), open));
  }
  return static_cast<int>(found - pool_owner_.begin());
}

void Reducer::reduce(int unit) {
  Unit& u = at(units_, unit);
  const UnitLayout& layout = at(shape_.layouts, unit);
  if (!u.has_buffer) {  // this rank had no use for the unit
    give_buffer(unit);
    clear(unit);
  }
  if (!shape_.in_place) finite_.look(context_, unit, u.whole);  // the sums of squares tell
  u.dirty = false;
  u.has_buffer = false;
  const bool last = micro_batch_ + 1 == shape_.micro_batches;
  if (shape_.in_place) {
    if (last) host_.gradient_final(unit);
    return;
  }
  wait_running();
  const Tensor& sums = at(memory_.shard_gradients, unit);
  const std::int64_t begin = layout.placement == Placement::kReplicated
                                 ? mesh_.shard_comm().rank() * layout.shard_elems
                                 : 0;
  const Tensor sum = sums.slice(0, begin, begin + layout.shard_elems);
  running_ = mesh_.data_comm().reduce_scatter(
      {.name = layout.name, .queue = queue_of(context_)},
      {.input = u.whole.data<float>(),
       .accumulator = sum.data<float>(),
       .per_slice = Elems{layout.shard_elems},
       .scratch = memory_.scratch.raw() == nullptr ? nullptr : memory_.scratch.data<float>(),
       .mode = shape_.ordered ? ReduceMode::kOrdered : ReduceMode::kLibrary,
       .slice_of_rank = slice_of_rank_});
  running_unit_ = unit;
  running_is_last_ = last;
}

void Reducer::wait_running() {
  if (running_unit_ < 0) return;
  const ScopedTimer timer(waited_);
  running_.wait_on(queue_of(context_));
  running_ = Work{};
  std::replace(pool_owner_.begin(), pool_owner_.end(), running_unit_, -1);
  if (running_is_last_) host_.gradient_final(running_unit_);
  running_unit_ = -1;
}

// The ranges of one unit lie where all_gather wants them: every shard's sum is in its place.
void Reducer::gather_replicated() {
  const ScopedTimer timer(waited_);
  Communicator& comm = mesh_.shard_comm();
  comm.group_begin();
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const UnitLayout& layout = shape_.layouts[u];
    if (layout.placement != Placement::kReplicated || !ZeroShape::trainable(layout)) continue;
    comm.all_gather({.name = layout.name, .queue = queue_of(context_)},
                    {.buffer = memory_.shard_gradients[u].raw(),
                     .per_rank = bytes_of(Elems{layout.shard_elems}, DType::kFloat32)});
  }
  comm.group_end().wait_on(queue_of(context_));
}

}  // namespace k25::parallel
