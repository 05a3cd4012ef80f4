#include "parallel/zero/host_state.h"

#include <algorithm>
#include <string>
#include <utility>

#include "kernels/convert/convert.h"
#include "kernels/core/check.h"
#include "kernels/core/stopwatch.h"
#include "parallel/zero/zero_queue.h"

namespace k25::parallel {
namespace {

std::unique_ptr<NvmeMoments> open_nvme(const ZeroShape& shape, const ZeroMemory& memory) {
  try {
    return std::make_unique<NvmeMoments>(shape, memory.nvme_window);
  } catch (const Error& error) {
    fail(error.kind(), std::string("offload.nvme: ") + error.what());
  }
}

}  // namespace

HostState::HostState(Mesh& mesh, const ZeroShape& shape, const ZeroMemory& memory, Context& context)
    : shape_(shape),
      memory_(memory),
      context_(context),
      link_(mesh.link()),
      down_(mesh.link()),
      up_(mesh.link()),
      units_(shape.layouts.size()),
      staged_(memory.staging.size()) {
  for (const UnitLayout& layout : shape.layouts) {
    shard_begin_.push_back(mesh.shard_comm().rank() * layout.shard_elems);
  }
  const bool on_host =
      std::find(shape.offloaded.begin(), shape.offloaded.end(), true) != shape.offloaded.end() &&
      shape.offload.optimizer == Place::kHost;
  host_context_.isa = context.isa;
  if (!on_host) return;
  if (memory.nvme_window) nvme_ = open_nvme(shape, memory);
  pool_ = std::make_unique<ThreadPool>(shape.offload.threads, shape.offload.cpus);
  host_context_.threads = pool_.get();
  thread_ = std::thread([this] { run_updates(); });
}

HostState::~HostState() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  // Copies in flight use memory that dies with the store.
  for (Unit& unit : units_) {
    parallel::settle(unit.gradient);
    parallel::settle(unit.ready);
  }
  for (Work& work : staged_) parallel::settle(work);
}

void HostState::before_use(int unit) {
  wait_for_update(unit);
  at(units_, unit).ready.wait_on(queue_of(context_));
}

Queue HostState::fetch(int unit, const Tensor& slice) {
  const Tensor& copy = at(memory_.shard_copies, unit);
  before_use(unit);
  if (shape_.copy_on_device(unit)) {  // up_ is the thread's
    copy_on_stream(copy, slice);
    return queue_of(context_);
  }
  up_.follow(queue_of(context_));  // the buffer's last user
  up_.copy(copy.raw(), slice.raw(), copy.bytes());
  return up_.queue();
}

Work HostState::fetched() { return shape_.offload.params == Place::kHost ? up_.mark() : Work{}; }

void HostState::begin_step() {
  for (Unit& unit : units_) unit.sent = false;
  last_download_.wait_on(queue_of(context_));
}

void HostState::gradient_final(int unit) {
  const Tensor& to = at(memory_.host_gradients, unit);
  if (!to) return;
  wait_for_update(unit);  // which reads the last step's
  down_.follow(queue_of(context_));
  down_.copy(at(memory_.shard_gradients, unit).raw(), to.raw(), to.bytes());
  last_download_ = down_.mark();
  at(units_, unit).gradient = last_download_;
  at(units_, unit).sent = true;
}

void HostState::finish_gradients() {
  for (int u = 0; u < static_cast<int>(units_.size()); ++u) {
    if (!at(units_, u).sent) gradient_final(u);
  }
}

void HostState::update(const ShardUpdate& update) {
  std::vector<int> on_host;
  for (int u = 0; u < static_cast<int>(units_.size()); ++u) {
    if (!holds(u) || !ZeroShape::trainable(at(shape_.layouts, u))) continue;
    wait_for_update(u);
    if (shape_.updated_on_host(u)) {
      on_host.push_back(u);
    } else {
      update_visiting(u, update);
    }
  }
  if (on_host.empty()) return;
  up_.follow(queue_of(context_));  // which has read the old copies
  {
    const std::lock_guard lock(mutex_);
    for (const int u : on_host) at(units_, u).pending = true;
    job_ = update;
    has_job_ = true;
  }
  changed_.notify_all();
}

// On the caller's thread and stream.
void HostState::update_visiting(int unit, const ShardUpdate& update) {
  const UnitLayout& layout = at(shape_.layouts, unit);
  const Tensor &master = at(memory_.masters, unit), &copy = at(memory_.shard_copies, unit);
  const bool narrow = copy.dtype() != DType::kFloat32;
  for_each_trained_range(
      layout, at(shard_begin_, unit), layout.shard_elems, kOffloadChunk,
      [&](const ParameterSpec& parameter, std::int64_t begin, std::int64_t end) {
        const Tensor chunk = memory_.chunk.slice(0, 0, end - begin);
        const Tensor rounded = narrow ? memory_.chunk_copy.slice(0, 0, end - begin) : Tensor{};
        copy_on_stream(master.slice(0, begin, end), chunk);
        update(context_, {.parameter = parameter,
                          .master = chunk,
                          .m = at(memory_.ms, unit).slice(0, begin, end),
                          .v = at(memory_.vs, unit).slice(0, begin, end),
                          .gradient = at(memory_.shard_gradients, unit).slice(0, begin, end),
                          .copy_out = rounded});
        copy_on_stream(chunk, master.slice(0, begin, end));
        if (narrow) copy_on_stream(rounded, copy.slice(0, begin, end));
      });
  at(units_, unit).ready = mark_compute();
}

void HostState::settle(int unit) {
  wait_for_update(unit);
  at(units_, unit).ready.wait();
}

void HostState::wait_for_all() {
  for (int u = 0; u < static_cast<int>(units_.size()); ++u) settle(u);
}

void HostState::read_moments(int unit, std::int64_t begin, std::span<float> m, std::span<float> v) {
  wait_for_all();  // the thread uses the window
  nvme_->read(unit, begin, m, v);
}

void HostState::write_moments(int unit, std::int64_t begin, std::span<const float> m,
                              std::span<const float> v) {
  wait_for_all();
  nvme_->write(unit, begin, m, v);
}

void HostState::refresh() {
  wait_for_all();  // the thread uses the staging too
  for (int u = 0; u < static_cast<int>(units_.size()); ++u) {
    if (!holds(u)) continue;
    up_.follow(queue_of(context_));
    const std::int64_t n = at(shape_.layouts, u).shard_elems;
    for (std::int64_t begin = 0; begin < n; begin += kOffloadChunk) {
      const std::int64_t end = std::min(begin + kOffloadChunk, n);
      const Tensor rounded = take_rounded(u, begin, end);
      if (rounded) {
        kernels::convert(host_context_, at(memory_.masters, u).slice(0, begin, end), rounded);
      }
      send_up(u, begin, end, rounded);
    }
    at(units_, u).ready = up_.mark();
  }
}

OffloadTimes HostState::take_times() {
  const std::lock_guard lock(mutex_);
  OffloadTimes times = std::exchange(times_, {});
  times.exposed = std::exchange(exposed_, 0.0);
  return times;
}

void HostState::wait_for_update(int unit) {
  std::unique_lock lock(mutex_);
  if (at(units_, unit).pending) {
    const ScopedTimer timer(exposed_);
    changed_.wait(lock, [&] { return !at(units_, unit).pending; });
  }
  if (failure_) throw Error(*failure_);
}

Work HostState::mark_compute() const {
  if constexpr (kWithCuda) {
    if (link_ != nullptr) return mark_stream(*link_, context_.stream);
  }
  return {};
}

// The thread.
void HostState::run_updates() {
  if (!shape_.offload.cpus.empty()) bind_this_thread(shape_.offload.cpus.front());
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return has_job_ || stop_; });
    if (stop_) return;
    has_job_ = false;
    lock.unlock();
    try {
      up_.use_on_this_thread();
      for (int u = 0; u < static_cast<int>(units_.size()); ++u) {
        if (shape_.updated_on_host(u) && ZeroShape::trainable(at(shape_.layouts, u))) {
          update_on_host(u);
        }
      }
      lock.lock();
    } catch (const std::exception& error) {
      lock.lock();
      failure_ = as_error(error);
      for (Unit& unit : units_) unit.pending = false;
      changed_.notify_all();
    }
  }
}

void HostState::update_on_host(int unit) {
  OffloadTimes times;
  {
    const ScopedTimer timer(times.copy);
    at(units_, unit).gradient.wait();
  }
  const UnitLayout& layout = at(shape_.layouts, unit);
  const std::int64_t shard = at(shard_begin_, unit);
  if (shape_.moments_on_nvme(unit)) {
    nvme_->update(unit, times.copy, [&](const NvmeMoments::Chunk& chunk) {
      for_each_trained_range(
          layout, shard + chunk.begin, chunk.end - chunk.begin, kOffloadChunk,
          [&](const ParameterSpec& parameter, std::int64_t begin, std::int64_t end) {
            update_range(unit, parameter, chunk.begin + begin, chunk.begin + end,
                         chunk.m.slice(0, begin, end), chunk.v.slice(0, begin, end), times);
          });
    });
  } else {
    for_each_trained_range(
        layout, shard, layout.shard_elems, kOffloadChunk,
        [&](const ParameterSpec& parameter, std::int64_t begin, std::int64_t end) {
          update_range(unit, parameter, begin, end, at(memory_.ms, unit).slice(0, begin, end),
                       at(memory_.vs, unit).slice(0, begin, end), times);
        });
  }
  Work ready = shape_.copy_on_device(unit) ? up_.mark() : Work{};
  {
    const std::lock_guard lock(mutex_);
    at(units_, unit).ready = std::move(ready);
    at(units_, unit).pending = false;
    times_.copy += times.copy;
    times_.compute += times.compute;
  }
  changed_.notify_all();
}

void HostState::update_range(int unit, const ParameterSpec& parameter, std::int64_t begin,
                             std::int64_t end, const Tensor& m, const Tensor& v,
                             OffloadTimes& times) {
  Tensor rounded;
  {
    const ScopedTimer timer(times.copy);
    rounded = take_rounded(unit, begin, end);
  }
  {
    const ScopedTimer timer(times.compute);
    job_(host_context_, {.parameter = parameter,
                         .master = at(memory_.masters, unit).slice(0, begin, end),
                         .m = m,
                         .v = v,
                         .gradient = at(memory_.host_gradients, unit).slice(0, begin, end),
                         .copy_out = rounded});
  }
  send_up(unit, begin, end, rounded);
}

Tensor HostState::take_rounded(int unit, std::int64_t begin, std::int64_t end) {
  const Tensor& copy = at(memory_.shard_copies, unit);
  if (copy.dtype() == DType::kFloat32) return {};
  if (shape_.copy_on_host(unit)) return copy.slice(0, begin, end);
  const auto chunk = static_cast<int>(next_staging_);
  at(staged_, chunk).wait();
  return at(memory_.staging, chunk).slice(0, 0, end - begin);
}

void HostState::send_up(int unit, std::int64_t begin, std::int64_t end, const Tensor& rounded) {
  if (!shape_.copy_on_device(unit)) return;
  const Tensor from = rounded ? rounded : at(memory_.masters, unit).slice(0, begin, end);
  const Tensor to = at(memory_.shard_copies, unit).slice(0, begin, end);
  up_.copy(from.raw(), to.raw(), to.bytes());
  if (!rounded) return;
  at(staged_, static_cast<int>(next_staging_)) = up_.mark();
  next_staging_ = (next_staging_ + 1) % memory_.staging.size();
}

void HostState::copy_on_stream(const Tensor& from, const Tensor& to) {
  if constexpr (kWithCuda) {
    if (context_.stream != nullptr) return copy_bytes(context_, from.raw(), to.raw(), to.bytes());
  }
  std::copy_n(static_cast<const char*>(from.raw()), to.bytes().n, static_cast<char*>(to.raw()));
}

}  // namespace k25::parallel
