#include "parallel/zero/zero_store.h"

#include <fmt/format.h>

#include "kernels/core/check.h"
#include "kernels/core/host_access.h"
#include "parallel/zero/gatherer.h"
#include "parallel/zero/host_state.h"
#include "parallel/zero/reducer.h"
#include "parallel/zero/zero_queue.h"

namespace k25::parallel {

Bytes ZeroPlan::total() const {
  return Bytes{model_state().n + gathered.n + unit_gradients.n + reduction_scratch.n +
               replicated.n + offload_scratch.n};
}

Bytes ZeroPlan::model_state() const {
  return Bytes{masters.n + moments.n + shard_gradients.n + shard_copies.n};
}

Bytes ZeroPlan::Host::total() const {
  return Bytes{masters.n + moments.n + gradients.n + shard_copies.n + staging.n +
               reduction_scratch.n};
}

class ZeroStore::Impl {
 public:
  Impl(Mesh& mesh, const std::vector<UnitSpec>& units, const ZeroOptions& options, Context& run_on,
       Allocator& allocator, Allocator* host_allocator)
      : shard(mesh.shard_comm().rank()),
        context(run_on),
        reshard_after(options.reshard_after),
        shape(units, mesh.shape(), options),
        memory(shape, allocator, host_allocator),
        host(mesh, shape, memory, run_on),
        gatherer(mesh, shape, memory, host, run_on),
        reducer(mesh, shape, memory, host, run_on) {}

  enum class Stage : std::uint8_t { kBetweenSteps, kMicroBatches, kFinished };

  void expect(Stage wanted, const char* call) const {
    if (stage == wanted) return;
    fail(ErrorKind::kInternal,
         fmt::format("ZeroStore::{} out of order; a step is begin_step, micro-batches, "
                     "finish_gradients, end_step",
                     call));
  }

  Tensor state(const std::vector<Tensor>& tensors, int unit) {
    if (host.holds(unit)) host.settle(unit);
    return at(tensors, unit);
  }

  Tensor moment(const std::vector<Tensor>& tensors, int unit) {
    if (!shape.moments_on_nvme(unit)) return state(tensors, unit);
    fail(ErrorKind::kInternal,
         fmt::format("the moments of {} are in a file", at(shape.layouts, unit).name));
  }

  const int shard;
  Context& context;
  const ReshardAfter reshard_after;
  const ZeroShape shape;
  ZeroMemory memory;
  HostState host;
  Gatherer gatherer;
  Reducer reducer;
  Stage stage = Stage::kBetweenSteps;
};

ZeroPlan ZeroStore::plan(const std::vector<UnitSpec>& units, const MeshShape& mesh,
                         const ZeroOptions& options) {
  return ZeroMemory(ZeroShape(units, mesh, options)).plan();
}

ZeroStore::ZeroStore(Mesh& mesh, const std::vector<UnitSpec>& units, const ZeroOptions& options,
                     Context& context, Allocator& allocator, Allocator* host) {
  if (allocator.device() != options.device) {
    fail(ErrorKind::kInternal, "ZeroStore: the allocator's memory is not on options.device");
  }
  impl_ = std::make_unique<Impl>(mesh, units, options, context, allocator, host);
}

ZeroStore::~ZeroStore() = default;

const Context& ZeroStore::context() const { return impl_->context; }

int ZeroStore::num_units() const { return static_cast<int>(impl_->shape.layouts.size()); }

const UnitLayout& ZeroStore::layout(int unit) const { return at(impl_->shape.layouts, unit); }

int ZeroStore::unit_index(const std::string& name) const {
  for (int u = 0; u < num_units(); ++u) {
    if (layout(u).name == name) return u;
  }
  fail(ErrorKind::kInternal, fmt::format("no unit is named {}", name));
}

Tensor ZeroStore::master(int unit) { return impl_->state(impl_->memory.masters, unit); }
Tensor ZeroStore::m(int unit) { return impl_->moment(impl_->memory.ms, unit); }
Tensor ZeroStore::v(int unit) { return impl_->moment(impl_->memory.vs, unit); }

void ZeroStore::read_state(int unit, std::int64_t begin, const StateSpans<float>& to) {
  const auto copy = [&](const Tensor& from, std::span<float> out) {
    if (!out.empty())
      read_to_host(impl_->context, from.slice(0, begin, begin + std::ssize(out)), out.data());
  };
  copy(master(unit), to.master);
  if (to.m.empty()) return;
  if (impl_->shape.moments_on_nvme(unit)) return impl_->host.read_moments(unit, begin, to.m, to.v);
  copy(m(unit), to.m);
  copy(v(unit), to.v);
}

void ZeroStore::write_state(int unit, std::int64_t begin, const StateSpans<const float>& from) {
  const auto copy = [&](std::span<const float> in, const Tensor& to) {
    if (!in.empty())
      write_from_host(impl_->context, in.data(), to.slice(0, begin, begin + std::ssize(in)));
  };
  copy(from.master, master(unit));
  if (from.m.empty()) return;
  if (impl_->shape.moments_on_nvme(unit)) {
    return impl_->host.write_moments(unit, begin, from.m, from.v);
  }
  copy(from.m, m(unit));
  copy(from.v, v(unit));
}

Tensor ZeroStore::shard_gradient(int unit) {
  impl_->expect(Impl::Stage::kFinished, "shard_gradient");
  return at(impl_->memory.shard_gradients, unit);
}

std::int64_t ZeroStore::shard_begin(int unit) const {
  const UnitLayout& l = layout(unit);
  return l.placement == Placement::kReplicated ? 0 : impl_->shard * l.shard_elems;
}

ZeroStore::Range ZeroStore::owned(int unit) const {
  const UnitLayout& l = layout(unit);
  if (l.placement != Placement::kReplicated) return {.begin = 0, .length = l.shard_elems};
  const std::int64_t begin = std::min(impl_->shard * l.owned_elems, l.padded());
  return {.begin = begin, .length = std::min(l.owned_elems, l.padded() - begin)};
}

void ZeroStore::begin_step() {
  impl_->expect(Impl::Stage::kBetweenSteps, "begin_step");
  impl_->stage = Impl::Stage::kMicroBatches;
  impl_->reducer.begin_step();
}

void ZeroStore::prefetch(int unit) { impl_->gatherer.prefetch(unit); }

const std::vector<Tensor>& ZeroStore::acquire(int unit) { return impl_->gatherer.acquire(unit); }

void ZeroStore::release(int unit, Phase phase) { impl_->gatherer.release(unit, phase); }

const std::vector<Tensor>& ZeroStore::gradient(int unit) {
  impl_->expect(Impl::Stage::kMicroBatches, "gradient");
  return impl_->reducer.gradient(unit);
}

GradientState ZeroStore::gradient_state(int unit) const {
  return impl_->reducer.gradient_state(unit);
}

void ZeroStore::gradient_done(int unit) {
  impl_->expect(Impl::Stage::kMicroBatches, "gradient_done");
  impl_->reducer.gradient_done(unit);
}

void ZeroStore::end_micro_batch() {
  impl_->expect(Impl::Stage::kMicroBatches, "end_micro_batch");
  impl_->reducer.end_micro_batch();
  if (impl_->reshard_after == ReshardAfter::kMicroBatch) {
    impl_->gatherer.drop("end_micro_batch");
  }
}

void ZeroStore::finish_gradients() {
  impl_->expect(Impl::Stage::kMicroBatches, "finish_gradients");
  impl_->reducer.finish();
  impl_->stage = Impl::Stage::kFinished;
}

void ZeroStore::guess_update(const ShardUpdate& update) {
  impl_->expect(Impl::Stage::kMicroBatches, "guess_update");
  impl_->host.guess_update(update);
}

bool ZeroStore::can_guess() const {
  const std::vector<bool>& early = impl_->shape.early;
  return std::find(early.begin(), early.end(), true) != early.end();
}

void ZeroStore::update(const ShardUpdate& update, Guess guess) {
  impl_->expect(Impl::Stage::kFinished, "update");
  impl_->host.update(update, guess);
  for (int u = 0; u < num_units(); ++u) {
    if (impl_->host.holds(u)) continue;
    const ZeroMemory& memory = impl_->memory;
    if (!ZeroShape::trainable(layout(u))) continue;
    const std::int64_t n = at(memory.masters, u).numel();
    const Tensor copy = impl_->gatherer.part_to_update(u);
    for_each_trained_range(
        layout(u), shard_begin(u), n, n,
        [&](const ParameterSpec& parameter, std::int64_t begin, std::int64_t end) {
          update(impl_->context, {.parameter = parameter,
                                  .master = at(memory.masters, u).slice(0, begin, end),
                                  .m = at(memory.ms, u).slice(0, begin, end),
                                  .v = at(memory.vs, u).slice(0, begin, end),
                                  .gradient = at(memory.shard_gradients, u).slice(0, begin, end),
                                  .copy_out = copy ? copy.slice(0, begin, end) : Tensor{}});
        });
  }
}

void ZeroStore::gradient_written(int unit) {
  impl_->expect(Impl::Stage::kFinished, "gradient_written");
  if (impl_->host.holds(unit)) impl_->host.gradient_final(unit);
}

void ZeroStore::end_step() {
  impl_->expect(Impl::Stage::kFinished, "end_step");
  impl_->host.drop_guess();
  impl_->gatherer.drop("end_step");
  impl_->stage = Impl::Stage::kBetweenSteps;
}

ZeroStore::BadElement ZeroStore::first_bad_gradient() const { return impl_->reducer.first_bad(); }

bool ZeroStore::sums_are_own() const { return impl_->shape.in_place; }

void ZeroStore::invalidate() {
  impl_->gatherer.drop("invalidate");
  impl_->gatherer.forget_parts();
  impl_->host.refresh();
}

double ZeroStore::take_wait_seconds() {
  return impl_->gatherer.take_wait_seconds() + impl_->reducer.take_wait_seconds();
}

std::string ZeroStore::nvme_text() const { return impl_->host.nvme_text(); }

OffloadTimes ZeroStore::take_offload_times() { return impl_->host.take_times(); }

}  // namespace k25::parallel
