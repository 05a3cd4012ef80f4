// Which checkpoint a run goes on from.

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "data/io/atomic_file.h"
#include "parallel/comm/agree.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/files.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/step_folder.h"

namespace k25::trainer {
namespace {

namespace fs = std::filesystem;

std::string list_of_steps(const fs::path& run_dir) {
  std::string list;
  for (const StepFolder& step : step_folders(run_dir)) {
    list += (list.empty() ? "" : ", ") + std::to_string(step.step);
  }
  return list.empty() ? "none" : list;
}

fs::path named_path(const fs::path& path) {
  require_checkpoint_folder(path);
  if (is_there(path / kManifestName)) return path;
  const std::vector<StepFolder> steps = step_folders(path);
  if (!steps.empty()) return steps.back().path;
  fail(ErrorKind::kCheckpoint,
       "--resume " + path.string() +
           ": no checkpoint there (expected a step-N folder or a run directory)");
}

fs::path named_step(const fs::path& run_dir, const std::string& text) {
  if (text.empty() || text.find_first_not_of("0123456789") != std::string::npos) {
    fail(ErrorKind::kUsage, "--resume step:" + text + ": '" + text +
                                "' is not a number; expected step:N, such as step:120");
  }
  const std::size_t digits = std::min(text.find_first_not_of('0'), text.size());
  for (const StepFolder& step : step_folders(run_dir)) {
    if (text.substr(digits) == (step.step == 0 ? "" : std::to_string(step.step))) {
      return step.path;
    }
  }
  fail(ErrorKind::kCheckpoint,
       fmt::format("--resume step:{}: {} has no such checkpoint; steps there: {}", text,
                   run_dir.string(), list_of_steps(run_dir)));
}

// The folders to try, best first.
std::vector<std::string> find_candidates(const fs::path& run_dir, const std::string& resume) {
  std::vector<std::string> found;
  if (resume == "none") return found;
  if (resume == "auto") {
    const std::vector<StepFolder> steps = step_folders(run_dir);
    for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
      found.push_back(step->path.string());
    }
    return found;
  }
  const bool step = resume.rfind("step:", 0) == 0;
  found.push_back((step ? named_step(run_dir, resume.substr(5)) : named_path(resume)).string());
  return found;
}

void rename_noted(const fs::path& from, const fs::path& to, std::vector<Renamed>& renamed) {
  fs::rename(from, to);  // a folder itself may be closed to this user
  renamed.push_back({from, to});
  data::sync_folder(from.parent_path(), ErrorKind::kCheckpoint);
}

// What an earlier run left here is set aside, not overwritten.
void set_aside(const fs::path& run_dir, const std::string& why, std::vector<Renamed>& renamed,
               std::vector<std::string>& notes) {
  if (step_folders(run_dir).empty() && !is_there(run_dir / "metrics.jsonl")) return;
  // The checkpoints last: as long as they are there, a second try does the rest.
  const auto names = {"latest",      "best",        "metrics.jsonl", "stalls.jsonl",
                      "tensorboard", "config.yaml", "plans.json",    "checkpoints"};
  const auto is_taken = [&](int n) {
    return std::any_of(names.begin(), names.end(), [&](const char* name) {
      return fs::exists(run_dir / fmt::format("{}.before-{}", name, n));
    });
  };
  int n = 1;
  while (is_taken(n)) ++n;
  for (const char* name : names) {
    if (!fs::exists(run_dir / name)) continue;
    rename_noted(run_dir / name, run_dir / fmt::format("{}.before-{}", name, n), renamed);
  }
  notes.push_back(fmt::format("{}: the earlier run's files in {} are now *.before-{}", why,
                              run_dir.string(), n));
}

// Going on from an earlier step abandons the later ones, be they named so or passed over: they are
// set aside, so that the next `auto` does not jump back to them and no save meets them.
void abandon_others(const fs::path& run_dir, const fs::path& target, const std::string& resume,
                    std::vector<Renamed>& renamed, std::vector<std::string>& notes) {
  const std::vector<StepFolder> steps = step_folders(run_dir);
  const auto here = std::find_if(steps.begin(), steps.end(), [&](const StepFolder& step) {
    return fs::equivalent(step.path, target);
  });
  if (here == steps.end()) {
    const std::string why = "--resume " + resume + " is not in this run directory";
    return set_aside(run_dir, why, renamed, notes);
  }
  if (here + 1 == steps.end() && resume == "auto") return;
  // Its pointer is on the disk, lacking only its name, before anything changes.
  write_pointer(run_dir, "latest", here->path.filename().string(), [&] {
    for (auto later = here + 1; later != steps.end(); ++later) {
      const fs::path aside = free_name_aside(later->path);
      rename_noted(later->path, aside, renamed);
      notes.push_back(fmt::format("{} lies after the step resumed from and is now {}",
                                  later->path.string(), aside.filename().string()));
    }
  });
  const std::string best = read_pointer(run_dir, "best");
  if (!best.empty() && !fs::exists(run_dir / "checkpoints" / best)) fs::remove(run_dir / "best");
}

// Collective. The notes of what rank 0 did.
std::vector<std::string> on_rank0(parallel::Communicator& comm,
                                  const std::function<std::vector<std::string>()>& body) {
  const std::string text = parallel::from_rank0(comm, "resume", [&] {
    std::vector<std::string> result;
    with_file_errors([&] { result = body(); });
    return nlohmann::json(result).dump();
  });
  return nlohmann::json::parse(text);
}

// Collective. The first folder that all ranks see and that verifies.
std::optional<fs::path> first_valid(parallel::Communicator& comm, const fs::path& run_dir,
                                    const std::vector<std::string>& folders,
                                    std::vector<std::string>& notes) {
  std::string reasons;
  bool readable = true, closed = false;
  for (const std::string& folder : folders) {
    try {
      readable = false;
      parallel::collectively(comm, "resume", [&] { require_readable(folder); });
      readable = true;
      verify_together(comm, folder);
      return folder;
    } catch (const parallel::AgreedError& error) {
      if (error.kind() != ErrorKind::kCheckpoint) throw;
      closed = closed || !readable;
      notes.push_back(fmt::format("{} is passed over: {}", folder, error.what()));
      reasons += "\n  " + notes.back();
    }
  }
  if (folders.empty()) return std::nullopt;
  const std::string why =
      closed ? " holds checkpoints that this user may not read, and no other that verifies; give "
               "the user access:"
             : " holds only broken checkpoints; restore one, or start over with --resume none:";
  throw parallel::AgreedError(ErrorKind::kCheckpoint, run_dir.string() + why + reasons, 0);
}

}  // namespace

std::vector<StepFolder> step_folders(const fs::path& run_dir) {
  std::vector<StepFolder> steps;
  const fs::path checkpoints = run_dir / "checkpoints";
  if (is_there(checkpoints) && !is_folder(checkpoints)) {
    fail(ErrorKind::kCheckpoint, checkpoints.string() +
                                     ": is no folder, and a run keeps its checkpoints there; "
                                     "remove it, or name another run");
  }
  std::error_code error;
  fs::directory_iterator entries(checkpoints, error);
  if (error == std::errc::no_such_file_or_directory) return steps;
  if (error) fail(ErrorKind::kCheckpoint, checkpoints.string() + ": " + error.message());
  for (const fs::directory_entry& entry : entries) {
    const std::string name = entry.path().filename().string();
    if (!is_step_name(name)) continue;
    steps.push_back({std::stoll(name.substr(5)), entry.path()});
  }
  std::sort(steps.begin(), steps.end(),
            [](const StepFolder& a, const StepFolder& b) { return a.step < b.step; });
  return steps;
}

bool is_step_name(const std::string& name) {
  return name.starts_with("step-") && name.size() > 5 && name.size() <= 23 &&
         name.find_first_not_of("0123456789", 5) == std::string::npos;
}

std::string other_steps_text(const fs::path& folder, const std::string& option) {
  const fs::path run_dir = folder.parent_path().parent_path();
  if (folder.parent_path().filename() != "checkpoints") return "";
  std::string list;
  try {
    for (const StepFolder& step : step_folders(run_dir)) {
      if (step.path.filename() == folder.filename()) continue;
      list += fmt::format("{}step:{}", list.empty() ? "" : ", ", step.step);
    }
  } catch (const std::exception&) {
    return "";  // there is an error already
  }
  if (list.empty()) return fmt::format("; '{}' has no other checkpoint", run_dir.string());
  return fmt::format("; other checkpoints of '{0}': {1} {2} (k25 inspect {0} says which are whole)",
                     run_dir.string(), option, list);
}

std::string step_folder_name(std::int64_t step) { return fmt::format("step-{:06}", step); }

bool is_step_of(const fs::path& run_dir, const fs::path& folder) {
  const std::vector<StepFolder> steps = step_folders(run_dir);
  return std::any_of(steps.begin(), steps.end(),
                     [&](const StepFolder& step) { return fs::equivalent(step.path, folder); });
}

std::optional<fs::path> find_resume_target(parallel::Communicator& comm, const fs::path& run_dir,
                                           const std::string& resume,
                                           std::vector<std::string>& notes) {
  const std::vector<std::string> folders =
      on_rank0(comm, [&] { return find_candidates(run_dir, resume); });
  if (resume == "none") return std::nullopt;
  if (resume == "auto") return first_valid(comm, run_dir, folders, notes);
  try {
    parallel::collectively(comm, "resume", [&] { require_readable(folders.front()); });
    verify_together(comm, folders.front());
  } catch (const parallel::AgreedError& error) {
    if (error.kind() != ErrorKind::kCheckpoint || !resume.starts_with("step:")) throw;
    throw parallel::AgreedError(
        error.kind(), error.what() + other_steps_text(folders.front(), "--resume"), error.origin());
  }
  return folders.front();
}

std::vector<Renamed> set_aside_for(const fs::path& run_dir, const std::string& resume,
                                   const std::optional<fs::path>& target,
                                   std::vector<std::string>& notes) {
  std::vector<Renamed> renamed;
  try {
    with_file_errors([&] {
      if (target) return abandon_others(run_dir, *target, resume, renamed, notes);
      const bool told = resume == "none";
      set_aside(run_dir, told ? "--resume none" : "there is no checkpoint to go on from", renamed,
                notes);
    });
  } catch (const Error&) {
    put_back(renamed);
    throw;
  }
  return renamed;
}

void point_latest_at(const fs::path& run_dir, const fs::path& target) {
  const std::string name = target.filename().string();
  if (read_pointer(run_dir, "latest") != name) write_pointer(run_dir, "latest", name);
}

void put_back(const std::vector<Renamed>& renamed) noexcept {
  for (auto r = renamed.rbegin(); r != renamed.rend(); ++r) {
    std::error_code ignored;
    fs::rename(r->to, r->from, ignored);
  }
}

}  // namespace k25::trainer
