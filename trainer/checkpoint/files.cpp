#include "trainer/checkpoint/files.h"

#include "data/io/atomic_file.h"
#include "trainer/checkpoint/step_folder.h"

namespace k25::trainer {
namespace {

namespace fs = std::filesystem;

bool same_folder(const fs::path& a, const std::optional<fs::path>& b) {
  std::error_code error;
  return b && fs::equivalent(a, *b, error) && !error;
}

// step-000004.tmp, step-000004.removed.tmp, step-000004.replaced.tmp.
bool is_unfinished_step(const std::string& name) {
  if (name.rfind("step-", 0) != 0) return false;
  const std::size_t end = name.find_first_not_of("0123456789", 5);
  if (end == 5 || end == std::string::npos) return false;
  const std::string rest = name.substr(end);
  return rest == ".tmp" || rest == ".removed.tmp" || rest == ".replaced.tmp";
}

// data::write_file_atomically's temporary name of one of a run's files.
bool is_partial_file(const std::string& name) {
  for (const char* file : {"latest", "best", "config.yaml", "metrics.jsonl"}) {
    const std::string stem = std::string(".") + file + ".partial-";
    if (name.rfind(stem, 0) != 0 || name.size() != stem.size() + 16) continue;
    if (name.find_first_not_of("0123456789abcdef", stem.size()) == std::string::npos) return true;
  }
  return false;
}

std::vector<fs::path> entries_of(const fs::path& folder, bool (*wanted)(const std::string&)) {
  std::vector<fs::path> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (wanted(entry.path().filename().string())) found.push_back(entry.path());
  }
  return found;
}

}  // namespace

void with_file_errors(const std::function<void()>& body) {
  try {
    body();
  } catch (const fs::filesystem_error& error) {
    fail(ErrorKind::kCheckpoint, error.what());
  }
}

std::string read_pointer(const fs::path& run_dir, const std::string& pointer) {
  std::error_code error;
  if (!fs::is_regular_file(run_dir / pointer, error)) return "";
  std::string name = data::read_file(run_dir / pointer, ErrorKind::kCheckpoint);
  name.erase(name.find_last_not_of("\r\n") + 1);
  return name;
}

void write_pointer(const fs::path& run_dir, const std::string& pointer,
                   const std::string& folder_name) {
  data::write_file_atomically(run_dir / pointer, folder_name + "\n", ErrorKind::kCheckpoint);
}

void remove_whole(const fs::path& folder) {
  const fs::path gone = folder.string() + ".removed.tmp";
  fs::remove_all(gone);
  fs::rename(folder, gone);
  fs::remove_all(gone);
}

void move_into_place(const fs::path& unfinished, const fs::path& folder) {
  const fs::path replaced = folder.string() + ".replaced.tmp";
  fs::remove_all(replaced);
  if (fs::exists(folder)) fs::rename(folder, replaced);
  data::rename_durably(unfinished, folder, ErrorKind::kCheckpoint);
  fs::remove_all(replaced);
}

void retain(const fs::path& run_dir, std::int64_t newest, std::int64_t keep,
            const std::optional<fs::path>& resumed_from) {
  const std::string best = read_pointer(run_dir, "best");
  const std::vector<StepFolder> steps = step_folders(run_dir);
  std::int64_t kept = 0;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    if (step->step > newest || ++kept <= keep) continue;
    const bool wanted = step->step == newest || step->path.filename() == best ||
                        same_folder(step->path, resumed_from);
    if (!wanted) remove_whole(step->path);
  }
  remove_leftovers(run_dir);
}

void remove_leftovers(const fs::path& run_dir) {
  for (const fs::path& file : entries_of(run_dir, is_partial_file)) {
    if (fs::is_regular_file(fs::symlink_status(file))) fs::remove(file);
  }
  if (!fs::is_directory(run_dir / "checkpoints")) return;
  for (const fs::path& folder : entries_of(run_dir / "checkpoints", is_unfinished_step)) {
    fs::remove_all(folder);
  }
}

}  // namespace k25::trainer
