#pragma once
// What a host and a GPU are doing, as numbers that go into metrics.jsonl and TensorBoard. What
// cannot be read has no entry.
//
//   hw/rss_gib              resident memory of this process
//   hw/host_available_gib   MemAvailable of the host
//   hw/cpu_s, hw/cpu_cores  CPU time of this process; and per second since the last sample
//   hw/read_bytes, hw/write_bytes          of this process from and to disks, since it started
//   hw/net_receive_bytes, hw/net_send_bytes  of the host without the loopback, since it booted
//   hw/ib_receive_bytes, hw/ib_send_bytes    of its InfiniBand ports
//   hw/gpu_util_percent, hw/gpu_memory_gib, hw/gpu_power_w, hw/gpu_temperature_c,
//   hw/gpu_sm_clock_mhz, hw/gpu_throttle_reasons   of rank 0's GPU; the last is NVML's bit mask,
//   hw/gpu_throttled        1 when one of its bits slows the GPU: power, heat or a failing supply

#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/stopwatch.h"
#include "trainer/watch/nvml_library.h"
#include "trainer/watch/ticker.h"

namespace k25::trainer {

using HardwareValues = std::vector<std::pair<std::string, double>>;

/// From the kernel's files below `root`: "/", or a copy of it in tests.
HardwareValues read_process_and_host(const std::filesystem::path& root);

/// One GPU through the management library.
class GpuReader {
 public:
  /// `bus`: "0000:1B:00.0"; "" for none. Without the library or the GPU there are no values.
  GpuReader(const char* library, const std::string& bus);
  HardwareValues read() const;

 private:
  NvmlLibrary library_;
  nvml::Handle device_ = nullptr;
};

struct HardwareSources {
  std::filesystem::path root = "/";
  const char* library = "libnvidia-ml.so.1";
  std::string bus;  ///< of the GPU; "" for none
};

/// Samples once a second on a thread of its own.
class HardwareSampler {
 public:
  explicit HardwareSampler(const HardwareSources& sources,
                           std::chrono::milliseconds every = std::chrono::seconds(1));
  /// The last sample; empty before the first. Waits for nobody.
  HardwareValues latest() const;

 private:
  void try_sample() noexcept;
  void sample();

  HardwareSources sources_;
  std::unique_ptr<GpuReader> gpu_;  // of the sampling thread
  double cpu_seconds_ = -1.0;
  Stopwatch since_;
  mutable std::mutex mutex_;
  HardwareValues latest_;
  Ticker ticker_;  // last: its thread uses the others
};

}  // namespace k25::trainer
