#include "parallel/zero/zero_traffic.h"

#include <algorithm>

#include "parallel/zero/zero_memory.h"

namespace k25::parallel {
namespace {

/// Gatherer's choice of buffers, without buffers.
class GatherCounter {
 public:
  GatherCounter(const ZeroShape& shape, ReshardAfter reshard)
      : shape_(shape),
        reshard_(reshard),
        rooms_(static_cast<std::size_t>(shape.gather_pool)),
        users_(shape.layouts.size(), 0),
        gathers_(shape.layouts.size(), 0),
        held_(shape.layouts.size(), false) {}

  void play(const std::vector<UnitUse>& micro_batch) {
    for (const UnitUse& use : micro_batch) play(use);
    if (reshard_ == ReshardAfter::kMicroBatch) held_.assign(held_.size(), false);
  }
  const std::vector<std::int64_t>& gathers() const { return gathers_; }

 private:
  struct Room {
    int unit = -1;
    bool wanted = false;
    Phase released = Phase::kForward;
    std::int64_t released_at = 0;
  };

  void play(const UnitUse& use) {
    const auto u = static_cast<std::size_t>(use.unit);
    if (shape_.resident(use.unit)) return;
    const bool prefetch = use.kind == UnitUse::Kind::kPrefetch;
    if (!prefetch && use.kind != UnitUse::Kind::kAcquire) return release(use);
    if (prefetch && users_[u] > 0) return;
    if (shape_.gather_pool == 0) {
      if (!held_[u]) ++gathers_[u];
      held_[u] = true;
    } else if (Room* room = find(use.unit); room != nullptr) {
      room->wanted = prefetch;
    } else if (room = victim(); room != nullptr && !(prefetch && room->wanted)) {
      ++gathers_[u];
      *room = {.unit = use.unit, .wanted = prefetch, .released_at = ++clock_};
    }
    if (!prefetch) ++users_[u];
  }

  void release(const UnitUse& use) {
    --users_[static_cast<std::size_t>(use.unit)];
    Room* const room = find(use.unit);
    if (room == nullptr) return;
    room->released =
        use.kind == UnitUse::Kind::kReleaseForward ? Phase::kForward : Phase::kBackward;
    room->released_at = ++clock_;
  }

  Room* find(int unit) {
    const auto found = std::ranges::find(rooms_, unit, &Room::unit);
    return found == rooms_.end() ? nullptr : &*found;
  }

  Room* victim() {
    Room* best = nullptr;
    for (Room& room : rooms_) {
      if (room.unit < 0) return &room;
      if (users_[static_cast<std::size_t>(room.unit)] > 0) continue;
      if (best == nullptr || better(room, *best)) best = &room;
    }
    return best;
  }
  static bool better(const Room& a, const Room& b) {
    if (a.wanted != b.wanted) return !a.wanted;
    if (a.released != b.released) return a.released == Phase::kBackward;
    return a.released_at < b.released_at;
  }

  const ZeroShape& shape_;
  const ReshardAfter reshard_;
  std::vector<Room> rooms_;
  std::vector<int> users_;
  std::vector<std::int64_t> gathers_;  // per unit
  std::vector<bool> held_;             // per unit with a buffer of its own
  std::int64_t clock_ = 0;
};

/// Gathers of each unit in a step. From the second micro-batch on they repeat.
std::vector<std::int64_t> count_gathers(const ZeroShape& shape, const ZeroOptions& options,
                                        const std::vector<UnitUse>& micro_batch) {
  constexpr std::int64_t kPlayed = 4;
  GatherCounter counter(shape, options.reshard_after);
  std::vector<std::int64_t> before(shape.layouts.size(), 0);
  for (std::int64_t i = 0; i < std::min(shape.micro_batches, kPlayed); ++i) {
    before = counter.gathers();
    counter.play(micro_batch);
  }
  std::vector<std::int64_t> gathers = counter.gathers();
  const std::int64_t rest = std::max<std::int64_t>(0, shape.micro_batches - kPlayed);
  for (std::size_t u = 0; u < gathers.size(); ++u) gathers[u] += rest * (gathers[u] - before[u]);
  return gathers;
}

/// As the gatherer does it: at each gather, or in a buffer that keeps it only after an update,
/// which writes bf16 itself.
std::int64_t formed(const ZeroShape& shape, int u, std::int64_t gathers) {
  const UnitLayout& unit = shape.layouts[static_cast<std::size_t>(u)];
  const std::int64_t wide = bytes_of(Elems{unit.shard_elems}, DType::kFloat32).n;
  const std::int64_t copy = bytes_of(Elems{unit.shard_elems}, unit.compute).n;
  if (shape.masters_on_host(u)) return gathers * copy;
  if (shape.gather_pool > 0) return gathers * (wide + copy);
  if (gathers == 0 || !ZeroShape::trainable(unit)) return 0;
  return unit.compute == DType::kBFloat16 ? copy : wide + copy;
}

/// What an offloaded unit's shard costs between host and device.
void add_host_traffic(const ZeroShape& shape, int u, std::int64_t gathers, ZeroTraffic& t) {
  if (!shape.masters_on_host(u)) return;
  const UnitLayout& unit = shape.layouts[static_cast<std::size_t>(u)];
  const std::int64_t wide = bytes_of(Elems{unit.shard_elems}, DType::kFloat32).n;
  const std::int64_t copy = bytes_of(Elems{unit.shard_elems}, unit.compute).n;
  if (shape.copy_on_host(u)) t.host_to_device.n += gathers * copy;
  if (!ZeroShape::trainable(unit)) return;
  t.device_to_host.n += wide;  // the gradient, or the master after its visit
  if (shape.updated_on_host(u)) {
    if (shape.copy_on_device(u)) t.host_to_device.n += copy;
  } else {
    t.host_to_device.n += wide;
    if (copy != wide) t.device_to_host.n += copy;
  }
}

}  // namespace

ZeroTraffic plan_traffic(const std::vector<UnitSpec>& units, const MeshShape& mesh,
                         const ZeroOptions& options, const std::vector<UnitUse>& micro_batch) {
  const ZeroShape shape(units, mesh, options);
  const std::vector<std::int64_t> gathers = count_gathers(shape, options, micro_batch);
  const std::int64_t reductions = shape.in_place ? 0 : shape.micro_batches / shape.per_reduction;
  ZeroTraffic t;
  t.nvme = shape.nvme_bytes();
  for (std::size_t u = 0; u < shape.layouts.size(); ++u) {
    const UnitLayout& unit = shape.layouts[u];
    t.formed.n += formed(shape, static_cast<int>(u), gathers[u]);
    const auto gather = [&](std::int64_t times, DType dtype) {
      const std::int64_t own = times * bytes_of(Elems{unit.shard_elems}, dtype).n;
      t.gathers += times;
      t.gathered.n += own * shape.shards;
      t.gather_wire.n += own * (shape.shards - 1);
    };
    gather(gathers[u], unit.compute);
    add_host_traffic(shape, static_cast<int>(u), gathers[u], t);
    if (!ZeroShape::trainable(unit)) continue;
    // A replicated unit's sums come together once, for the update of every rank.
    if (unit.placement == Placement::kReplicated) gather(1, DType::kFloat32);
    const std::int64_t slice = reductions * bytes_of(Elems{unit.shard_elems}, DType::kFloat32).n;
    t.reductions += reductions;
    t.reduced.n += slice * shape.shards;
    t.reduce_wire.n += slice * (shape.data_ranks - 1);
    t.reduce_local.n += slice * (shape.ordered ? shape.data_ranks + 2 : 3);
  }
  return t;
}

}  // namespace k25::parallel
