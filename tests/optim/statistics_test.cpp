#include "optim/statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/parallel/zero/toy.h"

namespace k25::optim {
namespace {

TEST(AddNll, RoundsToFixedPoint) {
  LocalStats s;
  add_nll(s, 2.5);
  EXPECT_EQ(s.nll_fixed, std::int64_t{5} << 23);
  add_nll(s, 0x1p-24);
  EXPECT_EQ(s.nll_fixed, (std::int64_t{5} << 23) + 1);
  add_nll(s, 0.75 * 0x1p-24);
  EXPECT_EQ(s.nll_fixed, (std::int64_t{5} << 23) + 2);
  add_nll(s, -2.5);
  EXPECT_EQ(s.nll_fixed, 2);
  EXPECT_TRUE(s.loss_finite);
}

TEST(AddNll, SumsDoNotDependOnTheOrder) {
  const double nll[] = {0.1, 1e6, 3.7, 1e-6, 12.25};
  LocalStats up, down;
  for (int i = 0; i < 5; ++i) {
    add_nll(up, nll[i]);
    add_nll(down, nll[4 - i]);
  }
  EXPECT_EQ(up.nll_fixed, down.nll_fixed);
}

TEST(AddNll, FlagsWhatDoesNotFit) {
  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity(),
                           -std::numeric_limits<double>::infinity(), 1e300, -1e300}) {
    LocalStats s{.nll_fixed = 7};
    add_nll(s, bad);
    EXPECT_FALSE(s.loss_finite) << bad;
    EXPECT_EQ(s.nll_fixed, 7);
  }
  LocalStats full{.nll_fixed = std::numeric_limits<std::int64_t>::max() - 10};
  add_nll(full, 1.0);
  EXPECT_FALSE(full.loss_finite);
}

TEST(Statistics, AllocatesExactlyThePlan) {
  const std::unique_ptr<parallel::World> world = parallel::World::create({});
  parallel::Mesh mesh(*world, {});
  HostAllocator for_store, for_statistics;
  Context context;
  const std::vector<parallel::UnitSpec> units = parallel::toy_units();
  parallel::ZeroStore store(mesh, units, {}, context, for_store);
  const Statistics statistics(mesh, store, for_statistics, for_statistics);
  EXPECT_EQ(for_statistics.live(), Statistics::plan(units, mesh.shape(), Device::kCpu).device);
}

// Its sums of squares are all that looks at the gradients. The first as backward goes is named.
TEST(Statistics, ARankAloneWithOneSlotNamesItsBadElement) {
  using parallel::Toy;
  const std::unique_ptr<parallel::World> world = parallel::World::create({});
  parallel::Mesh mesh(*world, {});
  HostAllocator allocator;
  Context context;
  parallel::ZeroStore store(mesh, parallel::toy_units(), {}, context, allocator);
  Statistics statistics(mesh, store, allocator, allocator);
  struct Place {
    int unit;
    std::size_t parameter;
    std::int64_t index;
    const char* name;
  };
  const std::vector<Place> places = {{1, 1, 69, "layers.1.norm[69]"},
                                     {0, 0, 93 * 50 - 1, "embedding[4649]"},
                                     {2, 2, 0, "layers.0.down[0]"},
                                     {3, 0, 4097, "layers.1.qkv[4097]"}};
  const auto name_of = [&](std::size_t bad_places, float bad) {
    store.begin_step();
    for (const int unit : {3, 2, 0, 1}) {
      const std::vector<Tensor>& gradients = Toy::open_gradient(store, unit);
      for (std::size_t i = 0; i < bad_places; ++i) {
        if (places[i].unit != unit) continue;
        gradients[places[i].parameter].data<float>()[places[i].index] = bad;
      }
      store.gradient_done(unit);
    }
    store.end_micro_batch();
    store.finish_gradients();
    statistics.begin(context);
    const StepStats stats = statistics.gather(context, {.label_tokens = 1});
    store.end_step();
    EXPECT_EQ(stats.gradient_finite, stats.bad_parameter.empty());
    return stats.bad_parameter;
  };
  for (const float bad : {std::nanf(""), -std::numeric_limits<float>::infinity()}) {
    for (std::size_t n = 1; n <= places.size(); ++n) {
      EXPECT_EQ(name_of(n, bad), std::string(places[n - 1].name) + " on rank 0");
    }
  }
  EXPECT_EQ(name_of(places.size(), std::numeric_limits<float>::max()), "");
}

TEST(Statistics, PlanByHand) {
  // One unit of 5 chunks on 2 shards: 3 chunks a rank, 4 data ranks, and 128 bytes of scalars each.
  const std::vector<parallel::UnitSpec> units{
      {"a", parallel::Placement::kSharded, {parallel::toy_parameter("a", {5, 4096})}}};
  const parallel::MeshShape mesh{.replicate = 2, .shard = 2};
  const Bytes rows{4 * (128 + 3 * 8)};
  EXPECT_EQ(Statistics::plan(units, mesh, Device::kCpu), (Footprint{.device = rows}));
  EXPECT_EQ(Statistics::plan(units, mesh, Device::kCuda),
            (Footprint{.device = {3 * 8}, .host = rows}));
}

}  // namespace
}  // namespace k25::optim
