#include "trainer/train/memory_plan.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <limits>

#include "trainer/checkpoint/checkpoint.h"
#include "trainer/eval/evaluate.h"
#include "trainer/train/step.h"

namespace k25::trainer {
namespace {

using parallel::ReduceAfter;
using parallel::ReshardAfter;

std::string row(const std::string& name, Bytes bytes) {
  return fmt::format("{:<26}{:>16}", name, bytes.n);
}

std::int64_t first_number(const std::string& path) {
  std::ifstream in(path);
  std::int64_t value = 0;
  return in >> value ? value : std::numeric_limits<std::int64_t>::max();
}

std::int64_t mem_available() {
  std::ifstream in("/proc/meminfo");
  std::string key, unit;
  for (std::int64_t kib = 0; in >> key >> kib;) {
    std::getline(in, unit);
    if (key == "MemAvailable:") return kib * 1024;
  }
  return std::numeric_limits<std::int64_t>::max();
}

// The limits of this process's control group, version 2 and version 1.
std::int64_t cgroup_limit() {
  std::int64_t limit = std::min(first_number("/sys/fs/cgroup/memory.max"),
                                first_number("/sys/fs/cgroup/memory/memory.limit_in_bytes"));
  std::ifstream in("/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("0::", 0) != 0) continue;
    limit = std::min(limit, first_number("/sys/fs/cgroup" + line.substr(3) + "/memory.max"));
  }
  return limit;
}

std::int64_t address_space_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return std::numeric_limits<std::int64_t>::max();
  }
  return static_cast<std::int64_t>(limit.rlim_cur);
}

}  // namespace

Bytes MemoryPlan::total() const {
  Bytes sum;
  for (const MemoryRow& part : rows()) sum.n += part.device.n;
  return sum;
}

Bytes MemoryPlan::host() const {
  Bytes sum;
  for (const MemoryRow& part : rows()) sum.n += part.host.n;
  return sum;
}

std::vector<MemoryRow> MemoryPlan::rows() const {
  // On the CPU what is offloaded lies where everything lies.
  const auto row_of = [&](const char* name, Bytes on_device, Bytes beside) -> MemoryRow {
    if (device == Device::kCpu) return {name, {on_device.n + beside.n}, {}};
    return {name, on_device, beside};
  };
  return {row_of("masters", zero.masters, zero.host.masters),
          row_of("moments", zero.moments, zero.host.moments),
          row_of("shard gradients", zero.shard_gradients, zero.host.gradients),
          row_of("parameters' shards", zero.shard_copies, zero.host.shard_copies),
          row_of("offload buffers", zero.offload_scratch, zero.host.staging),
          row_of("replicated state", zero.replicated, {}),
          row_of("gathered parameters", zero.gathered, {}),
          row_of("unit gradients", zero.unit_gradients, {}),
          row_of("reduction scratch", zero.reduction_scratch, zero.host.reduction_scratch),
          row_of("activations", model.activations, {}),
          row_of("scratch", model.scratch, {}),
          row_of("op workspace", model.workspace, {}),
          row_of("tables", model.tables, {}),
          row_of("statistics", statistics.device, statistics.host),
          row_of("losses and batch", step.device, step.host),
          row_of("checkpoint snapshot", {}, snapshot)};
}

std::vector<std::string> MemoryPlan::lines() const {
  std::vector<std::string> lines;
  for (const MemoryRow& part : rows()) {
    if (part.device.n > 0 || part.host.n == 0) lines.push_back(row(part.name, part.device));
  }
  lines.push_back(row("total", total()));
  for (const MemoryRow& part : rows()) {
    if (part.host.n > 0) lines.push_back(row(part.name + ", host", part.host));
  }
  if (host().n > 0) lines.push_back(row("total, host", host()));
  if (zero.nvme.n > 0) lines.push_back(row("moments, disk", zero.nvme));
  return lines;
}

MemoryPlan plan_memory(const Config& config, const Model& model,
                       const parallel::ZeroOptions& options) {
  return {.zero = parallel::ZeroStore::plan(model.units(), config.mesh, options),
          .model = model.memory(),
          .statistics = optim::Statistics::plan(model.units(), config.mesh, model.shape().device),
          .step = Stepper::plan(config, model.shape()) + Evaluator::plan(model.shape()),
          .snapshot = CheckpointWriter::plan(model.units(), config.mesh),
          .device = model.shape().device};
}

parallel::ZeroOptions resolve_zero(const Config& config, const Model& model, Bytes budget) {
  const std::int64_t micro_batches = config.train.batch / config.train.micro_batch;
  parallel::ZeroOptions options{.prefetch = config.zero.prefetch,
                                .open_gradients = config.model.tie_embeddings ? 1 : 0,
                                .mode = config.reduce.mode,
                                .slots = config.reduce.slots,
                                .micro_batches_per_slot = micro_batches / config.reduce.slots,
                                .compute = config.train.precision,
                                .device = model.shape().device,
                                .offload = {.optimizer = config.offload.optimizer,
                                            .params = config.offload.params,
                                            .resident = config.offload.resident,
                                            .threads = std::max(1, config.offload.threads),
                                            .early = config.offload.early,
                                            .nvme = config.offload.nvme}};
  // Ordered by traffic, least first.
  for (const ReshardAfter reshard :
       {ReshardAfter::kStep, ReshardAfter::kMicroBatch, ReshardAfter::kForward}) {
    for (const ReduceAfter reduce : {ReduceAfter::kStep, ReduceAfter::kMicroBatch}) {
      options.reshard_after = config.zero.reshard_after.value_or(reshard);
      options.reduce_after = config.zero.reduce_after.value_or(reduce);
      if (plan_memory(config, model, options).total().n <= budget.n) return options;
    }
  }
  return options;
}

Bytes host_memory_budget(int ranks_on_host) {
  const std::int64_t shared = std::min(mem_available(), cgroup_limit());
  return {std::min(shared / std::max(ranks_on_host, 1), address_space_limit())};
}

void require_fit(const MemoryPlan& plan, Bytes budget, Bytes host_budget) {
  const bool gpu = plan.device == Device::kCuda;
  const Bytes device = plan.total(), host = plan.host();
  const bool fits = device.n <= budget.n;
  if (fits && host.n <= host_budget.n) return;
  std::string table;
  for (const std::string& line : plan.lines()) table += "\n  " + line;
  constexpr const char* kHostMemory =
      "MemAvailable, cgroup and ulimit, shared by the ranks of this host";
  if (!fits) {
    fail(
        ErrorKind::kUsage,
        fmt::format(
            "this run needs {} bytes on each rank, and {} are available ({}). Use more "
            "{}, a smaller train.micro_batch or data.sequence, zero.reshard_after: forward, {}or a "
            "smaller model.{}",
            device.n, budget.n, gpu ? "free device memory" : kHostMemory, gpu ? "GPUs" : "hosts",
            gpu ? "recompute.layers, offload.optimizer: host, " : "", table));
  }
  fail(ErrorKind::kUsage,
       fmt::format("this run needs {} bytes of host memory on each rank, and {} are available "
                   "({}). Use more hosts, fewer ranks on each, a higher offload.resident, or no "
                   "offload.{}",
                   host.n, host_budget.n, kHostMemory, table));
}

}  // namespace k25::trainer
