// HostState's thread: the updates on the host.

#include <string>
#include <utility>

#include "kernels/core/stopwatch.h"
#include "parallel/zero/host_state.h"
#include "parallel/zero/zero_queue.h"

namespace k25::parallel {

void HostState::run_updates() {
  if (!shape_.offload.cpus.empty()) bind_this_thread(shape_.offload.cpus.front());
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return has_job_ || stop_ || !early_.empty(); });
    if (stop_) return;
    try {
      has_job_ ? run_job(lock) : run_early(lock);
    } catch (const std::exception& error) {
      if (!lock.owns_lock()) lock.lock();
      failure_ = as_error(error);
      early_.clear();
      for (Unit& unit : units_) {
        unit.pending = false;
        unit.early = Early::kNone;
      }
    }
    changed_.notify_all();
  }
}

void HostState::run_job(std::unique_lock<std::mutex>& lock) {
  has_job_ = false;
  std::vector<int> rest;
  for (int u = 0; u < static_cast<int>(units_.size()); ++u) {
    if (!at(units_, u).pending) continue;
    const Early early = std::exchange(at(units_, u).early, Early::kNone);
    if (early == Early::kDone && job_guess_ == Guess::kRight) {
      keep_early(u);
    } else {
      rest.push_back(u);
    }
  }
  lock.unlock();
  changed_.notify_all();
  up_.use_on_this_thread();
  for (const int u : rest) update_on_host(u);
  lock.lock();
}

// Under mutex_.
void HostState::keep_early(int unit) {
  Tensor& master = at(memory_.masters, unit);
  std::swap(master, at(memory_.next_masters, unit));
  std::swap(at(memory_.ms, unit), at(memory_.next_ms, unit));
  std::swap(at(memory_.vs, unit), at(memory_.next_vs, unit));
  Tensor& copy = at(memory_.shard_copies, unit);
  if (shape_.copy_on_host(unit) && copy.dtype() == DType::kFloat32) copy = master;
  Unit& u = at(units_, unit);
  u.ready = std::move(u.early_ready);
  u.pending = false;
}

void HostState::run_early(std::unique_lock<std::mutex>& lock) {
  const int unit = early_.front();
  early_.pop_front();
  at(units_, unit).early = Early::kRunning;
  const ShardUpdate guess = guess_;
  lock.unlock();
  up_.use_on_this_thread();
  update_aside(unit, guess);
  lock.lock();
  at(units_, unit).early = Early::kDone;
}

void HostState::update_on_host(int unit) {
  OffloadTimes times;
  {
    const ScopedTimer timer(times.copy);
    at(units_, unit).gradient.wait();
  }
  const UnitLayout& layout = at(shape_.layouts, unit);
  const std::int64_t shard = at(shard_begin_, unit);
  const Tensor& master = at(memory_.masters, unit);
  if (shape_.moments_on_nvme(unit)) {
    nvme_->update(unit, times.copy, [&](const NvmeMoments::Chunk& chunk) {
      for_each_trained_range(
          layout, shard + chunk.begin, chunk.end - chunk.begin, kOffloadChunk,
          [&](const ParameterSpec& parameter, std::int64_t begin, std::int64_t end) {
            update_range(job_, unit, chunk.begin + begin, chunk.begin + end,
                         {.parameter = parameter,
                          .master = master.slice(0, chunk.begin + begin, chunk.begin + end),
                          .m = chunk.m.slice(0, begin, end),
                          .v = chunk.v.slice(0, begin, end)},
                         times);
          });
    });
  } else {
    for_each_trained_range(
        layout, shard, layout.shard_elems, kOffloadChunk,
        [&](const ParameterSpec& parameter, std::int64_t begin, std::int64_t end) {
          update_range(job_, unit, begin, end,
                       {.parameter = parameter,
                        .master = master.slice(0, begin, end),
                        .m = at(memory_.ms, unit).slice(0, begin, end),
                        .v = at(memory_.vs, unit).slice(0, begin, end)},
                       times);
        });
  }
  Work ready = shape_.copy_on_device(unit) ? up_.mark() : Work{};
  add_times(times);
  {
    const std::lock_guard lock(mutex_);
    at(units_, unit).ready = std::move(ready);
    at(units_, unit).pending = false;
  }
  changed_.notify_all();
}

// The gradient is on the host, so the device has done all that came before it: nobody reads the
// unit's copies until the step's update.
void HostState::update_aside(int unit, const ShardUpdate& update) {
  OffloadTimes times;
  {
    const ScopedTimer timer(times.copy);
    at(units_, unit).gradient.wait();
  }
  const UnitLayout& layout = at(shape_.layouts, unit);
  for_each_trained_range(layout, at(shard_begin_, unit), layout.shard_elems, kOffloadChunk,
                         [&](const ParameterSpec& parameter, std::int64_t begin, std::int64_t end) {
                           const auto cut = [&](const std::vector<Tensor>& of_units) {
                             return at(of_units, unit).slice(0, begin, end);
                           };
                           update_range(update, unit, begin, end,
                                        {.parameter = parameter,
                                         .master = cut(memory_.next_masters),
                                         .m = cut(memory_.next_ms),
                                         .v = cut(memory_.next_vs),
                                         .old_master = cut(memory_.masters),
                                         .old_m = cut(memory_.ms),
                                         .old_v = cut(memory_.vs)},
                                        times);
                         });
  at(units_, unit).early_ready = shape_.copy_on_device(unit) ? up_.mark() : Work{};
  add_times(times);
}

void HostState::update_range(const ShardUpdate& update, int unit, std::int64_t begin,
                             std::int64_t end, UpdatePiece piece, OffloadTimes& times) {
  {
    const ScopedTimer timer(times.copy);
    piece.copy_out = take_rounded(unit, begin, end);
  }
  {
    const ScopedTimer timer(times.compute);
    piece.gradient = at(memory_.host_gradients, unit).slice(0, begin, end);
    update(host_context_, piece);
  }
  send_up(unit, begin, piece.master, piece.copy_out);
}

void HostState::add_times(const OffloadTimes& times) {
  const std::lock_guard lock(mutex_);
  times_ += times;
}

Tensor HostState::take_rounded(int unit, std::int64_t begin, std::int64_t end) {
  const Tensor& copy = at(memory_.shard_copies, unit);
  if (copy.dtype() == DType::kFloat32) return {};
  if (shape_.copy_on_host(unit)) return copy.slice(0, begin, end);
  const auto chunk = static_cast<int>(next_staging_);
  at(staged_, chunk).wait();
  return at(memory_.staging, chunk).slice(0, 0, end - begin);
}

void HostState::send_up(int unit, std::int64_t begin, const Tensor& master, const Tensor& rounded) {
  if (!shape_.copy_on_device(unit)) return;
  const Tensor& from = rounded ? rounded : master;
  const Tensor to = at(memory_.shard_copies, unit).slice(0, begin, begin + from.numel());
  up_.copy(from.raw(), to.raw(), to.bytes());
  if (!rounded) return;
  at(staged_, static_cast<int>(next_staging_)) = up_.mark();
  next_staging_ = (next_staging_ + 1) % memory_.staging.size();
}

}  // namespace k25::parallel
