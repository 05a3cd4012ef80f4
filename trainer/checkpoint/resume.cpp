// Which checkpoint a run goes on from, and the lock that keeps two runs out of one directory.

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <nlohmann/json.hpp>

#include "data/io/atomic_file.h"
#include "parallel/comm/agree.h"
#include "trainer/checkpoint/checkpoint.h"
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

// The newest checkpoint that verifies; the reasons why others were passed over go to `notes`.
std::optional<fs::path> newest_valid(const fs::path& run_dir, std::vector<std::string>& notes) {
  std::vector<StepFolder> steps = step_folders(run_dir);
  std::string reasons;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    try {
      verify_checkpoint(step->path);
      return step->path;
    } catch (const Error& error) {
      notes.push_back(fmt::format("{} is passed over: {}", step->path.string(), error.what()));
      reasons += "\n  " + notes.back();
    }
  }
  if (steps.empty()) return std::nullopt;
  fail(ErrorKind::kCheckpoint, run_dir.string() + " holds only broken checkpoints; restore one, or start "
                                                  "over with --resume none:" + reasons);
}

fs::path named_path(const fs::path& path) {
  if (fs::exists(path / kManifestName)) return path;
  const std::vector<StepFolder> steps = step_folders(path);
  if (!steps.empty()) return steps.back().path;
  fail(ErrorKind::kCheckpoint, "--resume " + path.string() +
                                   ": no checkpoint there (expected a step-N folder or a run directory)");
}

fs::path named_step(const fs::path& run_dir, const std::string& text) {
  for (const StepFolder& step : step_folders(run_dir)) {
    if (text == std::to_string(step.step)) return step.path;
  }
  fail(ErrorKind::kCheckpoint, fmt::format("--resume step:{}: {} has no such checkpoint; steps there: {}",
                                           text, run_dir.string(), list_of_steps(run_dir)));
}

// Starting over in a used directory: what is there is set aside, not overwritten.
void set_aside(const fs::path& run_dir, std::vector<std::string>& notes) {
  if (step_folders(run_dir).empty()) return;
  int n = 1;
  while (fs::exists(run_dir / fmt::format("checkpoints.before-{}", n))) ++n;
  for (const char* name : {"checkpoints", "metrics.jsonl", "latest", "best"}) {
    if (!fs::exists(run_dir / name)) continue;
    data::rename_durably(run_dir / name, run_dir / fmt::format("{}.before-{}", name, n),
                         ErrorKind::kCheckpoint);
  }
  notes.push_back(fmt::format("--resume none: the earlier run's files in {} are now *.before-{}",
                              run_dir.string(), n));
}

// Going on from an earlier step abandons the later ones: they are set aside, so that the next `auto` does not
// jump back to them.
void set_later_aside(const fs::path& run_dir, const fs::path& target,
                     std::vector<std::string>& notes) {
  const std::vector<StepFolder> steps = step_folders(run_dir);
  const auto here = std::find_if(steps.begin(), steps.end(), [&](const StepFolder& step) {
    return fs::equivalent(step.path, target);
  });
  if (here == steps.end()) return;
  for (auto later = here + 1; later != steps.end(); ++later) {
    const fs::path aside = later->path.string() + ".set-aside";
    fs::remove_all(aside);
    data::rename_durably(later->path, aside, ErrorKind::kCheckpoint);
    notes.push_back(fmt::format("{} lies after the step resumed from and is now {}",
                                later->path.string(), aside.filename().string()));
  }
}

std::optional<fs::path> find_target(const fs::path& run_dir, const std::string& resume,
                                    std::vector<std::string>& notes) {
  if (resume == "none") {
    set_aside(run_dir, notes);
    return std::nullopt;
  }
  if (resume == "auto") return newest_valid(run_dir, notes);
  const fs::path target =
      resume.rfind("step:", 0) == 0 ? named_step(run_dir, resume.substr(5)) : named_path(resume);
  verify_checkpoint(target);
  set_later_aside(run_dir, target, notes);
  return target;
}

std::string now_text() {
  const std::time_t now = std::time(nullptr);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", std::localtime(&now));
  return text;
}

}  // namespace

std::vector<StepFolder> step_folders(const fs::path& run_dir) {
  std::vector<StepFolder> steps;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(run_dir / "checkpoints", error)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind("step-", 0) != 0 || name.find_first_not_of("0123456789", 5) != std::string::npos ||
        name.size() < 6 || name.size() > 23) {
      continue;
    }
    steps.push_back({std::stoll(name.substr(5)), entry.path()});
  }
  std::sort(steps.begin(), steps.end(),
            [](const StepFolder& a, const StepFolder& b) { return a.step < b.step; });
  return steps;
}

std::string step_folder_name(std::int64_t step) { return fmt::format("step-{:06}", step); }

std::optional<fs::path> find_resume_target(parallel::Communicator& comm, const fs::path& run_dir,
                                           const std::string& resume,
                                           std::vector<std::string>& notes) {
  const std::string answer = parallel::from_rank0(comm, "resume", [&] {
    std::vector<std::string> found_notes;
    const std::optional<fs::path> target = find_target(run_dir, resume, found_notes);
    return nlohmann::json{{"target", target ? target->string() : ""}, {"notes", found_notes}}.dump();
  });
  const nlohmann::json j = nlohmann::json::parse(answer);
  for (const std::string note : j.at("notes")) notes.push_back(note);
  const std::string target = j.at("target");
  if (target.empty()) return std::nullopt;
  // A target on one host's own disk is found missing here, on all ranks at once.
  parallel::collectively(comm, "resume", [&] {
    if (!fs::exists(fs::path(target) / kManifestName)) {
      fail(ErrorKind::kCheckpoint, target + " is not visible to this rank; run.dir must be on a disk that "
                                            "all hosts share");
    }
  });
  return fs::path(target);
}

RunLock::RunLock(const fs::path& run_dir) : path_(run_dir / "lock") {
  fd_ = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd_ < 0) {
    fail(ErrorKind::kCheckpoint, path_.string() + ": " + std::strerror(errno));
  }
  if (flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    const int reason = errno;
    char owner[256] = {};
    if (read(fd_, owner, sizeof owner - 1) < 0) owner[0] = '\0';
    close(fd_);
    fd_ = -1;
    if (reason == EWOULDBLOCK) {
      fail(ErrorKind::kCheckpoint, run_dir.string() + ": directory in use by " + owner +
                                       "; wait for that run, stop it, or choose another run.dir");
    }
    fail(ErrorKind::kCheckpoint, path_.string() + ": cannot be locked: " + std::strerror(reason) +
                                     " (the file system must support flock)");
  }
  char host[128] = "?";
  gethostname(host, sizeof host - 1);
  const std::string owner = fmt::format("pid {} on host {} since {}", getpid(), host, now_text());
  if (ftruncate(fd_, 0) != 0 ||
      pwrite(fd_, owner.data(), owner.size(), 0) != static_cast<ssize_t>(owner.size())) {
    const int reason = errno;
    close(fd_);
    fd_ = -1;
    fail(ErrorKind::kCheckpoint, path_.string() + ": " + std::strerror(reason));
  }
}

RunLock::~RunLock() {
  if (fd_ >= 0) close(fd_);  // the kernel lets go of the lock, as it does when a process dies
}

}  // namespace k25::trainer
