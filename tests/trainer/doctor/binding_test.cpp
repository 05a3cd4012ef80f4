// What masks mean.
#include "trainer/doctor/binding.h"

#include <gtest/gtest.h>

namespace k25::trainer {
namespace {

const std::vector<NumaNode> kTwoNodes = {{0, {0, 1, 2, 3}, {}}, {1, {4, 5, 6, 7}, {}}};

Finding check(const std::vector<std::vector<int>>& masks,
              const std::vector<NumaNode>& nodes = kTwoNodes) {
  std::vector<RankBinding> ranks;
  for (const auto& cpus : masks) ranks.push_back({static_cast<int>(ranks.size()), "h", cpus});
  const std::vector<Finding> found = check_binding(ranks, nodes);
  EXPECT_EQ(found.size(), 1);
  EXPECT_EQ(found[0].severity == Severity::kOk, found[0].consequence.empty());
  EXPECT_EQ(found[0].severity == Severity::kOk, found[0].mend.empty());
  return found[0];
}

TEST(Binding, OneRankWithTheWholeHost) {
  const Finding f = check({{0, 1, 2, 3, 4, 5, 6, 7}});
  EXPECT_EQ(f.severity, Severity::kOk);
  EXPECT_EQ(f.found, "rank 0: cpus 0-7");
}

TEST(Binding, DisjointHalves) {
  EXPECT_EQ(check({{0, 1, 2, 3}, {4, 5, 6, 7}}).severity, Severity::kOk);
}

// mpirun's default with at most two ranks.
TEST(Binding, OneCpuEachWhereThereAreMore) {
  const Finding f = check({{0}, {1}});
  EXPECT_EQ(f.severity, Severity::kWarning);
  EXPECT_NE(f.consequence.find("share one CPU of 8"), std::string::npos) << f.consequence;
  EXPECT_NE(f.mend.find("--bind-to none, or --map-by slot:PE=4"), std::string::npos) << f.mend;
  // There are no more.
  EXPECT_EQ(check({{0}, {1}}, {{0, {0, 1}, {}}}).severity, Severity::kOk);
}

TEST(Binding, MoreRanksThanCpus) {
  const Finding f = check({{0, 1}, {0, 1}, {0, 1}}, {{0, {0, 1}, {}}});
  EXPECT_EQ(f.severity, Severity::kWarning);
  EXPECT_NE(f.consequence.find("3 ranks take turns on 2 CPUs"), std::string::npos);
  EXPECT_EQ(check({{5}, {5}}).severity, Severity::kWarning);
}

TEST(Binding, MasksThatOverlap) {
  const Finding f = check({{0, 1, 2}, {2, 3}});
  EXPECT_EQ(f.severity, Severity::kWarning);
  EXPECT_NE(f.found.find("ranks 0 and 1 share cpus 2"), std::string::npos) << f.found;
}

TEST(Binding, NotBoundAtAll) {
  const std::vector<int> all = {0, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_EQ(check({all, all}).severity, Severity::kNote);
}

TEST(Binding, AMaskOverBothNodes) {
  const Finding f = check({{3, 4}, {0, 1, 2}});
  EXPECT_EQ(f.severity, Severity::kNote);
  EXPECT_NE(f.consequence.find("rank 0 reaches over several NUMA nodes"), std::string::npos);
}

TEST(Binding, ThisProcessHasAMask) { EXPECT_FALSE(cpus_of_process().empty()); }

}  // namespace
}  // namespace k25::trainer
