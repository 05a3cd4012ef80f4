// One process: plans, the order of calls, and the buffers' lives. Sums over ranks:
// zero_store_mpi_test.
#include "parallel/zero/zero_store.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "tests/parallel/zero/zero_store_fixture.h"

namespace k25::parallel {
namespace {

std::string error_of(ErrorKind kind, const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), kind) << e.what();
    return e.what();
  }
  return "no error";
}

#define K25_EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST_F(ZeroStoreTest, AllocatesExactlyThePlan) {
  for (const DType compute : {DType::kFloat32, DType::kBFloat16}) {
    for (const ReshardAfter reshard :
         {ReshardAfter::kForward, ReshardAfter::kMicroBatch, ReshardAfter::kStep}) {
      for (const std::int64_t per_slot : {1, 2}) {
        for (const ReduceMode mode : {ReduceMode::kOrdered, ReduceMode::kLibrary}) {
          const ZeroOptions options{.reshard_after = reshard,
                                    .open_gradients = 1,
                                    .mode = mode,
                                    .slots = 2,
                                    .micro_batches_per_slot = per_slot,
                                    .compute = compute};
          HostAllocator allocator;
          const ZeroStore store(mesh_, toy_.units(), options, context_, allocator);
          EXPECT_EQ(allocator.live(),
                    ZeroStore::plan(toy_.units(), mesh_.shape(), options).total());
          EXPECT_EQ(allocator.peak(), allocator.live());
        }
      }
    }
  }
}

TEST_F(ZeroStoreTest, AllocatesExactlyThePlanWhenOffloaded) {
  for (const DType compute : {DType::kFloat32, DType::kBFloat16}) {
    for (const Place optimizer : {Place::kDevice, Place::kHost}) {
      for (const Place params : {Place::kDevice, Place::kHost}) {
        for (const double resident : {0.0, 0.3, 1.0}) {
          const ZeroOptions options{
              .open_gradients = 1,
              .slots = 2,
              .compute = compute,
              .offload = {.optimizer = optimizer, .params = params, .resident = resident}};
          HostAllocator device, host;
          const ZeroStore store(mesh_, toy_.units(), options, context_, device, &host);
          const ZeroPlan plan = ZeroStore::plan(toy_.units(), mesh_.shape(), options);
          EXPECT_EQ(device.live(), plan.total());
          EXPECT_EQ(host.live(), plan.host.total());
          const bool offloads =
              (optimizer == Place::kHost || params == Place::kHost) && resident < 1.0;
          EXPECT_EQ(plan.host.total().n > 0, offloads);
        }
      }
    }
  }
}

// Units of 2 and 3 chunks a rank, bf16, two shards.
TEST_F(ZeroStoreTest, OffloadPlanByHand) {
  constexpr std::int64_t kChunkBytes = 4096 * 4;
  const std::vector<UnitSpec> units{{"a", Placement::kSharded, {toy_parameter("a", {3, 4096})}},
                                    {"b", Placement::kSharded, {toy_parameter("b", {5, 4096})}}};
  ZeroOptions options{.slots = 2, .compute = DType::kBFloat16};
  const auto plan = [&](Place optimizer, Place params, double resident) {
    options.offload = {.optimizer = optimizer, .params = params, .resident = resident};
    return ZeroStore::plan(units, {.shard = 2}, options);
  };
  const ZeroPlan optimizer = plan(Place::kHost, Place::kDevice, 0.0);
  EXPECT_EQ(optimizer.masters.n, 0);
  EXPECT_EQ(optimizer.moments.n, 0);
  EXPECT_EQ(optimizer.shard_gradients.n, 5 * kChunkBytes);
  EXPECT_EQ(optimizer.shard_copies.n, 5 * kChunkBytes / 2);
  EXPECT_EQ(optimizer.model_state().n, 15 * kChunkBytes / 2);
  EXPECT_EQ(optimizer.host.masters.n, 5 * kChunkBytes);
  EXPECT_EQ(optimizer.host.moments.n, 10 * kChunkBytes);
  EXPECT_EQ(optimizer.host.gradients.n, 5 * kChunkBytes);
  EXPECT_EQ(optimizer.host.staging.n, 8 * (8 << 20));
  EXPECT_EQ(optimizer.host.shard_copies.n, 0);

  const ZeroPlan both = plan(Place::kHost, Place::kHost, 0.0);
  EXPECT_EQ(both.model_state().n, 5 * kChunkBytes);  // gradients
  EXPECT_EQ(both.host.shard_copies.n, 5 * kChunkBytes / 2);
  EXPECT_EQ(both.host.staging.n, 0);

  const ZeroPlan params = plan(Place::kDevice, Place::kHost, 0.0);
  EXPECT_EQ(params.model_state().n, 15 * kChunkBytes);  // moments and gradients
  EXPECT_EQ(params.host.total().n, 15 * kChunkBytes / 2);
  EXPECT_EQ(params.offload_scratch.n, 24 << 20);

  const ZeroPlan upper = plan(Place::kHost, Place::kDevice, 0.5);  // a stays, b does not
  EXPECT_EQ(upper.masters.n, 2 * kChunkBytes);
  EXPECT_EQ(upper.host.masters.n, 3 * kChunkBytes);
  EXPECT_EQ(plan(Place::kHost, Place::kHost, 1.0).host.total().n, 0);
  options.offload = {.optimizer = Place::kHost, .resident = 1.01};
  EXPECT_THROW(ZeroStore::plan(units, {.shard = 2}, options), Error);
}

TEST_F(ZeroStoreTest, PlanByHand) {
  // Two sharded units of 3 and 5 chunks on 2 shards: 2 and 3 chunks a rank. One replicated: 1.
  constexpr std::int64_t kChunkBytes = 4096 * 4;
  const std::vector<UnitSpec> units{{"a", Placement::kSharded, {toy_parameter("a", {3, 4096})}},
                                    {"b", Placement::kSharded, {toy_parameter("b", {5, 4096})}},
                                    {"n", Placement::kReplicated, {toy_parameter("n", {10})}}};
  ZeroOptions options{.slots = 4, .compute = DType::kBFloat16};
  const MeshShape mesh{.replicate = 2, .shard = 2};
  const ZeroPlan pooled = ZeroStore::plan(units, mesh, options);
  EXPECT_EQ(pooled.masters.n, 5 * kChunkBytes);
  EXPECT_EQ(pooled.moments.n, 10 * kChunkBytes);
  EXPECT_EQ(pooled.shard_gradients.n, 5 * kChunkBytes);
  EXPECT_EQ(pooled.gathered.n, 2 * 6 * kChunkBytes / 2);    // two buffers of b in bf16
  EXPECT_EQ(pooled.unit_gradients.n, 2 * 6 * kChunkBytes);  // two buffers of b
  // b's slice of 4 data ranks, and a mark for each of three reductions, aligned
  EXPECT_EQ(pooled.reduction_scratch.n, 4 * 3 * kChunkBytes + 64);
  EXPECT_EQ(pooled.replicated.n, 5 * kChunkBytes);  // master, m, v, sum, own gradient
  EXPECT_EQ(pooled.model_state().n, 20 * kChunkBytes);
  EXPECT_EQ(pooled.total().n, (20 + 6 + 12 + 12 + 5) * kChunkBytes + 64);

  options.reshard_after = ReshardAfter::kStep;
  options.micro_batches_per_slot = 3;
  const ZeroPlan kept = ZeroStore::plan(units, mesh, options);
  EXPECT_EQ(kept.gathered.n, (4 + 6) * kChunkBytes / 2);
  EXPECT_EQ(kept.unit_gradients.n, (4 + 6) * kChunkBytes);

  options.mode = ReduceMode::kLibrary;
  const ZeroPlan library = ZeroStore::plan(units, mesh, options);
  EXPECT_EQ(library.reduction_scratch.n, 128);  // nine marks
  EXPECT_EQ(library.host.total().n, 0);
  options.device = Device::kCuda;  // there the sum needs room before it is added
  const ZeroPlan gpu = ZeroStore::plan(units, mesh, options);
  EXPECT_EQ(gpu.reduction_scratch.n, 3 * kChunkBytes + 128);
  EXPECT_EQ(gpu.host.total().n, 128);  // the marks come there
  options.device = Device::kCpu;
  EXPECT_EQ(library.unit_gradients.n, 2 * 6 * kChunkBytes);
  options.reduce_after = ReduceAfter::kStep;
  EXPECT_EQ(ZeroStore::plan(units, mesh, options).unit_gradients.n, (4 + 6) * kChunkBytes);

  // One rank with one slot forms gradients in its shard.
  const ZeroPlan alone = ZeroStore::plan(units, {}, {.slots = 1});
  EXPECT_EQ(alone.shard_gradients.n, 8 * kChunkBytes);
  EXPECT_EQ(alone.unit_gradients.n, 0);
  EXPECT_EQ(alone.replicated.n, 4 * kChunkBytes);  // master, m, v, gradient
  EXPECT_EQ(alone.reduction_scratch.n, 0);
}

TEST_F(ZeroStoreTest, ModelStateFallsWithTheShards) {
  const auto state = [&](int shards) {
    const MeshShape mesh{.shard = shards};
    return ZeroStore::plan(toy_.units(), mesh, {.slots = shards}).model_state().n;
  };
  std::int64_t elements = 0;
  int sharded = 0;
  for (const UnitSpec& u : toy_.units()) {
    if (u.placement != Placement::kSharded) continue;
    elements += make_layout(u, 1, DType::kFloat32).numel;
    ++sharded;
  }
  for (int w = 1; w <= 9; ++w) {
    EXPECT_GE(state(w), elements * 16 / w);
    EXPECT_LE(state(w), elements * 16 / w + sharded * 4096 * 16) << w;  // to one chunk a unit
  }
}

TEST_F(ZeroStoreTest, RefusesOptionsThatDoNotFitTheMesh) {
  const auto plan = [&](MeshShape mesh, ZeroOptions options) {
    return error_of(ErrorKind::kUsage, [&] { ZeroStore::plan(toy_.units(), mesh, options); });
  };
  const std::string slots = plan({.replicate = 2, .shard = 3}, {.slots = 9});
  K25_EXPECT_HAS(slots, "reduce.slots is 9");
  K25_EXPECT_HAS(slots, "6 data ranks");
  K25_EXPECT_HAS(plan({}, {.slots = 0}), "reduce.slots is 0");
  K25_EXPECT_HAS(plan({}, {.micro_batches_per_slot = 0}), "0 micro-batches");
  K25_EXPECT_HAS(plan({}, {.prefetch = -1}), "zero.prefetch is -1");
  K25_EXPECT_HAS(plan({.expert = 2}, {.slots = 2}), "mesh.expert is 2");
  K25_EXPECT_HAS(plan({.context = 2}, {.slots = 2}), "mesh.context 2");
  const std::string twice = error_of(ErrorKind::kInternal, [] {
    ZeroStore::plan({{"a", Placement::kSharded, {}}, {"a", Placement::kSharded, {}}}, {}, {});
  });
  K25_EXPECT_HAS(twice, "two units are named a");
}

TEST_F(ZeroStoreTest, UnitsByName) {
  ZeroStore store = make({});
  EXPECT_EQ(store.num_units(), 7);
  EXPECT_EQ(store.unit_index("layers.1"), 3);
  EXPECT_EQ(store.layout(3).name, "layers.1");
  K25_EXPECT_HAS(error_of(ErrorKind::kInternal, [&] { store.unit_index("layers.9"); }), "layers.9");
}

TEST_F(ZeroStoreTest, Fp32OnOneShardIsReadInPlace) {
  ZeroStore store = make({});
  toy_.init(store);
  for (int u = 0; u < store.num_units(); ++u) {
    const std::vector<Tensor>& views = store.acquire(u);
    ASSERT_EQ(views.size(), store.layout(u).parameters.size());
    for (std::size_t p = 0; p < views.size(); ++p) {
      EXPECT_EQ(views[p].numel(), store.layout(u).parameters[p].numel());
      if (views[p].numel() == 0) continue;
      EXPECT_EQ(views[p].raw(), store.master(u).data<float>() + store.layout(u).offsets[p]);
    }
    store.release(u, Phase::kForward);
  }
  EXPECT_EQ(gathers("layers.0"), 0);
}

TEST_F(ZeroStoreTest, Bf16ViewsAreTheRoundedMasters) {
  ZeroStore store = make({.compute = DType::kBFloat16});
  toy_.init(store);
  const std::vector<Tensor>& views = store.acquire(2);
  ASSERT_EQ(views[0].dtype(), DType::kBFloat16);
  const float* master = store.master(2).data<float>();
  for (std::size_t p : {0, 2}) {
    for (std::int64_t i = 0; i < views[p].numel(); ++i) {
      ASSERT_EQ(views[p].data<BFloat16>()[i].bits,
                BFloat16(master[store.layout(2).offsets[p] + i]).bits);
    }
  }
  EXPECT_EQ(store.acquire(1)[0].dtype(), DType::kFloat32);  // replicated
  EXPECT_EQ(store.acquire(4)[0].dtype(), DType::kFloat32);  // on the keep list
}

TEST_F(ZeroStoreTest, GatheredCopiesLiveUntilTheyAreDropped) {
  ZeroStore store = make({.reshard_after = ReshardAfter::kStep, .compute = DType::kBFloat16});
  toy_.init(store);
  const auto first = [&] {
    const float value = static_cast<float>(store.acquire(2)[0].data<BFloat16>()[0]);
    store.release(2, Phase::kForward);
    return value;
  };
  store.master(2).data<float>()[0] = 1.0F;
  EXPECT_EQ(first(), 1.0F);
  store.master(2).data<float>()[0] = 2.0F;
  EXPECT_EQ(first(), 1.0F);  // the copy
  store.invalidate();
  EXPECT_EQ(first(), 2.0F);

  store.begin_step();
  store.end_micro_batch();
  store.finish_gradients();
  store.update([](Context&, const UpdatePiece& piece) {
    piece.master.data<float>()[0] = 3.0F;
    if (piece.copy_out) piece.copy_out.data<BFloat16>()[0] = BFloat16(3.0F);
  });
  store.end_step();
  EXPECT_EQ(first(), 3.0F);
}

TEST_F(ZeroStoreTest, MicroBatchModeKeepsUnitsUntilItsEnd) {
  ZeroStore store = make({.reshard_after = ReshardAfter::kMicroBatch, .compute = DType::kBFloat16});
  store.begin_step();
  for (const Phase phase : {Phase::kForward, Phase::kBackward}) {
    for (const int u : {0, 2, 3}) {
      store.acquire(u);
      store.release(u, phase);
    }
  }
  EXPECT_EQ(gathers("layers.0"), 1);
  store.end_micro_batch();
  store.acquire(2);
  store.release(2, Phase::kForward);
  EXPECT_EQ(gathers("layers.0"), 2);
}

TEST_F(ZeroStoreTest, PoolKeepsTheLastUnits) {
  ZeroStore store = make({.prefetch = 1, .compute = DType::kBFloat16});  // two buffers
  const auto visit = [&](int u, Phase phase) {
    store.acquire(u);
    store.release(u, phase);
  };
  for (const int u : {0, 2, 3}) visit(u, Phase::kForward);
  visit(3, Phase::kBackward);  // still there from forward
  visit(2, Phase::kBackward);  // and so is this one
  EXPECT_EQ(gathers("layers.1"), 1);
  EXPECT_EQ(gathers("layers.0"), 1);
  EXPECT_EQ(gathers("embedding"), 1);
  visit(0, Phase::kBackward);  // takes the place of layers.1, whose backward came first
  EXPECT_EQ(gathers("embedding"), 2);
  visit(2, Phase::kForward);
  EXPECT_EQ(gathers("layers.0"), 1);
}

TEST_F(ZeroStoreTest, PrefetchGathersOnceAndNeverTakesAUnitInUse) {
  ZeroStore store = make({.prefetch = 1, .compute = DType::kBFloat16});
  store.prefetch(2);
  store.prefetch(2);
  EXPECT_EQ(gathers("layers.0"), 1);
  const void* at = store.acquire(2)[0].raw();
  EXPECT_EQ(gathers("layers.0"), 1);
  store.prefetch(3);
  store.prefetch(0);  // no room: one in use, one prefetched
  EXPECT_EQ(gathers("embedding"), 0);
  EXPECT_EQ(store.acquire(2)[0].raw(), at);  // a second user of the same copy
  store.release(2, Phase::kForward);
  store.prefetch(0);  // still used once
  EXPECT_EQ(gathers("embedding"), 0);
  store.acquire(0);  // takes the place of the prefetched unit
  EXPECT_EQ(gathers("embedding"), 1);
  K25_EXPECT_HAS(error_of(ErrorKind::kInternal, [&] { store.acquire(3); }), "layers.0, embedding");
}

TEST_F(ZeroStoreTest, GradientsAreZeroAtFirstAndAbsentForFrozen) {
  ZeroStore store = make({.slots = 3});
  store.begin_step();
  for (int round = 0; round < 3; ++round) {
    for (const int u : {3, 2}) {
      const std::vector<Tensor>& g = store.gradient(u);
      EXPECT_EQ(store.gradient_state(u), GradientState::kUnwritten);
      ASSERT_EQ(g.size(), 3U);
      EXPECT_EQ(static_cast<bool>(g[1]), u == 2);  // layers.1.frozen is absent
      for (const std::size_t p : {0, 2}) {
        const bool zeros = store.layout(u).parameters[p].gradient_start == GradientStart::kZeros;
        for (std::int64_t i = 0; i < g[p].numel(); ++i) {
          if (zeros) {
            ASSERT_EQ(g[p].data<float>()[i], 0.0F);
          }
          g[p].data<float>()[i] = 1.0F;
        }
      }
      store.gradient_done(u);
    }
    EXPECT_FALSE(store.gradient(5)[0]);  // a unit that is frozen as a whole
    store.gradient_done(5);
    store.end_micro_batch();
  }
  store.finish_gradients();
  for (const int u : {2, 3}) {  // and zero between and behind the parameters
    const UnitLayout& layout = store.layout(u);
    const Tensor sums = store.shard_gradient(u);
    std::vector<float> want(static_cast<std::size_t>(sums.numel()), 0.0F);
    for (const std::size_t p : {0, 2}) {
      std::fill_n(want.begin() + layout.offsets[p], layout.parameters[p].numel(), 3.0F);
    }
    EXPECT_EQ(std::vector<float>(sums.data<float>(), sums.data<float>() + sums.numel()), want);
  }
  EXPECT_EQ(store.shard_gradient(5).data<float>()[0], 0.0F);
}

TEST_F(ZeroStoreTest, UnusedUnitsKeepTheSlotSum) {
  // layers.0 is used in the first micro-batch of the first slot only.
  for (const std::int64_t slots : {1, 2}) {
    ZeroStore store = make({.slots = slots, .micro_batches_per_slot = 2});
    store.begin_step();
    Toy::open_gradient(store, 2)[0].data<float>()[5] = 4.0F;
    store.gradient_done(2);
    store.end_micro_batch();
    for (std::int64_t rest = 2 * slots - 1; rest > 0; --rest) {
      store.gradient_done(3);
      store.end_micro_batch();
    }
    store.finish_gradients();
    EXPECT_EQ(store.shard_gradient(2).data<float>()[5], 4.0F);
    EXPECT_EQ(store.shard_gradient(3).data<float>()[5], 0.0F);
    EXPECT_EQ(count("reduce_scatter", "layers.0"), slots - 1);  // one slot is summed in its shard
  }
}

TEST_F(ZeroStoreTest, LibraryModeReducesPerMicroBatchOrPerStep) {
  for (const ReduceAfter after : {ReduceAfter::kMicroBatch, ReduceAfter::kStep}) {
    const int before = count("reduce_scatter", "layers.0");
    const ZeroOptions options{.reduce_after = after,
                              .open_gradients = 1,
                              .mode = ReduceMode::kLibrary,
                              .slots = 2,
                              .micro_batches_per_slot = 2};
    ZeroStore store = make(options);
    toy_.init(store);
    toy_.accumulate(store, mesh_, options, 0);
    EXPECT_EQ(count("reduce_scatter", "layers.0") - before,
              after == ReduceAfter::kMicroBatch ? 4 : 1);
  }
}

TEST_F(ZeroStoreTest, FindsTheFirstGradientThatIsNotFinite) {
  ZeroStore store = make({.slots = 2});
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    store.begin_step();
    EXPECT_EQ(store.first_bad_gradient().unit, -1);
    for (int slot = 0; slot < 2; ++slot) {
      Toy::open_gradient(store, 3)[2].data<float>()[4] = bad;
      store.gradient_done(3);
      Toy::open_gradient(store, 2)[0].data<float>()[0] = bad;
      store.gradient_done(2);
      store.end_micro_batch();
    }
    store.finish_gradients();
    EXPECT_EQ(store.first_bad_gradient().unit, 3);
    EXPECT_EQ(store.first_bad_gradient().element, store.layout(3).offsets[2] + 4);
    store.end_step();
  }
  store.begin_step();
  EXPECT_EQ(store.first_bad_gradient().unit, -1);
}

TEST_F(ZeroStoreTest, CallsOutOfOrderNameTheUnit) {
  ZeroStore store = make({.slots = 2});
  const auto internal = [](const std::function<void()>& body) {
    return error_of(ErrorKind::kInternal, body);
  };
  K25_EXPECT_HAS(internal([&] { store.release(2, Phase::kForward); }), "layers.0 is released");
  K25_EXPECT_HAS(internal([&] { store.gradient(2); }), "gradient out of order");
  K25_EXPECT_HAS(internal([&] { store.shard_gradient(2); }), "shard_gradient out of order");
  store.begin_step();
  K25_EXPECT_HAS(internal([&] { store.begin_step(); }), "begin_step out of order");
  store.gradient(2);
  K25_EXPECT_HAS(internal([&] { store.end_micro_batch(); }), "layers.0: gradient without");
  store.gradient_done(2);
  K25_EXPECT_HAS(internal([&] { store.gradient_done(2); }), "layers.0: gradient_done twice");
  K25_EXPECT_HAS(internal([&] { store.gradient(2); }), "layers.0: gradient after gradient_done");
  store.end_micro_batch();
  K25_EXPECT_HAS(internal([&] { store.finish_gradients(); }), "after 1 micro-batches");
  for (const int u : {0, 2}) store.gradient(u);
  const std::string full = internal([&] { store.gradient(3); });
  K25_EXPECT_HAS(full, "layers.1 gets no gradient buffer");
  K25_EXPECT_HAS(full, "2 are open at once");
  K25_EXPECT_HAS(full, "embedding");
  store.acquire(2);
  K25_EXPECT_HAS(internal([&] { store.invalidate(); }), "layers.0 is still acquired");
}

TEST_F(ZeroStoreTest, NoUnitsAtAll) {
  ZeroStore store = make({}, {});
  store.begin_step();
  store.end_micro_batch();
  store.finish_gradients();
  store.end_step();
  EXPECT_EQ(store.num_units(), 0);
  EXPECT_EQ(allocator_.live().n, 0);
}

}  // namespace
}  // namespace k25::parallel
