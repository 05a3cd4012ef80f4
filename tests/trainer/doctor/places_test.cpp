// The doctor's lines on where ranks would run.
#include "trainer/doctor/places.h"

#include <gtest/gtest.h>

namespace k25::trainer {
namespace {

parallel::Topology host() {
  parallel::Topology t;
  for (int c = 0; c < 8; ++c) t.cores.push_back({.numa_node = c / 4, .cpus = {c}});
  t.gpus = {{"0000:1b:00.0", 0, {1}}, {"0000:9a:00.0", 1, {2}}};
  t.nics = {{"mlx5_0", 0, {1}}, {"mlx5_1", 1, {2}}};
  return t;
}

TEST(Places, ALineForEachRank) {
  const std::vector<int> all = {0, 1, 2, 3, 4, 5, 6, 7};
  const std::vector<Finding> found =
      describe_places(host(), {{4, "h", all}, {5, "h", all}}, {"0000:9A:00.0", "00000000:1B:00.0"});
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].found,
            "rank 4: GPU 0000:9a:00.0, NUMA node 1, NIC mlx5_1, update on cpus 6-7");
  EXPECT_EQ(found[1].found,
            "rank 5: GPU 0000:1b:00.0, NUMA node 0, NIC mlx5_0, update on cpus 2-3");
  EXPECT_EQ(found[0].topic, "placement");
  EXPECT_EQ(found[0].severity, Severity::kOk);
}

TEST(Places, WithoutGpus) {
  const std::vector<Finding> found = describe_places(host(), {{0, "h", {0, 1, 2, 3}}}, {});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].found, "rank 0: update on cpus 2-3");
}

}  // namespace
}  // namespace k25::trainer
