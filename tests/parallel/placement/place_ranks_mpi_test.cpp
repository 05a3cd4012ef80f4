// What the ranks tell each other about their places and GPUs.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "parallel/placement/cpu_list.h"
#include "parallel/placement/gather_texts.h"
#include "parallel/placement/gpu_choice.h"
#include "parallel/placement/place_ranks.h"
#include "tests/mpi_main.h"

namespace k25::parallel {
namespace {

TEST(PlaceRanks, OnThisHost) {
  World& world = test_world();
  const JobPlacement job = place_ranks(world, "", 0);
  const std::vector<int> mask = cpus_of_process();
  ASSERT_FALSE(job.mine.cpus.empty());
  for (const int cpu : job.mine.cpus) EXPECT_NE(std::ranges::find(mask, cpu), mask.end());
  ASSERT_EQ(job.report.hosts.size(), 1U);
  const std::string& line = job.report.hosts[0];
  EXPECT_TRUE(line.starts_with("placement on " + world.peer(0).host + ": rank 0: ")) << line;
  const std::string mine =
      "rank " + std::to_string(world.rank()) + ": update on cpus " + cpu_list_text(job.mine.cpus);
  EXPECT_NE(line.find(mine), std::string::npos) << line;
  const std::vector<std::string> lines = gather_texts(world.comm(), "lines", line);
  EXPECT_EQ(std::set(lines.begin(), lines.end()).size(), 1U);
}

TEST(PlaceRanks, TextsOfUnlikeLengths) {
  World& world = test_world();
  const auto text = [](int rank) { return std::string(static_cast<std::size_t>(3 * rank), 'x'); };
  const std::vector<std::string> texts = gather_texts(world.comm(), "texts", text(world.rank()));
  ASSERT_EQ(texts.size(), static_cast<std::size_t>(world.size()));
  for (int r = 0; r < world.size(); ++r) EXPECT_EQ(texts[static_cast<std::size_t>(r)], text(r));
}

TEST(PlaceRanks, GpusThatRanksSee) {
  World& world = test_world();
  const auto view = [](int rank) {
    VisibleGpus gpus{.host = "host " + std::to_string(rank)};
    if (rank == 0) gpus.variable = "0,\n1";
    if (rank == 1) gpus.variable = "";
    for (int i = 0; i < rank; ++i) gpus.ids.push_back("bus " + std::to_string(i));
    gpus.has_driver = rank != 2;
    return gpus;
  };
  const std::vector<VisibleGpus> all = gather_visible_gpus(world.comm(), view(world.rank()));
  ASSERT_EQ(all.size(), static_cast<std::size_t>(world.size()));
  for (int r = 0; r < world.size(); ++r) {
    const VisibleGpus& got = all[static_cast<std::size_t>(r)];
    EXPECT_EQ(got.host, view(r).host);
    EXPECT_EQ(got.variable, view(r).variable);
    EXPECT_EQ(got.ids, view(r).ids);
    EXPECT_EQ(got.has_driver, view(r).has_driver);
  }
}

}  // namespace
}  // namespace k25::parallel
