// One host, from files that stand for the kernel's.
#include "trainer/doctor/host.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "tests/data/scratch_folder.h"

namespace k25::trainer {
namespace {

class HostTest : public ::testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((folder_.path() / path).parent_path());
    std::ofstream(folder_.path() / path) << text;
  }
  HostFiles files() const { return {folder_.path()}; }
  /// The only finding on a topic.
  static Finding of(const std::vector<Finding>& findings, const std::string& topic) {
    Finding found;
    int count = 0;
    for (const Finding& f : findings) {
      if (f.topic != topic) continue;
      found = f;
      ++count;
      EXPECT_EQ(f.severity == Severity::kOk, f.mend.empty()) << topic;
      EXPECT_EQ(f.severity == Severity::kOk, f.consequence.empty()) << topic;
    }
    EXPECT_EQ(count, 1) << topic;
    return found;
  }
  static HostLimits roomy() {
    return {.memlock = -1,
            .open_files = -1,
            .shm_free = Bytes{std::int64_t{1} << 33},
            .shm_size = Bytes{std::int64_t{1} << 33},
            .local_ranks = 2};
  }
  Finding limits(const HostLimits& given, const std::string& topic) {
    return of(check_limits(files(), given), topic);
  }

  data::ScratchFolder folder_;
};

TEST(CpuList, BothWays) {
  for (const char* text : {"0", "0-3", "0-1,4,6-9"}) EXPECT_EQ(cpu_list_text(cpu_list(text)), text);
  EXPECT_EQ(cpu_list("2,0-1"), (std::vector<int>{2, 0, 1}));
  for (const char* text : {"", "x", "3-1", "1-", "-1", "1-2x", "0-99999999"}) {
    EXPECT_TRUE(cpu_list(text).empty()) << text;
  }
}

TEST_F(HostTest, NumaNodesWithCpusAndMemory) {
  write("sys/devices/system/node/node1/cpulist", "2-3\n");
  write("sys/devices/system/node/node1/meminfo", "Node 1 MemTotal:       2048 kB\n");
  write("sys/devices/system/node/node0/cpulist", "0-1\n");
  write("sys/devices/system/node/has_cpu", "0-1\n");
  const std::vector<NumaNode> nodes = numa_nodes(files());
  ASSERT_EQ(nodes.size(), 2);
  EXPECT_EQ(nodes[0].number, 0);
  EXPECT_EQ(nodes[1].cpus, (std::vector<int>{2, 3}));
  EXPECT_EQ(nodes[1].memory.n, 2048 * 1024);
  EXPECT_EQ(of(check_numa(nodes), "numa").severity, Severity::kOk);
  EXPECT_EQ(of(check_numa({}), "numa").severity, Severity::kNote);
}

TEST_F(HostTest, SharedMemoryAgainstTheNeedOfTheRanks) {
  HostLimits given = roomy();
  EXPECT_EQ(limits(given, "/dev/shm").severity, Severity::kOk);
  given.shm_free = Bytes{2 * kShmOfRank.n};
  EXPECT_EQ(limits(given, "/dev/shm").severity, Severity::kOk);
  given.shm_free.n -= 1;  // a container's usual 64 MiB, nearly
  const Finding f = limits(given, "/dev/shm");
  EXPECT_EQ(f.severity, Severity::kWarning);
  EXPECT_NE(f.found.find("2 ranks need about 67108864 bytes"), std::string::npos) << f.found;
}

TEST_F(HostTest, MemlockMattersMostWithRdma) {
  HostLimits given = roomy();
  EXPECT_EQ(limits(given, "memlock").severity, Severity::kOk);
  given.memlock = 65536;
  EXPECT_EQ(limits(given, "memlock").severity, Severity::kNote);
  write("sys/class/infiniband/mlx5_0/node_type", "1: CA");
  EXPECT_EQ(limits(given, "memlock").severity, Severity::kWarning);
}

TEST_F(HostTest, OpenFiles) {
  HostLimits given = roomy();
  for (const auto& [files, severity] : {std::pair{std::int64_t{-1}, Severity::kOk},
                                        {std::int64_t{4096}, Severity::kOk},
                                        {std::int64_t{1024}, Severity::kNote},
                                        {std::int64_t{256}, Severity::kWarning}}) {
    given.open_files = files;
    EXPECT_EQ(limits(given, "open files").severity, severity) << files;
  }
}

TEST_F(HostTest, HugePagesThatAreOff) {
  write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  write("proc/meminfo", "MemTotal: 10 kB\nHugePages_Total:       7\n");
  const Finding on = limits(roomy(), "huge pages");
  EXPECT_EQ(on.severity, Severity::kOk);
  EXPECT_NE(on.found.find("reserved: 7"), std::string::npos) << on.found;
  write("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  EXPECT_EQ(limits(roomy(), "huge pages").severity, Severity::kNote);
}

TEST_F(HostTest, NumaBalancingIsTold) {
  EXPECT_EQ(check_kernel(files()).size(), 2);
  write("proc/sys/kernel/numa_balancing", "1\n");
  EXPECT_EQ(of(check_kernel(files()), "numa").severity, Severity::kNote);
}

TEST_F(HostTest, ARunDirectoryThatIsNotThereYet) {
  const Finding f = of(check_run_dir(folder_.path() / "a" / "b"), "run dir");
  EXPECT_NE(f.found.find(std::filesystem::canonical(folder_.path()).string() + " is on "),
            std::string::npos)
      << f.found;
  EXPECT_NE(f.found.find(" free"), std::string::npos);
  const Finding shm = of(check_run_dir("/dev/shm"), "run dir");
  EXPECT_EQ(shm.severity, Severity::kWarning) << shm.found;
}

TEST_F(HostTest, ARunDirectoryThatCannotBeOne) {
  const std::filesystem::path& folder = folder_.path();
  write("file", "x");
  std::filesystem::create_symlink(folder / "nowhere", folder / "link");
  std::filesystem::create_symlink("loop", folder / "loop");
  const std::map<std::string, std::string> told = {
      {folder / "file", "/file is a file, and no folder"},
      {folder / "file" / "below", "/file is a file, and no folder"},
      {folder / "link", "/link is a link to nothing"},
      {folder / "loop", "/loop cannot be looked at: "},
      {"/dev/null", "/dev/null is a device, pipe or socket, and no folder"},
      {"/proc/here", "/proc is on proc, which keeps no files"}};
  for (const auto& [path, text] : told) {
    const Finding f = of(check_run_dir(path), "run dir");
    EXPECT_EQ(f.severity, Severity::kWarning) << path;
    EXPECT_NE(f.found.find(text), std::string::npos) << f.found;
    EXPECT_EQ(f.consequence, "no run can begin there: k25 train ends with code 4");
    EXPECT_NE(f.mend.find("run.dir"), std::string::npos) << f.mend;
  }
}

TEST(Findings, WorstFirstWithConsequenceAndMend) {
  const std::vector<Finding> findings = {
      {.topic = "a", .found = "fine"},
      {.severity = Severity::kWarning,
       .topic = "b",
       .found = "bad",
       .consequence = "slow",
       .mend = "do it"},
  };
  const std::string text = findings_text(findings);
  EXPECT_LT(text.find("warning  b            bad"), text.find("so: slow"));
  EXPECT_LT(text.find("so: slow"), text.find("mend: do it"));
  EXPECT_LT(text.find("mend: do it"), text.find("ok       a            fine"));
  const Finding again = finding_from(to_json(findings[1]));
  EXPECT_EQ(again.severity, Severity::kWarning);
  EXPECT_EQ(again.mend, "do it");
}

}  // namespace
}  // namespace k25::trainer
