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
  std::vector<fs::path> unfinished;
  for (const fs::directory_entry& entry : fs::directory_iterator(run_dir / "checkpoints")) {
    if (entry.path().extension() == ".tmp") unfinished.push_back(entry.path());
  }
  for (const fs::path& folder : unfinished) fs::remove_all(folder);
}

}  // namespace k25::trainer
