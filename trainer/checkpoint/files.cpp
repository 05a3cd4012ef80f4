#include "trainer/checkpoint/files.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "data/io/atomic_file.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/step_folder.h"

namespace k25::trainer {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRemoved = ".removed";

bool same_folder(const fs::path& a, const std::optional<fs::path>& b) {
  std::error_code error;
  return b && fs::equivalent(a, *b, error) && !error;
}

// step-000004.tmp, step-000004.removed.tmp, step-000004.removed-1.tmp; older k25 wrote
// replaced.tmp.
bool is_unfinished_step(const std::string& name) {
  if (name.rfind("step-", 0) != 0) return false;
  const std::size_t end = name.find_first_not_of("0123456789", 5);
  if (end == 5 || end == std::string::npos) return false;
  const std::string rest = name.substr(end);
  if (rest == ".tmp" || rest == ".removed.tmp" || rest == ".replaced.tmp") return true;
  if (!rest.starts_with(kRemoved + std::string("-")) || !rest.ends_with(".tmp")) return false;
  const std::string number = rest.substr(9, rest.size() - 9 - 4);
  return !number.empty() && number.find_first_not_of("0123456789") == std::string::npos;
}

// Out of the way under a name of its own, then gone, as far as that may be.
void discard(const fs::path& unwanted, const fs::path& folder) {
  std::error_code ignored;
  fs::path gone = folder.string() + kRemoved + ".tmp";
  fs::remove_all(gone, ignored);
  for (int n = 1; fs::exists(fs::symlink_status(gone)); ++n) {
    gone = folder.string() + kRemoved + "-" + std::to_string(n) + ".tmp";
  }
  fs::rename(unwanted, gone);
  fs::remove_all(gone, ignored);
}

std::string not_removed(const fs::path& path, const std::string& reason) {
  return path.string() + ": is no longer needed and cannot be removed: " + reason +
         "; remove it by hand";
}

// data::write_file_atomically's temporary name of one of a run's files.
bool is_partial_file(const std::string& name) {
  for (const char* file : {"latest", "best", "config.yaml", "plans.json", "metrics.jsonl"}) {
    const std::string stem = std::string(".") + file + ".partial-";
    if (name.rfind(stem, 0) != 0 || name.size() != stem.size() + 16) continue;
    if (name.find_first_not_of("0123456789abcdef", stem.size()) == std::string::npos) return true;
  }
  return false;
}

// A checkpoint that was renamed, and so is no old one of its name; "" for all else.
std::string other_step_in(const fs::path& folder) {
  try {
    require_own_step(folder);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

const char* type_name(fs::file_type type) {
  switch (type) {
    case fs::file_type::regular:
      return "file";
    case fs::file_type::directory:
      return "directory";
    case fs::file_type::fifo:
      return "pipe";
    default:
      return "device or socket";
  }
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
    throw as_error(error);
  }
}

fs::file_type type_at(const fs::path& path) {
  std::error_code error;
  const fs::file_type type = fs::status(path, error).type();
  if (type == fs::file_type::none) {
    fail(ErrorKind::kCheckpoint,
         path.string() + ": k25 may not look there: " + error.message() +
             "; every folder of the path must be open to this user (chmod +x)");
  }
  return type;
}

void require_checkpoint_folder(const fs::path& folder) {
  const fs::file_type type = type_at(folder);
  if (type == fs::file_type::directory || type == fs::file_type::not_found) return;
  fail(ErrorKind::kCheckpoint, folder.string() + ": is no folder but a " + type_name(type) +
                                   ", so no checkpoint; remove it, and name another checkpoint");
}

void require_readable(const fs::path& folder) {
  require_checkpoint_folder(folder);
  const auto check = [](const fs::path& path, int mode) {
    if (::access(path.c_str(), mode) == 0 || errno != EACCES) return;
    fail(ErrorKind::kCheckpoint,
         path.string() + ": k25 may not read it: " + std::strerror(EACCES) +
             "; the checkpoint may be whole: let this user read its files (chmod, chown)");
  };
  check(folder, R_OK | X_OK);
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    check(entry->path(), R_OK);
  }
}

bool is_there(const fs::path& path) { return type_at(path) != fs::file_type::not_found; }
bool is_folder(const fs::path& path) { return type_at(path) == fs::file_type::directory; }

std::string json_reason(const std::exception& error) {
  std::string reason = error.what();
  reason = reason.substr(std::min(reason.size(), reason.find("] ") + 2));
  for (char& c : reason) {
    if (static_cast<unsigned char>(c) < ' ' || static_cast<unsigned char>(c) > '~') c = '?';
  }
  return reason;
}

void require_regular_files(const fs::path& run_dir) {
  for (const char* name :
       {"lock", "config.yaml", "plans.json", "metrics.jsonl", "latest", "best"}) {
    const fs::path path = run_dir / name;
    const fs::file_type type = type_at(path);
    if (type == fs::file_type::not_found || type == fs::file_type::regular) continue;
    fail(ErrorKind::kCheckpoint,
         path.string() + ": is no regular file, but a " + type_name(type) +
             ", and a run keeps a file there; remove it, or choose another run.dir");
  }
  for (const char* name : {"checkpoints", "tensorboard"}) {
    const fs::path path = run_dir / name;
    const fs::file_type type = type_at(path);
    if (type == fs::file_type::not_found || type == fs::file_type::directory) continue;
    fail(ErrorKind::kCheckpoint,
         path.string() + ": is no folder, but a " + type_name(type) +
             ", and a run keeps a folder there; remove it, or choose another run.dir");
  }
}

std::string read_pointer(const fs::path& run_dir, const std::string& pointer) {
  if (type_at(run_dir / pointer) != fs::file_type::regular) return "";
  std::string name = data::read_file(run_dir / pointer, ErrorKind::kCheckpoint);
  name.erase(name.find_last_not_of("\r\n") + 1);
  return name;
}

void write_pointer(const fs::path& run_dir, const std::string& pointer,
                   const std::string& folder_name, const std::function<void()>& before_rename) {
  data::write_file_atomically(run_dir / pointer, folder_name + "\n", ErrorKind::kCheckpoint,
                              before_rename);
}

void remove_whole(const fs::path& folder) { discard(folder, folder); }

void make_unfinished(const fs::path& folder) {
  std::error_code ignored;
  const fs::path unfinished = folder.string() + ".tmp";
  fs::remove_all(unfinished, ignored);
  if (fs::exists(fs::symlink_status(unfinished))) discard(unfinished, folder);
  // Folder by folder: a run directory that has just been moved away must not come back.
  fs::create_directory(folder.parent_path());
  fs::create_directory(unfinished);
}

fs::path free_name_aside(const fs::path& folder) {
  const auto name = [&](int n) { return folder.string() + ".set-aside-" + std::to_string(n); };
  int n = 1;
  while (fs::exists(fs::symlink_status(name(n)))) ++n;
  return name(n);
}

std::string move_into_place(const fs::path& unfinished, const fs::path& folder) {
  fs::path aside;
  if (fs::exists(fs::symlink_status(folder))) {
    aside = free_name_aside(folder);
    fs::rename(folder, aside);  // the folder itself may be closed to this user
  }
  data::rename_durably(unfinished, folder, ErrorKind::kCheckpoint);
  return aside.filename().string();
}

std::vector<std::string> retain(const fs::path& run_dir, std::int64_t newest, std::int64_t keep,
                                const std::optional<fs::path>& resumed_from) {
  std::vector<std::string> stay;
  const std::string best = read_pointer(run_dir, "best");
  const std::vector<StepFolder> steps = step_folders(run_dir);
  std::int64_t kept = 0;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    if (step->step > newest || ++kept <= keep) continue;
    const bool wanted = step->step == newest || step->path.filename() == best ||
                        same_folder(step->path, resumed_from);
    if (wanted) continue;
    if (const std::string other = other_step_in(step->path); !other.empty()) {
      stay.push_back(other);
      continue;
    }
    try {
      remove_whole(step->path);
    } catch (const fs::filesystem_error& error) {
      stay.push_back(not_removed(step->path, error.code().message()));
    }
  }
  for (std::string& line : remove_leftovers(run_dir)) stay.push_back(std::move(line));
  return stay;
}

std::vector<std::string> remove_leftovers(const fs::path& run_dir) {
  std::vector<std::string> stay;
  const auto remove = [&](const fs::path& path) {
    std::error_code error;
    fs::remove_all(path, error);
    if (error) stay.push_back(not_removed(path, error.message()));
  };
  for (const fs::path& file : entries_of(run_dir, is_partial_file)) {
    if (fs::is_regular_file(fs::symlink_status(file))) remove(file);
  }
  if (!is_folder(run_dir / "checkpoints")) return stay;
  for (const fs::path& folder : entries_of(run_dir / "checkpoints", is_unfinished_step)) {
    remove(folder);
  }
  return stay;
}

}  // namespace k25::trainer
