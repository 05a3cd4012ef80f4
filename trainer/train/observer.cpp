#include "trainer/train/observer.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "trainer/train/memory_report.h"

namespace k25::trainer {
namespace {

void append_line(const std::filesystem::path& path, const std::string& line) {
  std::ofstream out(path, std::ios::app);
  out << line << "\n";
  out.flush();
  if (!out) {
    fail(ErrorKind::kCheckpoint, path.string() + ": cannot be written: " + std::strerror(errno));
  }
}

}  // namespace

Observer::Observer(Runtime& runtime, const Config& config, const ObserveRequests& requests)
    : runtime_(runtime),
      run_dir_(config.run.dir),
      memory_(requests.memory),
      stalls_(config.log.stall_seconds),
      profile_(runtime, requests.profile, run_dir_),
      control_(run_dir_, runtime.world(), requests.dumps) {
  const bool wanted = config.log.hardware && (config.log.metrics || config.log.tensorboard);
  if (wanted && runtime.is_root()) {
    hardware_.emplace(HardwareSources{.bus = runtime.device_bus()});
  }
}

HardwareValues Observer::hardware() const {
  return hardware_ ? hardware_->latest() : HardwareValues{};
}

std::vector<std::string> Observer::after_step(std::int64_t step, const Stepper& stepper,
                                              const RunLock* lock) {
  std::vector<std::string> lines;
  if (lock != nullptr) lines.push_back(watch_for_stall(step, stepper, *lock));
  lines.push_back(profile_.after_step(step));
  std::erase(lines, "");
  return lines;
}

std::string Observer::watch_for_stall(std::int64_t step, const Stepper& stepper,
                                      const RunLock& lock) {
  const std::optional<Stall> stall = stalls_.observe(step, stepper.rank_phases());
  if (!stall) return "";
  const std::string& host = runtime_.world().peer(stall->rank).host;
  lock.require_held();
  append_line(run_dir_ / "stalls.jsonl", stall_json(*stall, host));
  return stall_text(*stall, host);
}

std::vector<std::string> Observer::finish(const MemoryPlan& plan) {
  std::vector<std::string> lines = {profile_.finish()};
  const std::int64_t peak = runtime_.allocator().peak().n;
  std::int64_t extremes[] = {peak, -peak};
  runtime_.comm()
      .all_reduce_small({.name = "peak memory"},
                        {.integers = extremes, .count = 2, .op = parallel::ReduceOp::kMin})
      .wait();
  lines.push_back(
      fmt::format("memory: arenas and buffers peaked at {} to {} bytes a rank, planned "
                  "{}",
                  extremes[0], -extremes[1], plan.total().n));
  if (memory_ == MemoryReport::kWrite && runtime_.is_root()) {
    write_memory_report(runtime_, plan, run_dir_);
    lines.push_back("memory: " + (run_dir_ / "memory.json").string());
  }
  std::erase(lines, "");
  return lines;
}

}  // namespace k25::trainer
