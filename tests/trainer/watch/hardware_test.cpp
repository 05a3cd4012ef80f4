// The numbers of a process, a host and a GPU, from files and a library that stand for the system's.
#include "trainer/watch/hardware.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <thread>

#include "tests/data/scratch_folder.h"

namespace k25::trainer {
namespace {

using Values = std::map<std::string, double>;

Values as_map(const HardwareValues& values) {
  Values map(values.begin(), values.end());
  EXPECT_EQ(map.size(), values.size()) << "a name twice";
  return map;
}

class HardwareTest : public ::testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((folder_.path() / path).parent_path());
    std::ofstream(folder_.path() / path) << text;
  }
  void write_all() {
    write("proc/self/status", "Name:\tk25\nVmHWM:\t 9999999 kB\nVmRSS:\t 3145728 kB\n");
    write("proc/meminfo", "MemTotal: 8388608 kB\nMemFree: 5 kB\nMemAvailable:    1048576 kB\n");
    write("proc/self/stat", "17 (k25 (a) b) S 1 2 3 4 5 6 7 8 9 10 1234 766 1 1\n");
    write("proc/self/io", "rchar: 1\nwchar: 2\nread_bytes: 4096\nwrite_bytes: 8192\n");
    write("proc/self/net/dev",
          "Inter-|   Receive  |  Transmit\n face |bytes packets|bytes packets\n"
          "    lo: 1000 1 0 0 0 0 0 0 1000 1 0 0 0 0 0 0\n"
          "  eth0: 10 1 0 0 0 0 0 0 70 1 0 0 0 0 0 0\n"
          "  eth1:20 1 0 0 0 0 0 0 30 1 0 0 0 0 0 0\n");
    write("sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data", "100\n");
    write("sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data", "200\n");
    write("sys/class/infiniband/mlx5_1/ports/1/counters/port_rcv_data", "11\n");
    write("sys/class/infiniband/mlx5_1/ports/1/counters/port_xmit_data", "22\n");
  }
  data::ScratchFolder folder_;
};

TEST_F(HardwareTest, EveryNumberOfTheKernel) {
  write_all();
  const double tick = 1.0 / static_cast<double>(sysconf(_SC_CLK_TCK));
  const Values expected = {
      {"hw/rss_gib", 3.0},          {"hw/host_available_gib", 1.0}, {"hw/cpu_s", 2000 * tick},
      {"hw/read_bytes", 4096.0},    {"hw/write_bytes", 8192.0},     {"hw/net_receive_bytes", 30.0},
      {"hw/net_send_bytes", 100.0}, {"hw/ib_receive_bytes", 444.0}, {"hw/ib_send_bytes", 888.0}};
  EXPECT_EQ(as_map(read_process_and_host(folder_.path())), expected);
}

TEST_F(HardwareTest, WhatIsNotThereOrNoNumberHasNoEntry) {
  EXPECT_TRUE(read_process_and_host(folder_.path()).empty());
  write("proc/self/status", "VmRSS:\n");
  write("proc/self/stat", "17 (k25) S 1 2\n");
  write("proc/self/io", "read_bytes: none\nwrite_bytes: 7\n");
  write("proc/self/net/dev", "    lo: 1000 1 0 0 0 0 0 0 1000 1 0\n  eth0: 5 6\n");
  EXPECT_EQ(as_map(read_process_and_host(folder_.path())), (Values{{"hw/write_bytes", 7.0}}));
}

TEST_F(HardwareTest, ThisProcess) {
  Values values = as_map(read_process_and_host("/"));
  EXPECT_GT(values["hw/rss_gib"], 0.0);
  EXPECT_GT(values["hw/host_available_gib"], 0.0);
  EXPECT_TRUE(values.contains("hw/cpu_s"));
}

TEST_F(HardwareTest, EveryNumberOfAGpu) {
  const Values first = {{"hw/gpu_util_percent", 87.0},   {"hw/gpu_memory_gib", 1000.0 / 0x1p30},
                        {"hw/gpu_power_w", 512.5},       {"hw/gpu_temperature_c", 61.0},
                        {"hw/gpu_sm_clock_mhz", 1755.0}, {"hw/gpu_throttle_reasons", 1.0},
                        {"hw/gpu_throttled", 0.0}};
  EXPECT_EQ(as_map(GpuReader(K25_FAKE_NVML, "0000:1B:00.0").read()), first);
  Values second = as_map(GpuReader(K25_FAKE_NVML, "0000:9A:00.0").read());
  EXPECT_EQ(second["hw/gpu_memory_gib"], 2.0);
  EXPECT_EQ(second["hw/gpu_throttle_reasons"], 0x44);  // heat and the power cap
  EXPECT_EQ(second["hw/gpu_throttled"], 1.0);
}

TEST_F(HardwareTest, NoLibraryNoGpuOrNoneOfThatNameGiveNothing) {
  EXPECT_TRUE(GpuReader("libk25-none.so.9", "0000:1B:00.0").read().empty());
  EXPECT_TRUE(GpuReader(K25_FAKE_NVML, "").read().empty());
  EXPECT_TRUE(GpuReader(K25_FAKE_NVML, "0000:77:00.0").read().empty());
  setenv("K25_FAKE_NVML_GPUS", "-1", 1);  // the driver does not answer
  EXPECT_TRUE(GpuReader(K25_FAKE_NVML, "0000:1B:00.0").read().empty());
  unsetenv("K25_FAKE_NVML_GPUS");
}

TEST_F(HardwareTest, TheSamplerHasTheLastSampleOfBoth) {
  write_all();
  const HardwareSampler sampler(
      {.root = folder_.path(), .library = K25_FAKE_NVML, .bus = "0000:1B:00.0"},
      std::chrono::milliseconds(1));
  Values values;
  while (!values.contains("hw/cpu_cores")) {  // from the second sample on
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    values = as_map(sampler.latest());
  }
  EXPECT_EQ(values["hw/cpu_cores"], 0.0);  // the file stands still
  EXPECT_EQ(values["hw/rss_gib"], 3.0);
  EXPECT_EQ(values["hw/gpu_power_w"], 512.5);
  write("proc/self/status", "VmRSS: 1048576 kB\n");
  while (as_map(sampler.latest())["hw/rss_gib"] != 1.0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace
}  // namespace k25::trainer
