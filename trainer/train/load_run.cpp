#include "trainer/train/load_run.h"

#include <fmt/format.h>

#include <charconv>

#include "parallel/comm/agree.h"
#include "trainer/checkpoint/files.h"
#include "trainer/checkpoint/step_folder.h"
#include "trainer/config/places.h"
#include "trainer/config/yaml_tree.h"
#include "trainer/train/adopt.h"
#include "trainer/train/changes.h"
#include "trainer/train/memory_plan.h"

namespace k25::trainer {
namespace {

namespace fs = std::filesystem;

// The pointer is written after the checkpoint it names, so a crash between the two leaves it behind
// or missing: then the newest folder counts.
fs::path latest_of(const fs::path& run) {
  const std::string name = read_pointer(run, "latest");
  if (!name.empty() && is_there(run / "checkpoints" / name)) return run / "checkpoints" / name;
  const std::vector<StepFolder> steps = step_folders(run);
  if (steps.empty()) {
    fail(ErrorKind::kCheckpoint, "'" + run.string() + "' holds no finished checkpoint yet");
  }
  return steps.back().path;
}

fs::path step_of(const fs::path& run, const std::string& text) {
  std::int64_t step = -1;
  const auto [rest, error_code] = std::from_chars(text.data(), text.data() + text.size(), step);
  if (error_code != std::errc() || rest != text.data() + text.size() || step < 0) {
    fail(ErrorKind::kUsage, "'step:" + text + "': expected step:N with a number");
  }
  const fs::path folder = run / "checkpoints" / step_folder_name(step);
  if (is_there(folder)) return folder;
  fail(ErrorKind::kCheckpoint,
       folder.string() + ": no such checkpoint; 'k25 inspect " + run.string() + "' lists them");
}

std::string config_name(const CheckpointInfo& info) {
  return info.folder.string() + "/manifest.json (config)";
}

// With another model the weights would be refused, or be taken for those of another function.
void refuse_other_model(const std::vector<std::string>& overrides) {
  for (const std::string& text : overrides) {
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos || split_path(text.substr(0, equals))[0] != "model") continue;
    fail(ErrorKind::kUsage, "--set " + text +
                                ": the weights of a run are evaluated as what they are; leave "
                                "model.* out");
  }
}

// Collective.
bool is_gone(parallel::Communicator& comm, const std::string& folder) {
  return !parallel::from_rank0(comm, "checkpoint", [&] {
            std::error_code error;
            const bool there = fs::exists(folder, error) || error;
            return std::string(there ? "" : "gone");
          }).empty();
}

}  // namespace

fs::path find_checkpoint(const fs::path& path, const std::string& said,
                         const std::string& otherwise) {
  const std::string which = said.empty() ? otherwise : said;
  if (is_there(path / "manifest.json")) {
    if (said.empty()) return path;
    fail(ErrorKind::kUsage,
         "--checkpoint " + said + ": '" + path.string() +
             "' is one checkpoint; leave --checkpoint out, or give the run directory");
  }
  if (!is_there(path / "checkpoints")) {
    if (is_there(path / "config.yaml")) {
      fail(ErrorKind::kCheckpoint, "'" + path.string() +
                                       "' has no checkpoint yet: a run saves its first after "
                                       "checkpoint.every steps, at its end, or on SIGUSR1");
    }
    fail(ErrorKind::kCheckpoint, "'" + path.string() +
                                     "' is no run directory and no checkpoint "
                                     "(neither checkpoints/ nor manifest.json is there)");
  }
  if (which == "best") {
    const std::string name = read_pointer(path, "best");
    const bool known = !name.empty() && is_there(path / "checkpoints" / name);
    return known ? path / "checkpoints" / name : latest_of(path);
  }
  if (which == "latest") return latest_of(path);
  if (which.rfind("step:", 0) == 0) return step_of(path, which.substr(5));
  fail(ErrorKind::kUsage, "'" + which + "': expected best, latest or step:N");
}

ParsedConfig stored_config(const CheckpointInfo& info) {
  // Where the corpus lies now, how many ranks there were and their batch say nothing here.
  const std::vector<std::string> settings = {
      "data.train=manifest.json", "mesh.replicate=1",     "mesh.shard=auto",    "reduce.slots=null",
      "train.batch=auto",         "train.accumulation=1", "train.micro_batch=1"};
  try {
    return parse_config(info.config, config_name(info), settings, 1);
  } catch (const Error& error) {
    fail(ErrorKind::kCheckpoint,
         fmt::format("{}: the configuration in this checkpoint is damaged, or of another k25; take "
                     "another checkpoint, or the k25 that wrote it:\n{}",
                     info.folder.string(), error.what()));
  }
}

namespace {

LoadedRun load_folder(parallel::World& world, const std::string& folder,
                      const std::vector<std::string>& overrides, std::int64_t batch) {
  LoadedRun run;
  parallel::collectively(world.comm(), "config", [&] {
    run.info = read_checkpoint_info(folder);
    stored_config(run.info);
    refuse_other_model(overrides);
    // One forward pass at a time on this world, whatever batch and mesh the run was trained with.
    std::vector<std::string> settings = {
        "mesh.replicate=1",       "mesh.shard=auto",
        "reduce.slots=null",      "train.batch=auto",
        "train.accumulation=1",   fmt::format("train.micro_batch={}", batch),
        "zero.reshard_after=step"};
    settings.insert(settings.end(), overrides.begin(), overrides.end());
    run.parsed = parse_config(run.info.config, config_name(run.info), settings, world.size());
  });
  const Config& config = run.parsed.config;
  std::vector<std::string> warnings;
  run.runtime = std::make_unique<Runtime>(world, config, warnings);
  parallel::collectively(world.comm(), "allocate", [&] {
    with_places(run.parsed, [&] {
      run.model = std::make_unique<Model>(config.model, run.runtime->shape(config), config.freeze,
                                          config.recompute);
    });
    parallel::ZeroOptions zero = resolve_zero(config, *run.model, run.runtime->memory_budget());
    run.runtime->place_update(config, zero.offload);
    run.store = std::make_unique<parallel::ZeroStore>(
        run.runtime->mesh(), run.model->units(), zero, run.runtime->context(),
        run.runtime->allocator(), &run.runtime->host_allocator());
    run.model->allocate(run.runtime->context(), run.runtime->allocator());
  });
  load_checkpoint(run.runtime->mesh(), *run.store, folder, LoadWhat::kWeightsOnly);
  return run;
}

}  // namespace

LoadedRun load_run(parallel::World& world, const std::filesystem::path& path,
                   const std::string& which, const std::vector<std::string>& overrides,
                   std::int64_t batch) {
  // A run that goes on removes checkpoints, perhaps the one that is being read: then the one that
  // replaced it counts.
  constexpr int kTries = 20;
  for (int i = 1;; ++i) {
    const std::string folder = parallel::from_rank0(
        world.comm(), "checkpoint", [&] { return find_checkpoint(path, which, "best").string(); });
    try {
      return load_folder(world, folder, overrides, batch);
    } catch (const parallel::AgreedError& error) {
      if (error.kind() != ErrorKind::kCheckpoint) throw;
      if (!is_gone(world.comm(), folder)) {
        throw parallel::AgreedError(
            error.kind(), error.what() + other_steps_text(folder, "--checkpoint"), error.origin());
      }
      const bool named = which.starts_with("step:") || fs::path(folder) == path;
      if (i < kTries && !named) continue;
      throw parallel::AgreedError(
          ErrorKind::kCheckpoint,
          folder +
              ": was removed while it was read: a run that goes on there keeps only its "
              "newest checkpoints (checkpoint.keep); try again with --checkpoint latest",
          0);
    }
  }
}

void load_initial_weights(Runtime& runtime, const Config& config, const std::string& tokenizer,
                          parallel::ZeroStore& store, std::vector<std::string>& warnings) {
  const std::string folder = parallel::from_rank0(runtime.comm(), "init_from", [&] {
    return find_checkpoint(config.train.init_from, "", "best").string();
  });
  parallel::collectively(runtime.comm(), "init_from", [&] {
    const CheckpointInfo info = read_checkpoint_info(folder);
    require_same_layout(info, config.model, warnings);
    require_same_tokenizer(info, tokenizer);
  });
  load_checkpoint(runtime.mesh(), store, folder, LoadWhat::kWeightsOnly);
}

}  // namespace k25::trainer
