#include "trainer/cli/bench_copy.h"

#include <fmt/format.h>

#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "parallel/comm/agree.h"
#include "trainer/cli/bench_timer.h"

namespace k25::trainer {
namespace {

constexpr std::int64_t kFactor = 4;

class CopyBench {
 public:
  CopyBench(Runtime& runtime, const CopySizes& sizes, const Ceilings& ceilings)
      : runtime_(runtime), sizes_(sizes), ceilings_(ceilings), timer_(runtime) {
    parallel::collectively(runtime.comm(), "bench buffers", [&] {
      const Bytes most{sizes_.most};
      pageable_from_ = Buffer(most, pageable_);
      pageable_to_ = Buffer(most, pageable_);
      if (runtime_.device() != Device::kCuda) return;
      pinned_from_ = Buffer(most, runtime_.host_allocator());
      pinned_to_ = Buffer(most, runtime_.host_allocator());
      device_from_ = Buffer(most, runtime_.allocator());
      device_to_ = Buffer(most, runtime_.allocator());
    });
  }

  void run() {
    if (runtime_.is_root()) {
      const int ranks = runtime_.world().size();
      fmt::print(
          "{} rank{} on {}; GB/s counts what is read and written within one memory, and what "
          "crosses between two\n\n",
          ranks, ranks == 1 ? "" : "s at once", runtime_.device_name());
      fmt::print("{:<28}{:>12}{:>12}{:>12}{:>12}{:>10}\n", "copy", "bytes", "us", "GB/s",
                 "floor us", "floor/us");
    }
    host();
    if constexpr (kWithCuda) {
      if (runtime_.device() == Device::kCuda) device();
    }
  }

 private:
  using Call = std::function<void(Bytes)>;

  void each_size(const std::string& name, int passes, const std::optional<double>& ceiling,
                 const Call& call, const std::function<void()>& wait) {
    for (std::int64_t n = sizes_.least; n <= sizes_.most; n *= kFactor) {
      const double s = timer_.seconds([&] { call(Bytes{n}); }, wait);
      if (!runtime_.is_root()) continue;
      const double gigabytes = 1e-9 * static_cast<double>(n) * passes;
      std::string floor = "n/a", ratio = "n/a";
      if (ceiling) {
        floor = fmt::format("{:.4g}", gigabytes / *ceiling * 1e6);
        ratio = fmt::format("{:.3f}", gigabytes / *ceiling / s);
      }
      fmt::print("{:<28}{:>12}{:>12.4g}{:>12.4g}{:>12}{:>10}\n", name, n, s * 1e6, gigabytes / s,
                 floor, ratio);
    }
  }

  void host() {
    auto* const from = static_cast<char*>(pageable_from_.data());
    auto* const to = static_cast<char*>(pageable_to_.data());
    each_size(
        "host, 1 thread", 2, {},
        [=](Bytes n) { std::memcpy(to, from, static_cast<std::size_t>(n.n)); }, [] {});
    ThreadPool* const threads = runtime_.context().threads;
    if (threads == nullptr) return;
    const auto body = [from, to](std::int64_t begin, std::int64_t end) {
      std::memcpy(to + begin, from + begin, static_cast<std::size_t>(end - begin));
    };
    constexpr std::int64_t kGrain = std::int64_t{1} << 18;
    each_size(
        fmt::format("host, {} threads", threads->num_threads()), 2, ceilings_.triad_gb,
        [=](Bytes n) { parallel_for(threads, n.n, kGrain, body); }, [] {});
  }

  void device() {
    Context& context = runtime_.context();
    const auto wait = [&] { runtime_.mesh().wait(context); };
    const auto copy = [&](const Buffer& from, const Buffer& to) {
      return [&context, a = from.data(), b = to.data()](Bytes n) { copy_bytes(context, a, b, n); };
    };
    each_size("device", 2, ceilings_.copy_gb, copy(device_from_, device_to_), wait);
    each_size("host to device, pinned", 1, {}, copy(pinned_from_, device_to_), wait);
    each_size("device to host, pinned", 1, {}, copy(device_from_, pinned_to_), wait);
    each_size("host to device, pageable", 1, {}, copy(pageable_from_, device_to_), wait);
    each_size("device to host, pageable", 1, {}, copy(device_from_, pageable_to_), wait);

    const CudaDevice second(runtime_.world().local_rank());  // for a stream of its own
    Context other;
    second.attach(other);
    each_size(
        "both at once, pinned", 2, {},
        [&](Bytes n) {
          copy_bytes(context, pinned_from_.data(), device_to_.data(), n);
          copy_bytes(other, device_from_.data(), pinned_to_.data(), n);
        },
        [&] {
          wait();
          synchronize(other);
        });
  }

  Runtime& runtime_;
  const CopySizes& sizes_;
  const Ceilings& ceilings_;
  BenchTimer timer_;
  HostAllocator pageable_;
  Buffer pageable_from_, pageable_to_, pinned_from_, pinned_to_, device_from_, device_to_;
};

}  // namespace

void run_bench_copy(Runtime& runtime, const CopySizes& sizes, const Ceilings& ceilings) {
  CopyBench(runtime, sizes, ceilings).run();
}

}  // namespace k25::trainer
