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

HostState::HostState(Mesh& mesh, const ZeroShape& shape, ZeroMemory& memory, Context& context)
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
    parallel::settle(unit.early_ready);
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
  withdraw(unit);
  down_.follow(queue_of(context_));
  down_.copy(at(memory_.shard_gradients, unit).raw(), to.raw(), to.bytes());
  last_download_ = down_.mark();
  at(units_, unit).gradient = last_download_;
  at(units_, unit).sent = true;
  if (!guessing_ || !shape_.early[static_cast<std::size_t>(unit)]) return;
  {
    const std::lock_guard lock(mutex_);
    at(units_, unit).early = Early::kQueued;
    early_.push_back(unit);
  }
  changed_.notify_all();
}

void HostState::withdraw(int unit) {
  Unit& u = at(units_, unit);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return u.early != Early::kRunning; });
  std::erase(early_, unit);
  u.early = Early::kNone;
}

void HostState::finish_gradients() {
  for (int u = 0; u < static_cast<int>(units_.size()); ++u) {
    if (!at(units_, u).sent) gradient_final(u);
  }
}

void HostState::guess_update(const ShardUpdate& update) {
  const std::lock_guard lock(mutex_);
  guess_ = update;
  guessing_ = true;
}

void HostState::update(const ShardUpdate& update, Guess guess) {
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
  guessing_ = false;
  if (on_host.empty()) return;
  up_.follow(queue_of(context_));  // which has read the old copies
  {
    const std::lock_guard lock(mutex_);
    for (const int u : on_host) at(units_, u).pending = true;
    for (const int u : early_) at(units_, u).early = Early::kNone;
    early_.clear();
    job_ = update;
    job_guess_ = guess;
    has_job_ = true;
  }
  changed_.notify_all();
}

void HostState::drop_guess() {
  if (!guessing_) return;
  guessing_ = false;
  std::vector<int> written;
  {
    std::unique_lock lock(mutex_);
    for (const int u : early_) at(units_, u).early = Early::kNone;
    early_.clear();
    for (int u = 0; u < static_cast<int>(units_.size()); ++u) {
      Unit& unit = at(units_, u);
      changed_.wait(lock, [&] { return unit.early != Early::kRunning; });
      if (std::exchange(unit.early, Early::kNone) == Early::kDone) written.push_back(u);
    }
  }
  for (const int u : written) refresh(u);  // their copies hold the guess
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
    if (holds(u)) refresh(u);
  }
}

void HostState::refresh(int unit) {
  up_.follow(queue_of(context_));
  const std::int64_t n = at(shape_.layouts, unit).shard_elems;
  for (std::int64_t begin = 0; begin < n; begin += kOffloadChunk) {
    const std::int64_t end = std::min(begin + kOffloadChunk, n);
    const Tensor master = at(memory_.masters, unit).slice(0, begin, end);
    const Tensor rounded = take_rounded(unit, begin, end);
    if (rounded) kernels::convert(host_context_, master, rounded);
    send_up(unit, begin, master, rounded);
  }
  at(units_, unit).ready = up_.mark();
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

void HostState::copy_on_stream(const Tensor& from, const Tensor& to) {
  if constexpr (kWithCuda) {
    if (context_.stream != nullptr) return copy_bytes(context_, from.raw(), to.raw(), to.bytes());
  }
  std::copy_n(static_cast<const char*>(from.raw()), to.bytes().n, static_cast<char*>(to.raw()));
}

}  // namespace k25::parallel
