#include "trainer/cli/bench_comm.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "parallel/comm/agree.h"
#include "trainer/cli/bench_timer.h"

namespace k25::trainer {
namespace {

using parallel::Communicator;

constexpr std::int64_t kMostSmall = 65536;  // of all_reduce_small, which is for few numbers
constexpr std::int64_t kFactor = 4;

/// What a line says beside its time.
struct Traffic {
  std::int64_t bytes = 0;         ///< of the whole buffer
  double wire = 0.0;              ///< bytes that a rank moves, by the convention
  std::optional<double> ceiling;  ///< bytes a second
};

class CommBench {
 public:
  CommBench(Runtime& runtime, const CommSizes& sizes, const Ceilings& ceilings)
      : runtime_(runtime),
        comm_(runtime.mesh().data_comm()),
        sizes_(sizes),
        ceilings_(ceilings),
        timer_(runtime) {
    parallel::collectively(runtime.comm(), "bench buffers", [&] {
      const Bytes bytes{std::max(sizes_.most, 4 * ranks())};
      for (Buffer* buffer : {&first_, &second_, &third_}) {
        *buffer = Buffer(bytes, runtime_.allocator());
      }
    });
  }

  void run() {
    if (runtime_.is_root()) {
      fmt::print("{} rank{} on {}; GB/s a rank is the bus bandwidth of nccl-tests\n\n", ranks(),
                 ranks() == 1 ? "" : "s", runtime_.device_name());
      fmt::print("{:<18}{:>12}{:>12}{:>12}{:>12}{:>10}\n", "op", "bytes", "us", "GB/s", "floor us",
                 "floor/us");
    }
    for (const std::string& op : sizes_.ops.empty() ? bench_comm_ops() : sizes_.ops) {
      if (op == "barrier") {
        barrier();
        continue;
      }
      const bool is_small = op == "all_reduce_small";
      const std::int64_t most = is_small ? std::min(sizes_.most, kMostSmall) : sizes_.most;
      std::int64_t bytes = std::min(sizes_.least, most);
      for (; bytes <= most; bytes *= kFactor) {
        if (op == "all_gather") all_gather(bytes);
        if (op == "all_to_all") all_to_all(bytes);
        if (op == "reduce_scatter") reduce_scatter(bytes);
        if (op == "broadcast") broadcast(bytes);
        if (is_small) all_reduce_small(bytes);
      }
    }
  }

 private:
  std::int64_t ranks() const { return comm_.size(); }
  parallel::Queue queue() const {
    return runtime_.device() == Device::kCuda
               ? parallel::Queue::on_stream(runtime_.context().stream)
               : parallel::Queue::host();
  }
  /// Of one rank: whole floats.
  Bytes share(std::int64_t bytes) const {
    return Bytes{std::max<std::int64_t>(bytes / ranks() / 4, 1) * 4};
  }
  std::optional<double> rate(const std::optional<double>& gigabytes) const {
    if (!gigabytes) return std::nullopt;
    return *gigabytes * 1e9;
  }
  /// All but a rank's own share.
  double from_others(std::int64_t bytes) const {
    return static_cast<double>(bytes) * static_cast<double>(ranks() - 1) /
           static_cast<double>(ranks());
  }

  void report(const char* op, const Traffic& traffic, const std::function<void()>& call) {
    const double s = timer_.seconds(call, [this] { runtime_.mesh().wait(runtime_.context()); });
    if (!runtime_.is_root()) return;
    const std::string bytes = traffic.bytes > 0 ? fmt::format("{}", traffic.bytes) : "-";
    const std::string gb =
        traffic.wire > 0 ? fmt::format("{:.4g}", traffic.wire / s * 1e-9) : "n/a";
    std::string floor = "n/a", ratio = "n/a";
    if (traffic.ceiling && traffic.wire > 0) {
      const double least = traffic.wire / *traffic.ceiling;
      floor = fmt::format("{:.4g}", least * 1e6);
      ratio = fmt::format("{:.3f}", least / s);
    }
    fmt::print("{:<18}{:>12}{:>12.4g}{:>12}{:>12}{:>10}\n", op, bytes, s * 1e6, gb, floor, ratio);
  }

  void all_gather(std::int64_t bytes) {
    const Bytes own = share(bytes);
    const std::int64_t all = own.n * ranks();
    report("all_gather", {all, from_others(all), rate(ceilings_.all_gather_gb)}, [&] {
      comm_
          .all_gather({.name = "bench", .queue = queue()},
                      {.buffer = first_.data(), .per_rank = own})
          .wait_on(queue());
    });
  }

  void all_to_all(std::int64_t bytes) {
    const Bytes own = share(bytes);
    const std::int64_t all = own.n * ranks();
    report("all_to_all", {all, from_others(all), rate(ceilings_.all_gather_gb)}, [&] {
      comm_
          .all_to_all({.name = "bench", .queue = queue()},
                      {.send = first_.data(), .recv = second_.data(), .per_rank = own})
          .wait_on(queue());
    });
  }

  void reduce_scatter(std::int64_t bytes) {
    const Bytes own = share(bytes);
    const std::int64_t all = own.n * ranks();
    report("reduce_scatter", {all, from_others(all), rate(ceilings_.reduce_scatter_gb)}, [&] {
      comm_
          .reduce_scatter({.name = "bench", .queue = queue()},
                          {.input = static_cast<const float*>(first_.data()),
                           .accumulator = static_cast<float*>(third_.data()),
                           .per_slice = Elems{own.n / 4},
                           .scratch = static_cast<float*>(second_.data()),
                           .mode = parallel::ReduceMode::kOrdered})
          .wait_on(queue());
    });
  }

  void broadcast(std::int64_t bytes) {
    const double wire = ranks() > 1 ? static_cast<double>(bytes) : 0.0;
    report("broadcast", {bytes, wire, rate(ceilings_.all_gather_gb)}, [&] {
      comm_
          .broadcast({.name = "bench", .queue = queue()},
                     {.data = first_.data(), .size = Bytes{bytes}})
          .wait_on(queue());
    });
  }

  /// Numbers in host memory, on either device.
  void all_reduce_small(std::int64_t bytes) {
    std::vector<double> values(static_cast<std::size_t>(std::max<std::int64_t>(bytes / 8, 1)));
    const auto count = static_cast<std::int64_t>(values.size());
    report("all_reduce_small", {8 * count, 2 * from_others(8 * count), {}}, [&] {
      comm_.all_reduce_small({.name = "bench"}, {.values = values.data(), .count = count}).wait();
    });
  }

  void barrier() {
    report("barrier", {}, [&] { comm_.barrier("bench", comm_.default_deadline()); });
  }

  Runtime& runtime_;
  Communicator& comm_;
  const CommSizes& sizes_;
  const Ceilings& ceilings_;
  BenchTimer timer_;
  Buffer first_, second_, third_;
};

}  // namespace

std::vector<std::string> bench_comm_ops() {
  return {"all_gather", "all_to_all", "reduce_scatter", "all_reduce_small", "broadcast", "barrier"};
}

void run_bench_comm(Runtime& runtime, const CommSizes& sizes, const Ceilings& ceilings) {
  CommBench(runtime, sizes, ceilings).run();
}

}  // namespace k25::trainer
