#include "parallel/zero/gatherer.h"

#include <fmt/format.h>

#include "kernels/convert/convert.h"
#include "kernels/core/check.h"
#include "kernels/core/stopwatch.h"
#include "parallel/zero/zero_queue.h"

namespace k25::parallel {

Gatherer::Gatherer(Mesh& mesh, const ZeroShape& shape, const ZeroMemory& memory, HostState& host,
                   Context& context)
    : mesh_(mesh),
      shape_(shape),
      memory_(memory),
      host_(host),
      context_(context),
      units_(shape.layouts.size()),
      buffers_(memory.gathered.size()) {
  int next = 0;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const UnitLayout& layout = shape.layouts[u];
    units_[u].views.resize(layout.parameters.size());
    const int unit = static_cast<int>(u);
    const bool resident = shape.resident(unit);
    own_buffer_.push_back(!resident && fixed() ? next++ : -1);
    if (resident) {
      point_views(unit, host.holds(unit) ? memory.shard_copies[u] : memory.masters[u]);
    }
  }
}

// A gather in flight writes to memory that dies with the store.
Gatherer::~Gatherer() {
  for (Buffer& b : buffers_) {
    settle(b.fetched);
    settle(b.work);
  }
}

void Gatherer::prefetch(int unit) {
  Unit& u = at(units_, unit);
  if (shape_.resident(unit) || u.users > 0) return;
  if (u.buffer >= 0) {
    at(buffers_, u.buffer).wanted = true;
    return;
  }
  const int room = find_room(unit);
  if (room < 0 || at(buffers_, room).wanted) return;
  start(unit, room);
  at(buffers_, room).wanted = true;
}

const std::vector<Tensor>& Gatherer::acquire(int unit) {
  Unit& u = at(units_, unit);
  if (shape_.resident(unit)) {
    if (host_.holds(unit)) host_.before_use(unit);
  } else {
    if (u.buffer < 0) {
      const int room = find_room(unit);
      if (room < 0) fail_no_room(unit);
      start(unit, room);
    }
    Buffer& b = at(buffers_, u.buffer);
    b.wanted = false;
    wait(b.fetched);
    wait(b.work);
  }
  ++u.users;
  return u.views;
}

void Gatherer::release(int unit, Phase phase) {
  Unit& u = at(units_, unit);
  if (u.users == 0) {
    fail(ErrorKind::kInternal,
         fmt::format("unit {} is released without being acquired", at(shape_.layouts, unit).name));
  }
  --u.users;
  if (u.buffer >= 0) {
    Buffer& b = at(buffers_, u.buffer);
    b.released = phase;
    b.released_at = ++clock_;
  }
}

Tensor Gatherer::part_to_update(int unit) {
  Unit& u = at(units_, unit);
  if (!u.part_is_there) return {};
  if (at(shape_.layouts, unit).compute != DType::kBFloat16) {
    u.part_is_there = false;
    return {};
  }
  if (u.buffer >= 0) {  // others may still be reading it
    wait(at(buffers_, u.buffer).fetched);
    wait(at(buffers_, u.buffer).work);
  }
  return part(unit, storage(unit, at(own_buffer_, unit)));
}

void Gatherer::forget_parts() {
  for (Unit& u : units_) u.part_is_there = false;
}

void Gatherer::drop(const char* why) {
  for (std::size_t u = 0; u < units_.size(); ++u) {
    if (units_[u].users > 0) {
      fail(ErrorKind::kInternal,
           fmt::format("{}: unit {} is still acquired", why, shape_.layouts[u].name));
    }
  }
  for (std::size_t b = 0; b < buffers_.size(); ++b) vacate(static_cast<int>(b));
}

double Gatherer::take_wait_seconds() { return std::exchange(waited_, 0.0); }

Tensor Gatherer::storage(int unit, int buffer) const {
  const UnitLayout& layout = at(shape_.layouts, unit);
  const Tensor& bytes = at(memory_.gathered, buffer);
  return {bytes.raw(), layout.compute, {layout.padded()}, bytes.device()};
}

Tensor Gatherer::part(int unit, const Tensor& storage) const {
  const std::int64_t n = at(shape_.layouts, unit).shard_elems;
  const std::int64_t begin = mesh_.shard_comm().rank() * n;
  return storage.slice(0, begin, begin + n);
}

int Gatherer::find_room(int unit) const {
  if (fixed()) return at(own_buffer_, unit);
  int best = -1;
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    const Buffer& b = buffers_[i];
    if (b.unit < 0) return static_cast<int>(i);
    if (at(units_, b.unit).users > 0) continue;
    if (best < 0 || better_victim(b, at(buffers_, best))) best = static_cast<int>(i);
  }
  return best;
}

bool Gatherer::better_victim(const Buffer& a, const Buffer& b) const {
  if (a.wanted != b.wanted) return !a.wanted;
  if (a.released != b.released) return a.released == Phase::kBackward;
  return a.released_at < b.released_at;
}

void Gatherer::start(int unit, int buffer) {
  vacate(buffer);
  const UnitLayout& layout = at(shape_.layouts, unit);
  const Tensor whole = storage(unit, buffer);
  Queue queue = queue_of(context_);
  if (host_.holds(unit)) {
    queue = host_.fetch(unit, part(unit, whole));
  } else if (!at(units_, unit).part_is_there) {
    kernels::convert(context_, at(memory_.masters, unit), part(unit, whole));
    at(units_, unit).part_is_there = fixed();
  }
  point_views(unit, whole);
  Buffer& b = at(buffers_, buffer);
  b.unit = unit;
  b.wanted = false;
  b.released = Phase::kForward;
  b.released_at = ++clock_;
  at(units_, unit).buffer = buffer;
  if (host_.holds(unit)) b.fetched = host_.fetched();
  b.work = mesh_.shard_comm().all_gather(
      {.name = layout.name, .queue = queue},
      {.buffer = whole.raw(), .per_rank = bytes_of(Elems{layout.shard_elems}, layout.compute)});
}

void Gatherer::vacate(int buffer) {
  Buffer& b = at(buffers_, buffer);
  if (b.unit < 0) return;
  wait(b.fetched);
  wait(b.work);
  at(units_, b.unit).buffer = -1;
  b = Buffer{};
}

void Gatherer::point_views(int unit, const Tensor& storage) {
  const UnitLayout& layout = at(shape_.layouts, unit);
  point_parameters(layout, storage, at(units_, unit).views);
}

void Gatherer::wait(Work& work) {
  const ScopedTimer timer(waited_);
  work.wait_on(queue_of(context_));
  work = Work{};
}

void Gatherer::fail_no_room(int unit) const {
  std::string held;
  for (const Buffer& b : buffers_)
    held += (held.empty() ? "" : ", ") + at(shape_.layouts, b.unit).name;
  fail(
      ErrorKind::kInternal,
      fmt::format("unit {} cannot be gathered: all {} buffers hold units in use ({}); release one, "
                  "or set zero.prefetch higher",
                  at(shape_.layouts, unit).name, buffers_.size(), held));
}

}  // namespace k25::parallel
