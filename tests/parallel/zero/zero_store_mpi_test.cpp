// Any number of ranks, any options: the sums of the serial oracle, bit by bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <sstream>

#include "parallel/zero/zero_store.h"
#include "tests/mpi_main.h"
#include "tests/parallel/zero/toy.h"

namespace k25::parallel {
namespace {

std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }

/// All meshes of this job's ranks without expert and context axes.
std::vector<MeshShape> meshes() {
  std::vector<MeshShape> all;
  const int ranks = test_world().size();
  for (int r = 1; r <= ranks; ++r) {
    if (ranks % r == 0) all.push_back({.replicate = r, .shard = ranks / r});
  }
  return all;
}

std::string describe(const MeshShape& m, const ZeroOptions& o) {
  std::ostringstream s;
  s << "replicate " << m.replicate << " shard " << m.shard << " reshard "
    << static_cast<int>(o.reshard_after) << " reduce " << static_cast<int>(o.reduce_after)
    << " prefetch " << o.prefetch << " mode " << static_cast<int>(o.mode) << " per slot "
    << o.micro_batches_per_slot << " compute " << dtype_name(o.compute);
  return s.str();
}

/// The value of whole-unit element `at` when this rank's view holds it.
const float* element(const ZeroStore& store, const Tensor& state, int unit, std::int64_t at) {
  const std::int64_t local = at - store.shard_begin(unit);
  return local < 0 || local >= state.numel() ? nullptr : state.data<float>() + local;
}

void expect_gradients(ZeroStore& store, Oracle& oracle) {
  for (const Oracle::Parameter& p : oracle.parameters()) {
    const Tensor gradient = store.shard_gradient(p.unit);
    for (std::size_t i = 0; i < p.gradient.size(); ++i) {
      const std::int64_t at = store.layout(p.unit).offsets[p.index] + static_cast<std::int64_t>(i);
      const float* got = element(store, gradient, p.unit, at);
      if (got == nullptr) continue;
      ASSERT_EQ(bits(*got), bits(p.gradient[i])) << p.spec->name << " " << i;
    }
  }
}

/// Everything outside parameters stays zero.
void expect_zero_padding(ZeroStore& store) {
  for (int u = 0; u < store.num_units(); ++u) {
    const UnitLayout& layout = store.layout(u);
    std::vector<bool> used(static_cast<std::size_t>(layout.padded()));
    for (std::size_t p = 0; p < layout.parameters.size(); ++p) {
      for (std::int64_t i = 0; i < layout.parameters[p].numel(); ++i) {
        used[static_cast<std::size_t>(layout.offsets[p] + i)] = true;
      }
    }
    const Tensor gradient = store.shard_gradient(u);
    for (std::int64_t at = 0; at < layout.padded(); ++at) {
      const float* got = element(store, gradient, u, at);
      if (got == nullptr || used[static_cast<std::size_t>(at)]) continue;
      ASSERT_EQ(bits(*got), 0U);
    }
  }
}

void run(const MeshShape& shape, const ZeroOptions& options, Oracle& oracle, const Toy& toy) {
  SCOPED_TRACE(describe(shape, options));
  Mesh mesh(test_world(), shape);
  HostAllocator allocator;
  Context context;
  ZeroStore store(mesh, toy.units(), options, context, allocator);
  EXPECT_EQ(allocator.live(), ZeroStore::plan(toy.units(), shape, options).total());
  toy.init(store);
  for (std::int64_t step = 0; step < 2; ++step) {  // the second finds used buffers
    toy.accumulate(store, mesh, options, 0);
    expect_gradients(store, oracle);
    expect_zero_padding(store);
    store.end_step();
  }
  EXPECT_EQ(allocator.live(), allocator.peak());
}

TEST(ZeroStoreMpi, EveryOptionGivesTheOrderedSum) {
  const Toy toy;
  for (const DType compute : {DType::kFloat32, DType::kBFloat16}) {
    for (const std::int64_t per_slot : {1, 2}) {
      ZeroOptions options{
          .open_gradients = 1, .slots = 12, .micro_batches_per_slot = per_slot, .compute = compute};
      Oracle oracle(toy, options);
      oracle.accumulate(0);
      for (const MeshShape& mesh : meshes()) {
        for (const ReshardAfter reshard :
             {ReshardAfter::kForward, ReshardAfter::kMicroBatch, ReshardAfter::kStep}) {
          options.reshard_after = reshard;
          for (const int prefetch : {0, 1, 3}) {
            options.prefetch = prefetch;
            for (const ReduceAfter reduce : {ReduceAfter::kMicroBatch, ReduceAfter::kStep}) {
              options.reduce_after = reduce;
              run(mesh, options, oracle, toy);
            }
          }
        }
      }
    }
  }
}

TEST(ZeroStoreMpi, LibrarySumsAgreeToRounding) {
  const Toy toy;
  for (const ReduceAfter reduce : {ReduceAfter::kMicroBatch, ReduceAfter::kStep}) {
    const ZeroOptions options{.reduce_after = reduce,
                              .open_gradients = 1,
                              .mode = ReduceMode::kLibrary,
                              .slots = 12,
                              .micro_batches_per_slot = 2};
    Oracle oracle(toy, options);
    oracle.accumulate(0);
    for (const MeshShape& shape : meshes()) {
      SCOPED_TRACE(describe(shape, options));
      Mesh mesh(test_world(), shape);
      HostAllocator allocator;
      Context context;
      ZeroStore store(mesh, toy.units(), options, context, allocator);
      toy.init(store);
      toy.accumulate(store, mesh, options, 0);
      for (const Oracle::Parameter& p : oracle.parameters()) {
        for (std::size_t i = 0; i < p.gradient.size(); ++i) {
          const std::int64_t at =
              store.layout(p.unit).offsets[p.index] + static_cast<std::int64_t>(i);
          const float* got = element(store, store.shard_gradient(p.unit), p.unit, at);
          if (got == nullptr) continue;
          const float tolerance = 1e-5F * std::max(1.0F, std::abs(p.gradient[i]));
          ASSERT_NEAR(*got, p.gradient[i], tolerance) << p.spec->name << " " << i;
        }
      }
    }
  }
}

TEST(ZeroStoreMpi, GathersEveryRanksPart) {
  const Toy toy;
  for (const DType compute : {DType::kFloat32, DType::kBFloat16}) {
    for (const MeshShape& shape : meshes()) {
      Mesh mesh(test_world(), shape);
      HostAllocator allocator;
      Context context;
      const ZeroOptions options{.slots = 12, .compute = compute};
      ZeroStore store(mesh, toy.units(), options, context, allocator);
      for (float scale = 1.0F; scale < 3.0F; scale += 1.0F) {  // again, with other masters
        for (int u = 0; u < store.num_units(); ++u) {
          const Tensor master = store.master(u);
          for (std::int64_t i = 0; i < master.numel(); ++i) {
            master.data<float>()[i] =
                scale * (1.0F + static_cast<float>(store.shard_begin(u) + i)) / 7.0F;
          }
        }
        store.invalidate();
        for (int u = 0; u < store.num_units(); ++u) {
          const std::vector<Tensor>& views = store.acquire(u);
          for (std::size_t p = 0; p < views.size(); ++p) {
            for (std::int64_t i = 0; i < views[p].numel(); ++i) {
              const std::int64_t at = store.layout(u).offsets[p] + i;
              const float want = scale * (1.0F + static_cast<float>(at)) / 7.0F;
              if (views[p].dtype() == DType::kFloat32) {
                ASSERT_EQ(views[p].data<float>()[i], want);
              } else {
                ASSERT_EQ(views[p].data<BFloat16>()[i].bits, BFloat16(want).bits);
              }
            }
          }
          store.release(u, Phase::kForward);
        }
      }
    }
  }
}

TEST(ZeroStoreMpi, EveryElementHasOneOwnerAmongTheShards) {
  const Toy toy;
  for (const MeshShape& shape : meshes()) {
    Mesh mesh(test_world(), shape);
    HostAllocator allocator;
    Context context;
    ZeroStore store(mesh, toy.units(), {.slots = 12}, context, allocator);
    for (int u = 0; u < store.num_units(); ++u) {
      std::vector<std::int64_t> owners(static_cast<std::size_t>(store.layout(u).padded()));
      const ZeroStore::Range owned = store.owned(u);
      for (std::int64_t i = 0; i < owned.length; ++i) {
        ++owners[static_cast<std::size_t>(store.shard_begin(u) + owned.begin + i)];
      }
      mesh.shard_comm()
          .all_reduce_small({"owners"}, {.integers = owners.data(),
                                         .count = static_cast<std::int64_t>(owners.size())})
          .wait();
      for (const std::int64_t n : owners) ASSERT_EQ(n, 1);
    }
  }
}

// A unit that only one rank has a use for: the others join with zeros.
TEST(ZeroStoreMpi, UnitUsedOnOneRankOnly) {
  const Toy toy;
  const int ranks = test_world().size();
  for (const MeshShape& shape : meshes()) {
    Mesh mesh(test_world(), shape);
    HostAllocator allocator;
    Context context;
    ZeroStore store(mesh, toy.units(), {.slots = ranks}, context, allocator);
    store.begin_step();
    if (mesh.data_rank() == ranks - 1) {
      store.acquire(2);
      const Tensor& g = store.gradient(2)[0];
      for (std::int64_t i = 0; i < g.numel(); ++i) g.data<float>()[i] = static_cast<float>(i);
      store.release(2, Phase::kBackward);
    } else {
      store.acquire(2);
      store.release(2, Phase::kBackward);
    }
    store.gradient_done(2);
    store.end_micro_batch();
    store.finish_gradients();
    for (std::int64_t i = 0; i < toy.units()[2].parameters[0].numel(); ++i) {
      const float* got = element(store, store.shard_gradient(2), 2, i);
      if (got == nullptr) continue;
      ASSERT_EQ(*got, static_cast<float>(i));
    }
    store.end_step();
  }
}

}  // namespace
}  // namespace k25::parallel
