// Which GPU a rank takes, and every way in which CUDA_VISIBLE_DEVICES may be wrong.
#include "parallel/placement/gpu_choice.h"

#include <gtest/gtest.h>

#include "kernels/core/check.h"

namespace k25::parallel {
namespace {

using Ids = std::vector<std::string>;
using Chosen = std::vector<int>;

VisibleGpus sees(const Ids& ids, std::optional<std::string> variable = {},
                 const std::string& host = "h1") {
  return {.host = host, .variable = std::move(variable), .ids = ids};
}

std::string refusal(const std::vector<VisibleGpus>& ranks,
                    GpuDemand demand = GpuDemand::kRequired) {
  try {
    choose_gpus(ranks, demand);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    return error.what();
  }
  return "";
}

void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
  }
}

const Ids kAll = {"A", "B", "C", "D"};

TEST(GpuChoice, InOrderOnEachHost) {
  const std::vector<VisibleGpus> ranks = {sees(kAll), sees(kAll, {}, "h2"), sees(kAll),
                                          sees(kAll, {}, "h2")};
  EXPECT_EQ(choose_gpus(ranks, GpuDemand::kRequired), (Chosen{0, 0, 1, 1}));
  EXPECT_EQ(choose_gpus(ranks, GpuDemand::kIfThereAre), (Chosen{0, 0, 1, 1}));
}

TEST(GpuChoice, AVariableForEachRank) {
  EXPECT_EQ(choose_gpus({sees({"C"}, "2"), sees({"A"}, "0")}, GpuDemand::kRequired),
            (Chosen{0, 0}));
  // A pair of ranks for each of two lists.
  EXPECT_EQ(choose_gpus({sees({"A", "B"}, "0,1"), sees({"C", "D"}, "2,3"), sees({"A", "B"}, "0,1"),
                         sees({"C", "D"}, "2,3")},
                        GpuDemand::kRequired),
            (Chosen{0, 0, 1, 1}));
}

TEST(GpuChoice, SpacesAndEndMarks) {
  EXPECT_EQ(refusal({sees({"A", "B"}, " 0 , 1 ")}), "");
  EXPECT_EQ(refusal({sees({"A"}, "0,-1,0")}), "");  // what follows -1 is hidden
}

TEST(GpuChoice, TheSameGpuTwice) {
  for (const GpuDemand demand : {GpuDemand::kRequired, GpuDemand::kIfThereAre}) {
    expect_parts(refusal({sees({"A", "B"}, "0,1"), sees({}, "0, 0")}, demand),
                 {"rank 1 on host h1: CUDA_VISIBLE_DEVICES=0, 0 names GPU 0 twice", "nvidia-smi -L",
                  "train.device: cpu"});
  }
}

TEST(GpuChoice, AGpuThatIsNotThere) {
  for (const GpuDemand demand : {GpuDemand::kRequired, GpuDemand::kIfThereAre}) {
    expect_parts(refusal({sees({"A"}, "0,9")}, demand),
                 {"rank 0 on host h1: CUDA_VISIBLE_DEVICES=0,9 names 2 GPUs, and CUDA finds 1"});
    expect_parts(refusal({sees({}, "GPU-1234")}, demand),
                 {"CUDA_VISIBLE_DEVICES=GPU-1234 names 1 GPUs, and CUDA finds 0", "nvidia-smi -L"});
  }
}

TEST(GpuChoice, HiddenGpus) {
  for (const char* value : {"", "-1", "NoDevFiles"}) {
    expect_parts(refusal({sees({"A"}, "0", "h1"), sees({}, value, "h2")}),
                 {"train.device is cuda, and rank 1 on host h2 sees no GPU (CUDA_VISIBLE_DEVICES=" +
                      std::string(value) + ")",
                  "train.device: cpu"});
    EXPECT_TRUE(choose_gpus({sees({}, value), sees({}, value)}, GpuDemand::kIfThereAre).empty());
    expect_parts(refusal({sees({"A"}, "0"), sees({}, value)}, GpuDemand::kIfThereAre),
                 {"train.device is auto, and only 1 of 2 ranks have a GPU", "rank 1 on host h1"});
  }
}

TEST(GpuChoice, NoDriver) {
  VisibleGpus bare = sees({}, "0");
  bare.has_driver = false;
  EXPECT_TRUE(choose_gpus({bare}, GpuDemand::kIfThereAre).empty());
  bare.variable.reset();
  expect_parts(refusal({bare}), {"rank 0 on host h1 sees no GPU", "no NVIDIA driver"});
}

TEST(GpuChoice, MoreRanksThanGpus) {
  expect_parts(refusal({sees({"A"}), sees({"A"})}),
               {"host h1 has 1 GPU for 2 ranks", "rank 1: CUDA_VISIBLE_DEVICES not set",
                "at most one rank for each GPU"});
  expect_parts(refusal({sees(kAll), sees({"A", "B"}, "0,1", "h2"), sees({"A", "B"}, "0,1", "h2"),
                        sees({"A", "B"}, "0,1", "h2")}),
               {"host h2 has 2 GPUs for 3 ranks", "rank 3: CUDA_VISIBLE_DEVICES=0,1"});
}

TEST(GpuChoice, TwoRanksWithOneGpu) {
  expect_parts(refusal({sees({"A", "B"}, "0,1"), sees({"A"}, "0")}),
               {"ranks 0 and 1 on host h1 both take GPU A", "rank 0: CUDA_VISIBLE_DEVICES=0,1",
                "rank 1: CUDA_VISIBLE_DEVICES=0)", "a GPU of its own"});
  // By another name of the same GPU.
  expect_parts(refusal({sees({"B"}, "1"), sees({"A", "B"}, "0,1"), sees({"A", "B"}, "0,1")}),
               {"ranks 0 and 2 on host h1 both take GPU B"});
  EXPECT_EQ(refusal({sees({"A"}, "0"), sees({"A"}, "0", "h2")}), "");  // of two hosts
}

}  // namespace
}  // namespace k25::parallel
