// Ranks placed on a host of two packages with 8 cores of 2 hardware threads, and on lesser ones.
#include "parallel/placement/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "kernels/core/check.h"
#include "parallel/placement/cpu_list.h"
#include "parallel/placement/place_ranks.h"

namespace k25::parallel {
namespace {

// Core c has cpus c and c + 16, as Linux numbers them; GPUs 0 and 1 on node 0, 2 and 3 on node 1,
// each behind a switch with a card of its own.
Topology two_sockets() {
  Topology t;
  for (int c = 0; c < 16; ++c) t.cores.push_back({.numa_node = c / 8, .cpus = {c, c + 16}});
  for (int g = 0; g < 4; ++g) {
    const std::uint64_t root = g < 2 ? 100 : 101, below = static_cast<unsigned>(g);
    const std::string number = std::to_string(g);
    t.gpus.push_back({"0000:1" + number + ":00.0", g / 2, {root, below}});
    // Listed in another order than the GPUs.
    t.nics.insert(t.nics.begin(), {"mlx5_" + number, g / 2, {root, below}});
  }
  return t;
}

HostRank rank_on(int rank, int gpu, const std::string& cpus) {
  return {rank, gpu < 0 ? "" : "0000:1" + std::to_string(gpu) + ":00.0", cpu_list(cpus)};
}

PlacementRequest four_ranks(const std::string& cpus) {
  PlacementRequest request{.update_threads = 0};
  for (int r = 0; r < 4; ++r) request.ranks.push_back(rank_on(r, r, cpus));
  return request;
}

std::vector<RankPlacement> place_all(const Topology& topology, PlacementRequest request) {
  std::vector<RankPlacement> all;
  for (std::size_t r = 0; r < request.ranks.size(); ++r) {
    request.local_rank = r;
    all.push_back(place(topology, request));
  }
  return all;
}

std::vector<std::string> cpus_of(const std::vector<RankPlacement>& places) {
  std::vector<std::string> texts;
  for (const RankPlacement& p : places) texts.push_back(cpu_list_text(p.cpus));
  return texts;
}

std::string warning(const RankPlacement& place, PlacementIssue issue) {
  const auto found = std::ranges::find(place.warnings, issue, &PlacementWarning::issue);
  return found == place.warnings.end() ? "" : found->text;
}

using Texts = std::vector<std::string>;

TEST(Placement, EachRankGetsCoresBesideItsGpu) {
  const auto places = place_all(two_sockets(), four_ranks("0-31"));
  // Four cores each; two are left to the step.
  EXPECT_EQ(cpus_of(places), (Texts{"2-3", "6-7", "10-11", "14-15"}));
  for (std::size_t r = 0; r < 4; ++r) {
    EXPECT_EQ(places[r].numa_node, static_cast<int>(r) / 2);
    EXPECT_EQ(places[r].nic, "mlx5_" + std::to_string(r));
    EXPECT_TRUE(places[r].warnings.empty());
  }
}

TEST(Placement, OneRankTakesTheFarCoresAfterTheNearOnes) {
  PlacementRequest request{.ranks = {rank_on(0, 2, "0-31")}, .update_threads = 0};
  const RankPlacement p = place(two_sockets(), request);
  EXPECT_EQ(p.cpus, (std::vector<int>{10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(p.numa_node, 1);
  EXPECT_EQ(p.nic, "mlx5_2");
}

TEST(Placement, MasksAreKept) {
  // mpirun --map-by slot:PE=4 on matching sockets, second threads only on rank 1.
  PlacementRequest request = four_ranks("0-31");
  const char* masks[] = {"0-3,16-19", "20-23", "8-9,24-25", "12-14"};
  for (std::size_t r = 0; r < 4; ++r) request.ranks[r].cpus = cpu_list(masks[r]);
  const auto places = place_all(two_sockets(), request);
  EXPECT_EQ(cpus_of(places), (Texts{"2-3", "22-23", "9", "13-14"}));
  for (const RankPlacement& p : places) EXPECT_TRUE(p.warnings.empty());
}

TEST(Placement, RanksBoundToTheirNodeShareIt) {
  PlacementRequest request = four_ranks("0-7,16-23");
  request.ranks[2].cpus = request.ranks[3].cpus = cpu_list("8-15,24-31");
  const auto places = place_all(two_sockets(), request);
  EXPECT_EQ(cpus_of(places), (Texts{"2-3", "6-7", "10-11", "14-15"}));
  for (const RankPlacement& p : places) EXPECT_TRUE(p.warnings.empty());
}

TEST(Placement, NoCoreIsGivenTwiceAndNoneOutsideAMask) {
  for (const char* mask : {"0-31", "0-15", "3-29", "0,5,9,17,31"}) {
    for (std::size_t ranks = 1; ranks <= 4; ++ranks) {
      PlacementRequest request = four_ranks(mask);
      request.ranks.resize(ranks);
      std::set<int> cores;
      std::size_t given = 0;
      for (const RankPlacement& p : place_all(two_sockets(), request)) {
        EXPECT_FALSE(p.cpus.empty());
        for (const int cpu : p.cpus) {
          const std::vector<int> cpus = cpu_list(mask);
          EXPECT_NE(std::ranges::find(cpus, cpu), cpus.end());
          cores.insert(cpu % 16);
          ++given;
        }
      }
      EXPECT_EQ(cores.size(), given) << mask << ", " << ranks << " ranks";
    }
  }
}

TEST(Placement, MaskOnTheOtherNode) {
  PlacementRequest request{.ranks = {rank_on(4, 0, "8-15"), rank_on(5, 2, "8-15")},
                           .update_threads = 0};
  const auto places = place_all(two_sockets(), request);
  EXPECT_EQ(cpus_of(places), (Texts{"10-11", "14-15"}));  // both from node 1
  EXPECT_EQ(warning(places[0], PlacementIssue::kFarFromGpu),
            "rank 4 may run on cpus 8-15 only, but its GPU 0000:10:00.0 is on NUMA node 0 (cpus "
            "0-7,16-23): launches and copies cross the link between sockets; use mpirun --bind-to "
            "none");
  EXPECT_TRUE(places[1].warnings.empty());
}

TEST(Placement, MaskOfOneCore) {
  // mpirun's own binding of two ranks.
  PlacementRequest request{.ranks = {rank_on(0, 0, "0,16"), rank_on(1, 1, "1,17")},
                           .update_threads = 6};
  auto places = place_all(two_sockets(), request);
  EXPECT_EQ(cpus_of(places), (Texts{"0", "1"}));
  EXPECT_EQ(warning(places[1], PlacementIssue::kOneCore),
            "rank 1 may run on 1 core (cpus 1,17), and its update on the host wants 6 threads "
            "(offload.threads); use mpirun --bind-to none or --map-by slot:PE=6");
  request.update_threads = 0;  // as many as there are
  places = place_all(two_sockets(), request);
  EXPECT_NE(warning(places[0], PlacementIssue::kOneCore).find("slot:PE=8"), std::string::npos);
  request.update_threads = 1;
  EXPECT_TRUE(place(two_sockets(), request).warnings.empty());
  request.update_threads.reset();  // no update here
  EXPECT_TRUE(place(two_sockets(), request).warnings.empty());
}

TEST(Placement, RanksBoundToTheSameCores) {
  PlacementRequest request{.ranks = {rank_on(0, 0, "0,16"), rank_on(1, 1, "0,16")}};
  auto places = place_all(two_sockets(), request);
  EXPECT_EQ(cpus_of(places), (Texts{"0", "0"}));
  for (const RankPlacement& p : places) {
    EXPECT_EQ(warning(p, PlacementIssue::kSharedCores),
              "ranks 0 and 1 are bound to the same cores (cpus 0) and slow each other down; use "
              "mpirun --map-by slot:PE=8 or --bind-to none");
  }
  // Two threads of one core are one core.
  request.ranks[0].cpus = {0};
  request.ranks[1].cpus = {16};
  places = place_all(two_sockets(), request);
  EXPECT_NE(warning(places[0], PlacementIssue::kSharedCores), "");
  // Masks that overlap in part.
  request.ranks[0].cpus = cpu_list("0-3");
  request.ranks[1].cpus = cpu_list("2-5");
  places = place_all(two_sockets(), request);
  EXPECT_NE(warning(places[1], PlacementIssue::kSharedCores).find("(cpus 2-3)"), std::string::npos);
}

TEST(Placement, MoreRanksThanCores) {
  Topology one_core;
  one_core.cores = {{.numa_node = 0, .cpus = {0}}};
  PlacementRequest request;
  for (int r = 0; r < 3; ++r) request.ranks.push_back(rank_on(r, -1, "0"));
  const auto places = place_all(one_core, request);
  EXPECT_EQ(cpus_of(places), (Texts{"0", "0", "0"}));
  for (const RankPlacement& p : places) EXPECT_TRUE(p.warnings.empty());  // no mask of their own
}

TEST(Placement, WithoutATopologyTheMaskCounts) {
  PlacementRequest request{.ranks = {rank_on(0, 0, "4-9"), rank_on(1, 1, "4-9")}};
  const auto places = place_all({}, request);
  EXPECT_EQ(cpus_of(places), (Texts{"5-6", "8-9"}));
  EXPECT_EQ(places[0].numa_node, -1);
  EXPECT_EQ(places[0].nic, "");
  EXPECT_NE(warning(places[0], PlacementIssue::kNoTopology).find("mount /sys"), std::string::npos);
  request.ranks = {{.rank = 0}};  // not even a mask
  EXPECT_TRUE(place({}, request).cpus.empty());
}

TEST(Placement, UnknownGpuAndUnknownNode) {
  Topology t = two_sockets();
  t.gpus[0].numa_node = -1;  // a virtual machine
  PlacementRequest request{.ranks = {rank_on(0, 0, "0-15"), rank_on(1, 9, "0-15")}};
  const auto places = place_all(t, request);
  EXPECT_EQ(cpus_of(places), (Texts{"2-7", "10-15"}));
  EXPECT_EQ(places[0].nic, "mlx5_0");  // by the bridges
  EXPECT_EQ(places[1].nic, "");
  EXPECT_EQ(places[1].numa_node, -1);
}

TEST(Placement, EquallyNearCardsTakeTurns) {
  Topology t = two_sockets();
  t.nics = {{"a", 1, {7}}, {"b", 1, {8}}};
  const auto places = place_all(t, four_ranks("0-31"));
  Texts nics;
  for (const RankPlacement& p : places) nics.push_back(p.nic);
  EXPECT_EQ(nics, (Texts{"a", "b", "a", "b"}));
}

TEST(Placement, RankOutsideTheHost) {
  PlacementRequest request{.ranks = {rank_on(0, 0, "0")}, .local_rank = 1};
  EXPECT_THROW(place(two_sockets(), request), Error);
}

TEST(Placement, ReportHasALineForEachHostAndEachTroubleOnce) {
  const PlacementWarning core{PlacementIssue::kOneCore, "rank 0 has one core"};
  const PlacementReport report =
      report_places({{"h1", "rank 0: a", {core}},
                     {"h2", "rank 1: b", {}},
                     {"h1", "rank 2: c", {{PlacementIssue::kOneCore, "rank 2 has one core"}}}});
  EXPECT_EQ(report.hosts,
            (Texts{"placement on h1: rank 0: a; rank 2: c", "placement on h2: rank 1: b"}));
  EXPECT_EQ(report.warnings,
            (Texts{"host h1: rank 0 has one core (the same on 1 more ranks of this host)"}));
}

TEST(Placement, Text) {
  PlacementRequest request = four_ranks("0-31");
  request.local_rank = 3;
  EXPECT_EQ(placement_text(request.ranks[3], place(two_sockets(), request)),
            "rank 3: GPU 0000:13:00.0, NUMA node 1, NIC mlx5_3, update on cpus 14-15");
  EXPECT_EQ(placement_text(rank_on(0, -1, "0"), {.cpus = {0}}), "rank 0: update on cpus 0");
}

}  // namespace
}  // namespace k25::parallel
