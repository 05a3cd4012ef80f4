#pragma once
// Where the time of chosen steps goes. The code that runs them marks nested ranges:
//
//   const ProfileRange range(context, "layer", i);
//
// A range costs one comparison while Context::profiler is null. Otherwise it is timed on the host
// and, on a GPU, between two events on context.stream, and shown as an NVTX range to profilers that
// listen (Nsight Systems). Ranges of one path ("step/forward/layer 3") form one row.
//
// Time on the device is that between the two events, waiting for collectives included; the host's
// is that of enqueuing there, and of the work itself on a CPU.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/core/context.h"
#include "kernels/core/stopwatch.h"

namespace k25 {

class ProfilerDevice;  // kernels/core/profiler_device.h

/// Used by one thread.
class Profiler {
 public:
  /// `stream`: of the device that computes; null on the CPU.
  explicit Profiler(cudaStream_t stream);
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  /// Around the steps: also tells a listening profiler (nsys --capture-range=cudaProfilerApi).
  void start();
  void stop();  ///< waits for the device

  /// `index` below 0: none.
  void begin(const char* name, std::int64_t index);
  void end();

  struct Row {
    std::string range;  ///< "step/forward/layer 3"
    std::int64_t count = 0;
    double host_seconds = 0.0;
    std::optional<double> device_seconds;  ///< absent on the CPU
  };
  /// In the order in which ranges first began. After stop().
  const std::vector<Row>& rows() const { return rows_; }

 private:
  struct Open {
    std::size_t row = 0;
    Stopwatch watch;
    std::size_t begin_event = 0;
  };
  struct Pair {
    std::size_t row = 0, begin_event = 0, end_event = 0;
  };
  void fold();

  std::unique_ptr<ProfilerDevice> device_;  ///< null on the CPU
  std::vector<Row> rows_;
  std::map<std::string, std::size_t> index_;
  std::vector<Open> open_;
  std::vector<Pair> pairs_;  ///< whose events are not read yet
};

/// A range as long as the object lives.
class ProfileRange {
 public:
  ProfileRange(const Context& context, const char* name, std::int64_t index = -1)
      : profiler_(context.profiler) {
    if (profiler_ != nullptr) profiler_->begin(name, index);
  }
  ~ProfileRange() {
    if (profiler_ != nullptr) profiler_->end();
  }
  ProfileRange(const ProfileRange&) = delete;
  ProfileRange& operator=(const ProfileRange&) = delete;

 private:
  Profiler* profiler_;
};

}  // namespace k25
