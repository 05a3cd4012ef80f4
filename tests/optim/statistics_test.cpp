#include "optim/statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

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
