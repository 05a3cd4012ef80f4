// What the step's one collective says, on any number of ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>

#include "kernels/reduce/reduce.h"
#include "optim/statistics.h"
#include "tests/mpi_main.h"
#include "tests/parallel/zero/toy.h"

namespace k25::optim {
namespace {

using parallel::MeshShape;
using parallel::Oracle;
using parallel::test_world;
using parallel::Toy;
using parallel::UnitLayout;

/// A store and its statistics on one mesh.
struct Rig {
  explicit Rig(const MeshShape& shape)
      : options{.open_gradients = 1, .slots = 12},
        mesh(test_world(), shape),
        store(mesh, toy.units(), options, context, allocator),
        statistics(mesh, store, allocator, allocator) {
    toy.init(store);
  }
  int last() const { return mesh.data_ranks() - 1; }
  StepStats gather(const LocalStats& local) {
    statistics.begin(context);
    return statistics.gather(context, local);
  }

  /// Every slot adds `value` to one element; with `only_on` just the slots of that data rank.
  void add(const std::string& unit, std::size_t parameter, std::int64_t index, float value,
           int only_on = -1) {
    const int u = store.unit_index(unit);
    store.begin_step();
    for (std::int64_t slot = mesh.data_rank(); slot < options.slots; slot += mesh.data_ranks()) {
      const Tensor& g = Toy::open_gradient(store, u)[parameter];
      if (only_on < 0 || only_on == mesh.data_rank()) g.data<float>()[index] += value;
      store.gradient_done(u);
      store.end_micro_batch();
    }
    store.finish_gradients();
  }

  Toy toy;
  parallel::ZeroOptions options;
  parallel::Mesh mesh;
  HostAllocator allocator;
  Context context;
  parallel::ZeroStore store;
  Statistics statistics;
};

std::vector<MeshShape> meshes() {
  std::vector<MeshShape> all;
  const int ranks = test_world().size();
  for (int r = 1; r <= ranks; ++r) {
    if (ranks % r == 0) all.push_back({.replicate = r, .shard = ranks / r});
  }
  return all;
}

/// The norm's square over whole units: per chunk, unit after unit.
double chunked_square_sum(Oracle& oracle, const Toy& toy) {
  Context context;
  double sum = 0.0;
  for (std::size_t u = 0; u < toy.units().size(); ++u) {
    const UnitLayout layout = parallel::make_layout(toy.units()[u], 1, DType::kFloat32);
    if (layout.padded() == 0) continue;
    HostAllocator allocator;
    const Buffer flat(bytes_of(Elems{layout.padded()}, DType::kFloat32), allocator);
    const std::int64_t chunks = layout.padded() / kernels::kChunk;
    const Buffer sums(bytes_of(Elems{chunks}, DType::kFloat64), allocator);
    for (const Oracle::Parameter& p : oracle.parameters()) {
      if (p.unit != static_cast<int>(u)) continue;
      auto* to = static_cast<float*>(flat.data()) + layout.offsets[p.index];
      std::copy(p.gradient.begin(), p.gradient.end(), to);
    }
    kernels::chunk_square_sums(context, flat.view(DType::kFloat32, {layout.padded()}),
                               sums.view(DType::kFloat64, {chunks}));
    for (std::int64_t c = 0; c < chunks; ++c) sum += static_cast<const double*>(sums.data())[c];
  }
  return sum;
}

TEST(StatisticsMpi, NormHasEqualBitsOnEveryMesh) {
  for (const MeshShape& shape : meshes()) {
    Rig rig(shape);
    Oracle oracle(rig.toy, rig.options);
    oracle.accumulate(0);
    rig.toy.accumulate(rig.store, rig.mesh, rig.options, 0);
    const StepStats stats = rig.gather({.label_tokens = 1});
    EXPECT_TRUE(stats.gradient_finite);
    EXPECT_EQ(stats.bad_parameter, "");
    EXPECT_EQ(std::bit_cast<std::uint64_t>(stats.gradient_square_sum),
              std::bit_cast<std::uint64_t>(chunked_square_sum(oracle, rig.toy)));
    double plain = 0.0;  // every element once: padding, replicated and tied ones too
    for (const Oracle::Parameter& p : oracle.parameters()) {
      for (const float g : p.gradient) plain += static_cast<double>(g) * g;
    }
    EXPECT_NEAR(stats.gradient_square_sum, plain, 1e-12 * plain);
  }
}

TEST(StatisticsMpi, SumsAndLargestLoss) {
  for (const MeshShape& shape : meshes()) {
    Rig rig(shape);
    const int rank = rig.mesh.data_rank(), ranks = rig.mesh.data_ranks();
    // Rank r: r + 1 tokens of r + 2 nats each.
    LocalStats local;
    add_nll(local, static_cast<double>((rank + 1) * (rank + 2)));
    local.label_tokens += rank + 1;
    rig.add("layers.0", 0, 0, 0.0F);
    const StepStats stats = rig.gather(local);
    std::int64_t tokens = 0, nats = 0;
    for (int r = 0; r < ranks; ++r) {
      tokens += r + 1;
      nats += (r + 1) * (r + 2);
    }
    EXPECT_EQ(stats.label_tokens, tokens);
    EXPECT_EQ(stats.nll_fixed, nats << 24);
    EXPECT_EQ(stats.loss_max, ranks + 1.0);
    EXPECT_GE(stats.loss_max, mean_nll(stats.nll_fixed, stats.label_tokens));
    EXPECT_TRUE(stats.loss_finite);
    EXPECT_FALSE(stats.save_and_stop);
  }
}

TEST(StatisticsMpi, LargestLossIsNeverBelowTheMean) {
  Rig rig({.shard = test_world().size()});
  rig.add("layers.0", 0, 0, 0.0F);
  for (int k = 1; k < 200; ++k) {
    // Equal means on all ranks, with sums too large for a double: only rounding decides.
    LocalStats local;
    local.label_tokens = 3 + 7 * k;
    local.nll_fixed = local.label_tokens * ((std::int64_t{1} << 50) + k);
    const StepStats stats = rig.gather(local);
    ASSERT_GE(stats.loss_max, mean_nll(stats.nll_fixed, stats.label_tokens)) << k;
  }
}

TEST(StatisticsMpi, RanksWithoutLabelTokens) {
  Rig rig({.shard = test_world().size()});
  rig.add("layers.0", 0, 0, 0.0F);
  LocalStats local;
  if (rig.mesh.data_rank() == rig.last()) {
    add_nll(local, 6.0);
    local.label_tokens = 2;
  }
  const StepStats some = rig.gather(local);
  EXPECT_EQ(some.label_tokens, 2);
  EXPECT_EQ(some.loss_max, 3.0);

  const StepStats none = rig.gather({});
  EXPECT_EQ(none.label_tokens, 0);
  EXPECT_TRUE(std::isnan(none.loss_max));
  EXPECT_TRUE(none.loss_finite);
  EXPECT_TRUE(none.gradient_finite);
}

TEST(StatisticsMpi, OneRanksFlagReachesAll) {
  Rig rig({.shard = test_world().size()});
  rig.add("layers.0", 0, 0, 0.0F);
  const bool mine = rig.mesh.data_rank() == rig.last();
  LocalStats local{.label_tokens = 1, .save_and_stop = mine};
  EXPECT_TRUE(rig.gather(local).save_and_stop);
  local = {.label_tokens = 1};
  if (mine) {
    add_nll(local, std::nan(""));
    local.label_tokens = 1;
  }
  const StepStats stats = rig.gather(local);
  EXPECT_FALSE(stats.loss_finite);
  EXPECT_TRUE(stats.gradient_finite);
}

TEST(StatisticsMpi, SumsThatOverflowAreNotFinite) {
  Rig rig({.shard = test_world().size()});
  rig.add("layers.0", 0, 0, 0.0F);
  const LocalStats local{.nll_fixed = std::numeric_limits<std::int64_t>::max() - 1,
                         .label_tokens = 1};
  EXPECT_EQ(rig.gather(local).loss_finite, test_world().size() == 1);
}

TEST(StatisticsMpi, NamesTheElementAndTheRankThatMadeIt) {
  for (const MeshShape& shape : meshes()) {
    Rig rig(shape);
    const std::string rank = std::to_string(rig.last());
    for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
      rig.add("layers.1", 0, 17, bad, rig.last());
      const StepStats sharded = rig.gather({.label_tokens = 1});
      EXPECT_FALSE(sharded.gradient_finite);
      EXPECT_TRUE(sharded.loss_finite);
      EXPECT_EQ(sharded.bad_parameter, "layers.1.qkv[17] on rank " + rank);
      rig.store.end_step();

      rig.add("replicated", 1, 69, bad, rig.last());
      EXPECT_EQ(rig.gather({.label_tokens = 1}).bad_parameter, "layers.1.norm[69] on rank " + rank);
      rig.store.end_step();
    }
    rig.add("layers.1", 0, 17, 1.0F, rig.last());  // and the next step is clean
    EXPECT_TRUE(rig.gather({.label_tokens = 1}).gradient_finite);
  }
}

TEST(StatisticsMpi, NamesASumThatOverflows) {
  for (const MeshShape& shape : meshes()) {
    Rig rig(shape);
    rig.add("layers.1", 2, 5, 3e38F);  // finite in every slot
    const StepStats stats = rig.gather({.label_tokens = 1});
    EXPECT_FALSE(stats.gradient_finite);
    const std::string want = "layers.1.down[5] (sum over all ranks, in the shard of rank ";
    EXPECT_EQ(stats.bad_parameter.substr(0, want.size()), want);
  }
}

TEST(StatisticsMpi, EveryRankLearnsThePhasesOfAll) {
  for (const MeshShape& shape : meshes()) {
    Rig rig(shape);
    rig.add("embedding", 0, 0, 1.0F);
    LocalStats local;
    for (std::size_t p = 0; p < local.phases.size(); ++p) {
      local.phases[p] = 100.0 * test_world().rank() + static_cast<double>(p);
    }
    rig.gather(local);
    const std::vector<RankPhases>& all = rig.statistics.rank_phases();
    ASSERT_EQ(all.size(), static_cast<std::size_t>(rig.mesh.data_ranks()));
    std::vector<int> ranks;
    for (const RankPhases& each : all) {
      ranks.push_back(each.rank);
      for (std::size_t p = 0; p < each.seconds.size(); ++p) {
        EXPECT_EQ(each.seconds[p], 100.0 * each.rank + static_cast<double>(p));
      }
    }
    std::sort(ranks.begin(), ranks.end());
    for (std::size_t r = 0; r < ranks.size(); ++r) EXPECT_EQ(ranks[r], static_cast<int>(r));
  }
}

}  // namespace
}  // namespace k25::optim
