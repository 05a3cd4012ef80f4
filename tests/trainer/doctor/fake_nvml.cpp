// Stands for NVIDIA's management library: two GPUs with NVLink. The second has errors and a narrow
// PCIe link. K25_FAKE_NVML_GPUS overrides their number, K25_FAKE_NVML_LINKS that of the links.

#include <cstdlib>
#include <cstring>

namespace {

int number(const char* name, int fallback) {
  const char* const value = std::getenv(name);
  return value == nullptr ? fallback : std::atoi(value);
}
// Handles are 1 + index.
long index_of(void* device) { return reinterpret_cast<long>(device) - 1; }

struct Memory {
  unsigned long long total, free, used;
};
struct Utilization {
  unsigned gpu, memory;
};
struct PciInfo {
  char legacy_bus[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};

}  // namespace

extern "C" {

int nvmlInit_v2() { return number("K25_FAKE_NVML_GPUS", 2) < 0 ? 9 : 0; }
int nvmlShutdown() { return 0; }
int nvmlSystemGetDriverVersion(char* text, unsigned size) {
  std::strncpy(text, "580.65.06", size);
  return 0;
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = static_cast<unsigned>(number("K25_FAKE_NVML_GPUS", 2));
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = reinterpret_cast<void*>(static_cast<long>(index) + 1);
  return 0;
}
int nvmlDeviceGetName(void*, char* text, unsigned size) {
  std::strncpy(text, "NVIDIA H200", size);
  return 0;
}
int nvmlDeviceGetMemoryInfo(void* device, Memory* memory) {
  memory->total = 150000000000ULL;
  memory->used = index_of(device) == 0 ? 1000 : 2ULL << 30;
  memory->free = memory->total - memory->used;
  return 0;
}
int nvmlDeviceGetPciInfo_v3(void* device, PciInfo* pci) {
  std::strcpy(pci->bus_id, index_of(device) == 0 ? "00000000:1B:00.0" : "00000000:9A:00.0");
  return 0;
}
int nvmlDeviceGetCurrPcieLinkWidth(void* device, unsigned* width) {
  *width = index_of(device) == 0 ? 16 : 8;
  return 0;
}
int nvmlDeviceGetMaxPcieLinkWidth(void*, unsigned* width) {
  *width = 16;
  return 0;
}
int nvmlDeviceGetMaxPcieLinkGeneration(void*, unsigned* generation) {
  *generation = 5;
  return 0;
}
int nvmlDeviceGetNvLinkState(void*, unsigned link, int* active) {
  *active = static_cast<int>(link) < number("K25_FAKE_NVML_LINKS", 18) ? 1 : 0;
  return 0;
}
int nvmlDeviceGetTopologyCommonAncestor(void*, void*, int* level) {
  *level = 50;
  return 0;
}
int nvmlDeviceGetTotalEccErrors(void* device, int, int, unsigned long long* count) {
  *count = index_of(device) == 0 ? 0 : 3;
  return 0;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus, void** device) {
  const long index = std::strcmp(bus, "0000:1B:00.0") == 0   ? 0
                     : std::strcmp(bus, "0000:9A:00.0") == 0 ? 1
                                                             : -1;
  *device = reinterpret_cast<void*>(index + 1);
  return index < 0 ? 6 : 0;
}
int nvmlDeviceGetUtilizationRates(void*, Utilization* use) {
  *use = {87, 40};
  return 0;
}
int nvmlDeviceGetPowerUsage(void*, unsigned* milliwatts) {
  *milliwatts = 512500;
  return 0;
}
int nvmlDeviceGetTemperature(void*, int sensor, unsigned* celsius) {
  *celsius = 61;
  return sensor == 0 ? 0 : 2;
}
int nvmlDeviceGetClockInfo(void*, int clock, unsigned* mhz) {
  *mhz = clock == 1 ? 1755 : 9999;
  return 0;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void* device, unsigned long long* reasons) {
  *reasons = index_of(device) == 0 ? 0x1 : 0x44;
  return 0;
}
int nvmlDeviceGetPersistenceMode(void*, int* mode) {
  *mode = 1;
  return 0;
}

}  // extern "C"
