// GPUs through the management library, here a fake one: what is read, and what is said of it.
#include "trainer/doctor/gpus.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "tests/data/scratch_folder.h"

namespace k25::trainer {
namespace {

class GpusTest : public ::testing::Test {
 protected:
  void TearDown() override {
    unsetenv("K25_FAKE_NVML_GPUS");
    unsetenv("K25_FAKE_NVML_LINKS");
  }
  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((folder_.path() / path).parent_path());
    std::ofstream(folder_.path() / path) << text;
  }
  std::vector<Finding> check(const std::vector<RankBinding>& ranks, bool built = true) {
    GpuView view{.host = read_gpus(K25_FAKE_NVML), .built_for_gpus = built};
    view.visible = static_cast<int>(view.host.gpus.size());
    return check_gpus({folder_.path()}, view, ranks);
  }
  static std::string said(const std::vector<Finding>& findings, Severity severity) {
    std::string text;
    for (const Finding& f : findings) {
      if (f.severity != severity) continue;
      text += f.found + "\n";
      if (severity == Severity::kOk) continue;
      EXPECT_FALSE(f.consequence.empty()) << f.found;
      EXPECT_FALSE(f.mend.empty()) << f.found;
    }
    return text;
  }

  data::ScratchFolder folder_;
  const std::vector<RankBinding> one_ = {{0, "h", {0, 1}}};
};

TEST_F(GpusTest, ReadsWhatTheLibrarySays) {
  const GpuHost host = read_gpus(K25_FAKE_NVML);
  EXPECT_TRUE(host.has_library);
  EXPECT_EQ(host.driver, "580.65.06");
  ASSERT_EQ(host.gpus.size(), 2);
  const GpuFacts& gpu = host.gpus[1];
  EXPECT_EQ(gpu.name, "NVIDIA H200");
  EXPECT_EQ(gpu.bus, "0000:9a:00.0");
  EXPECT_EQ(gpu.memory.n, 150000000000);
  EXPECT_EQ(gpu.nvlinks, 18);
  EXPECT_EQ(gpu.pcie_width, 8);
  EXPECT_EQ(gpu.pcie_max_width, 16);
  EXPECT_EQ(gpu.pcie_generation, 5);
  EXPECT_EQ(gpu.uncorrected_errors, 3);
  EXPECT_FALSE(gpu.partitioned.has_value());  // the fake library lacks that function
  ASSERT_EQ(host.pairs.size(), 1);
  EXPECT_EQ(host.pairs[0].path, GpuPath::kNvlink);
}

TEST_F(GpusTest, ASickOneIsNamed) {
  const std::string warnings = said(check(one_), Severity::kWarning);
  EXPECT_EQ(warnings,
            "1 has 3 uncorrected memory errors since it was reset\n"
            "1 has 2147483648 bytes (2.000 GiB) in use already\n"
            "1 has a PCIe link of x8 where x16 is possible\n");
}

TEST_F(GpusTest, LinksWithoutNvlinkAreSlow) {
  EXPECT_NE(said(check(one_), Severity::kOk).find("GPUs 0-1 through NVLink"), std::string::npos);
  setenv("K25_FAKE_NVML_LINKS", "0", 1);
  EXPECT_NE(
      said(check(one_), Severity::kWarning).find("GPUs 0-1 through the link between CPU sockets"),
      std::string::npos);
}

TEST_F(GpusTest, ABuildWithoutCudaDoesNotUseThem) {
  EXPECT_NE(said(check(one_, false), Severity::kWarning)
                .find("2 GPUs, but this k25 was built without CUDA"),
            std::string::npos);
}

TEST_F(GpusTest, MoreRanksThanGpus) {
  const std::vector<RankBinding> three = {{0, "h", {0}}, {1, "h", {1}}, {2, "h", {2}}};
  EXPECT_NE(said(check(three), Severity::kWarning).find("3 ranks for 2 GPUs"), std::string::npos);
  EXPECT_EQ(said(check(one_), Severity::kWarning).find("ranks for"), std::string::npos);
}

TEST_F(GpusTest, ARankFarFromItsGpu) {
  write("sys/devices/system/node/node0/cpulist", "0-1");
  write("sys/devices/system/node/node1/cpulist", "2-3");
  write("sys/bus/pci/devices/0000:1b:00.0/numa_node", "0");
  write("sys/bus/pci/devices/0000:9a:00.0/numa_node", "1");
  const std::vector<RankBinding> near = {{0, "h", {0}}, {1, "h", {2, 3}}};
  EXPECT_EQ(said(check(near), Severity::kWarning).find("its GPU"), std::string::npos);
  const std::vector<RankBinding> far = {{0, "h", {0}}, {1, "h", {1}}};
  EXPECT_NE(said(check(far), Severity::kWarning)
                .find("rank 1 runs on cpus 1, its GPU 1 is on NUMA node 1"),
            std::string::npos);
}

TEST_F(GpusTest, NoneIsANote) {
  for (const char* gpus : {"0", "-1"}) {  // none, and a driver that does not answer
    setenv("K25_FAKE_NVML_GPUS", gpus, 1);
    const std::vector<Finding> found = check(one_);
    ASSERT_EQ(found.size(), 1);
    EXPECT_EQ(found[0].severity, Severity::kNote);
  }
  EXPECT_FALSE(read_gpus("libk25-none.so.9").has_library);
}

}  // namespace
}  // namespace k25::trainer
