#include "trainer/train/load_run.h"

#include <fmt/format.h>

#include "data/io/atomic_file.h"
#include "parallel/comm/agree.h"
#include "trainer/train/memory_plan.h"

namespace k25::trainer {
namespace {

std::filesystem::path pointed_to(const std::filesystem::path& run, const std::string& pointer) {
  std::string name = data::read_file(run / pointer, ErrorKind::kCheckpoint);
  while (!name.empty() && (name.back() == '\n' || name.back() == '\r')) name.pop_back();
  return run / "checkpoints" / name;
}

}  // namespace

std::filesystem::path find_checkpoint(const std::filesystem::path& path, const std::string& which) {
  namespace fs = std::filesystem;
  if (fs::exists(path / "manifest.json")) return path;
  if (!fs::is_directory(path / "checkpoints")) {
    fail(ErrorKind::kCheckpoint, "'" + path.string() + "' is no run directory and no checkpoint "
                                 "(neither checkpoints/ nor manifest.json is there)");
  }
  if (which == "best") {
    const bool known = fs::exists(path / "best") && fs::exists(pointed_to(path, "best"));
    return pointed_to(path, known ? "best" : "latest");
  }
  if (which == "latest") return pointed_to(path, "latest");
  if (which.rfind("step:", 0) == 0) {
    std::int64_t step = -1;
    try {
      step = std::stoll(which.substr(5));
    } catch (const std::exception&) {
      fail(ErrorKind::kUsage, "'" + which + "': expected step:N with a number");
    }
    const fs::path folder = path / "checkpoints" / fmt::format("step-{:06}", step);
    if (fs::exists(folder)) return folder;
    fail(ErrorKind::kCheckpoint, folder.string() + ": no such checkpoint; 'k25 inspect " +
                                     path.string() + "' lists them");
  }
  fail(ErrorKind::kUsage, "'" + which + "': expected best, latest or step:N");
}

LoadedRun load_run(parallel::World& world, const std::filesystem::path& path,
                   const std::string& which, const std::vector<std::string>& overrides,
                   std::int64_t batch) {
  LoadedRun run;
  const std::string folder = parallel::from_rank0(
      world.comm(), "checkpoint", [&] { return find_checkpoint(path, which).string(); });
  parallel::collectively(world.comm(), "config", [&] {
    run.info = read_checkpoint_info(folder);
    // One forward pass at a time on this world, whatever batch and mesh the run was trained with.
    std::vector<std::string> settings = {"mesh.replicate=1",
                                         "mesh.shard=auto",
                                         "reduce.slots=null",
                                         "train.batch=auto",
                                         "train.accumulation=1",
                                         fmt::format("train.micro_batch={}", batch),
                                         "zero.reshard_after=step"};
    settings.insert(settings.end(), overrides.begin(), overrides.end());
    run.parsed = parse_config(run.info.config, folder + "/manifest.json (config)", settings,
                              world.size());
  });
  const Config& config = run.parsed.config;
  std::vector<std::string> warnings;
  run.runtime = std::make_unique<Runtime>(world, config, warnings);
  parallel::collectively(world.comm(), "allocate", [&] {
    const RunShape shape{batch, config.data.sequence, config.train.precision};
    run.model = std::make_unique<Model>(config.model, shape, config.freeze);
    const parallel::ZeroOptions zero =
        resolve_zero(config, *run.model, host_memory_budget(world.local_size()));
    run.store = std::make_unique<parallel::ZeroStore>(run.runtime->mesh(), run.model->units(), zero,
                                                      run.runtime->context(),
                                                      run.runtime->allocator());
    run.model->allocate(run.runtime->allocator());
  });
  load_checkpoint(run.runtime->mesh(), *run.store, folder, LoadWhat::kWeightsOnly);
  return run;
}

}  // namespace k25::trainer
