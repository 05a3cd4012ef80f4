#include "trainer/watch/hardware.h"

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <fstream>
#include <optional>
#include <sstream>

namespace k25::trainer {
namespace {

namespace fs = std::filesystem;

constexpr double kGib = 0x1p30;
// Clocks that are lower because nothing is to do, or because somebody set them, are no trouble.
constexpr unsigned long long kHarmless = 0x1 | 0x2 | 0x10 | 0x100;

void add(HardwareValues& values, const char* name, std::optional<double> value) {
  if (value) values.emplace_back(name, *value);
}

// "VmRSS:   1234 kB" and "read_bytes: 1234": the number behind `key`, as it stands there.
std::optional<double> number_after(const fs::path& path, const std::string& key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(key)) continue;
    std::istringstream rest(line.substr(key.size()));
    double value = 0.0;
    if (rest >> value) return value;
  }
  return std::nullopt;
}

std::optional<double> gib_after(const fs::path& path, const std::string& key) {
  const std::optional<double> kib = number_after(path, key);
  return kib ? std::optional(*kib * 1024 / kGib) : std::nullopt;
}

// User and system time. The name in parentheses may hold spaces and parentheses.
std::optional<double> cpu_seconds(const fs::path& stat) {
  std::ifstream in(stat);
  std::string line;
  std::getline(in, line);
  const std::size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream rest(line.substr(name_end + 1));
  std::string skipped;
  for (int i = 0; i < 11; ++i) rest >> skipped;
  double user = 0.0, system = 0.0;
  if (!(rest >> user >> system)) return std::nullopt;
  return (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

void add_network(HardwareValues& values, const fs::path& dev) {
  std::ifstream in(dev);
  double received = 0.0, sent = 0.0;
  bool any = false;
  for (std::string line; std::getline(in, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    std::string name = line.substr(0, colon);
    name.erase(0, name.find_first_not_of(' '));
    std::istringstream rest(line.substr(colon + 1));
    double in_bytes = 0.0, out_bytes = 0.0;
    std::string skipped;
    if (name == "lo" || !(rest >> in_bytes)) continue;
    for (int i = 0; i < 7; ++i) rest >> skipped;
    if (!(rest >> out_bytes)) continue;
    received += in_bytes;
    sent += out_bytes;
    any = true;
  }
  if (!any) return;
  add(values, "hw/net_receive_bytes", received);
  add(values, "hw/net_send_bytes", sent);
}

std::vector<fs::path> entries(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    found.push_back(entry->path());
  }
  return found;
}

// The counters are in words of four bytes.
void add_infiniband(HardwareValues& values, const fs::path& devices) {
  double words[2] = {0.0, 0.0};
  bool any = false;
  for (const fs::path& device : entries(devices)) {
    for (const fs::path& port : entries(device / "ports")) {
      for (int i = 0; i < 2; ++i) {
        const char* const name = i == 0 ? "port_rcv_data" : "port_xmit_data";
        if (const auto count = number_after(port / "counters" / name, "")) {
          words[i] += *count;
          any = true;
        }
      }
    }
  }
  if (!any) return;
  add(values, "hw/ib_receive_bytes", 4 * words[0]);
  add(values, "hw/ib_send_bytes", 4 * words[1]);
}

}  // namespace

HardwareValues read_process_and_host(const fs::path& root) {
  HardwareValues values;
  const fs::path self = root / "proc/self";
  add(values, "hw/rss_gib", gib_after(self / "status", "VmRSS:"));
  add(values, "hw/host_available_gib", gib_after(root / "proc/meminfo", "MemAvailable:"));
  add(values, "hw/cpu_s", cpu_seconds(self / "stat"));
  add(values, "hw/read_bytes", number_after(self / "io", "read_bytes:"));
  add(values, "hw/write_bytes", number_after(self / "io", "write_bytes:"));
  add_network(values, self / "net/dev");
  add_infiniband(values, root / "sys/class/infiniband");
  return values;
}

GpuReader::GpuReader(const char* library, const std::string& bus) : library_(library) {
  if (bus.empty() || !library_.loaded() || !library_.start()) return;
  nvml::Handle device = nullptr;
  if (library_.ok<int(const char*, nvml::Handle*)>("nvmlDeviceGetHandleByPciBusId_v2", bus.c_str(),
                                                   &device)) {
    device_ = device;
  }
}

HardwareValues GpuReader::read() const {
  HardwareValues values;
  if (device_ == nullptr) return values;
  if (const auto use = library_.value<nvml::Utilization>("nvmlDeviceGetUtilizationRates", device_))
    add(values, "hw/gpu_util_percent", use->gpu);
  if (const auto memory = library_.value<nvml::Memory>("nvmlDeviceGetMemoryInfo", device_))
    add(values, "hw/gpu_memory_gib", static_cast<double>(memory->used) / kGib);
  if (const auto milliwatts = library_.value<unsigned>("nvmlDeviceGetPowerUsage", device_))
    add(values, "hw/gpu_power_w", 1e-3 * *milliwatts);
  add(values, "hw/gpu_temperature_c",
      library_.value<unsigned>("nvmlDeviceGetTemperature", device_, nvml::kCoreTemperature));
  add(values, "hw/gpu_sm_clock_mhz",
      library_.value<unsigned>("nvmlDeviceGetClockInfo", device_, nvml::kSmClock));
  if (const auto reasons = library_.value<unsigned long long>(
          "nvmlDeviceGetCurrentClocksThrottleReasons", device_)) {
    add(values, "hw/gpu_throttle_reasons", static_cast<double>(*reasons));
    add(values, "hw/gpu_throttled", (*reasons & ~kHarmless) != 0 ? 1.0 : 0.0);
  }
  return values;
}

HardwareSampler::HardwareSampler(const HardwareSources& sources, std::chrono::milliseconds every)
    : sources_(sources), ticker_(every, [this] { try_sample(); }) {}

void HardwareSampler::try_sample() noexcept {
  try {
    sample();
  } catch (const std::exception&) {
    // NOTE: without memory there is no sample; whether that ends the run is not this thread's say.
  }
}

void HardwareSampler::sample() {
  // Here, since the library may take seconds to start.
  if (gpu_ == nullptr) gpu_ = std::make_unique<GpuReader>(sources_.library, sources_.bus);
  HardwareValues values = read_process_and_host(sources_.root);
  const auto cpu = std::ranges::find(values, "hw/cpu_s", &HardwareValues::value_type::first);
  if (cpu != values.end()) {
    const double now = cpu->second;
    const double seconds = since_.seconds();
    since_ = Stopwatch();
    if (cpu_seconds_ >= 0.0 && seconds > 0.0) {
      values.emplace_back("hw/cpu_cores", (now - cpu_seconds_) / seconds);
    }
    cpu_seconds_ = now;
  }
  for (auto& value : gpu_->read()) values.push_back(std::move(value));
  const std::lock_guard lock(mutex_);
  latest_ = std::move(values);
}

HardwareValues HardwareSampler::latest() const {
  const std::lock_guard lock(mutex_);
  return latest_;
}

}  // namespace k25::trainer
