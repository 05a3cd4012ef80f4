#pragma once
// NVIDIA's management library, loaded when it is there: builds without CUDA see GPUs too.

#include <dlfcn.h>

#include <memory>
#include <optional>
#include <type_traits>

namespace k25::trainer {

/// Its C interface, as far as it is used here.
namespace nvml {
using Handle = void*;
struct Memory {
  unsigned long long total, free, used;
};
struct PciInfo {
  char legacy_bus[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};
struct Utilization {
  unsigned gpu, memory;  ///< percent
};
inline constexpr int kUncorrected = 1, kSinceBoot = 0;
inline constexpr int kCoreTemperature = 0, kSmClock = 1;
}  // namespace nvml

/// The library as long as the object lives.
class NvmlLibrary {
 public:
  /// `library`: "libnvidia-ml.so.1".
  explicit NvmlLibrary(const char* library)
      : handle_(dlopen(library, RTLD_NOW | RTLD_LOCAL), close) {}
  ~NvmlLibrary() {
    if (ready_) call<int()>("nvmlShutdown");
  }
  NvmlLibrary(const NvmlLibrary&) = delete;
  NvmlLibrary& operator=(const NvmlLibrary&) = delete;

  bool loaded() const { return handle_ != nullptr; }
  bool start() { return ready_ = ok<int()>("nvmlInit_v2"); }

  /// Whether the function exists and succeeds.
  template <class Signature, class... Arguments>
  bool ok(const char* name, Arguments... arguments) const {
    return call<Signature>(name, arguments...) == 0;
  }
  template <class Value, class... Arguments>
  std::optional<Value> value(const char* name, nvml::Handle device, Arguments... arguments) const {
    Value value{};
    if (!ok<int(nvml::Handle, std::type_identity_t<Arguments>..., Value*)>(name, device,
                                                                           arguments..., &value)) {
      return std::nullopt;
    }
    return value;
  }

 private:
  static void close(void* handle) {
    if (handle != nullptr) dlclose(handle);
  }
  template <class Signature, class... Arguments>
  int call(const char* name, Arguments... arguments) const {
    if (handle_ == nullptr) return -1;
    auto* const function = reinterpret_cast<Signature*>(dlsym(handle_.get(), name));
    return function == nullptr ? -1 : function(arguments...);
  }

  std::unique_ptr<void, void (*)(void*)> handle_;
  bool ready_ = false;
};

}  // namespace k25::trainer
