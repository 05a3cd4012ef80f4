#include "trainer/watch/control.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "data/io/atomic_file.h"
#include "trainer/watch/clock_text.h"

namespace k25::trainer {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::chrono::milliseconds kLook{250};
constexpr double kAnswered = 5.0;  // seconds after which every rank has seen a signal's command
constexpr std::int64_t kMostBytes = 4096;

fs::path control_folder(const fs::path& run_dir) { return run_dir / "control"; }

void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directory(folder, error);
  if (error) {
    fail(ErrorKind::kCheckpoint, folder.string() + ": cannot be made: " + error.message() +
                                     "; this user must be able to write into the run directory");
  }
}

// The temporary files of atomic writes begin with a dot.
bool is_command_name(const std::string& name) {
  return name.ends_with(".json") && !name.starts_with('.');
}

std::vector<std::string> command_names(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    std::string name = entry->path().filename().string();
    if (is_command_name(name)) names.push_back(std::move(name));
  }
  std::ranges::sort(names);
  return names;
}

}  // namespace

std::string post_command(const fs::path& run_dir, const std::string& what) {
  make_folder(control_folder(run_dir));
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const std::string id =
      fmt::format("{}-{}-{}", what,
                  std::chrono::duration_cast<std::chrono::microseconds>(now).count(), getpid());
  const Json json = {{"command", what}};
  data::write_file_atomically(control_folder(run_dir) / (id + ".json"), json.dump() + "\n",
                              ErrorKind::kCheckpoint);
  return id;
}

void remove_command(const fs::path& run_dir, const std::string& id) noexcept {
  std::error_code ignored;
  fs::remove(control_folder(run_dir) / (id + ".json"), ignored);
  fs::remove(control_folder(run_dir), ignored);  // when it is empty
}

ControlInbox::ControlInbox(fs::path run_dir) : folder_(control_folder(run_dir)) {
  for (std::string& name : command_names(folder_)) seen_.insert(std::move(name));
}

std::vector<ControlCommand> ControlInbox::take_new() {
  std::vector<ControlCommand> commands;
  for (const std::string& name : command_names(folder_)) {
    if (!seen_.insert(name).second) continue;
    std::string text;
    try {
      text = data::read_file(folder_ / name, ErrorKind::kCheckpoint, Bytes{kMostBytes});
    } catch (const Error&) {
      continue;  // taken back meanwhile, or nothing that k25 wrote
    }
    const Json json = Json::parse(text, nullptr, false);
    if (!json.is_object() || !json.contains("command") || !json["command"].is_string()) continue;
    commands.push_back({name.substr(0, name.size() - 5), json["command"].get<std::string>()});
  }
  return commands;
}

fs::path dump_path(const fs::path& run_dir, int rank) {
  return run_dir / "dumps" / fmt::format("collectives-rank-{:05}.txt", rank);
}

void write_dump(const fs::path& run_dir, const parallel::World& world,
                const std::vector<std::string>& ids) {
  make_folder(run_dir / "dumps");
  const parallel::Peer& self = world.peer(world.rank());
  const std::string waiting = world.waiting_for();
  const std::string text =
      fmt::format("rank {} of {} (host {}, pid {}) at {}\nfor {}\nwaiting for {}\n\n{}",
                  world.rank(), world.size(), self.host, self.pid, clock_text(),
                  fmt::join(ids, " "), waiting.empty() ? "no other rank" : waiting, world.dump());
  data::write_file_atomically(dump_path(run_dir, world.rank()), text, ErrorKind::kCheckpoint);
}

DumpAnswers dump_answers(const fs::path& run_dir, const std::string& id) {
  DumpAnswers answers;
  std::error_code error;
  fs::directory_iterator entry(run_dir / "dumps", error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    if (entry->path().filename().string().starts_with('.')) continue;
    std::ifstream in(entry->path());
    std::string who, what;
    std::getline(in, who);
    std::getline(in, what);
    int rank = 0, ranks = 0;
    if (std::sscanf(who.c_str(), "rank %d of %d", &rank, &ranks) != 2) continue;
    if ((what + " ").find(" " + id + " ") == std::string::npos) continue;
    answers.ranks = ranks;
    answers.answered.push_back(rank);
  }
  std::ranges::sort(answers.answered);
  return answers;
}

ControlWatch::ControlWatch(fs::path run_dir, const parallel::World& world,
                           const std::atomic<std::int64_t>& signals)
    : run_dir_(std::move(run_dir)), world_(world), signals_(signals), inbox_(run_dir_) {
  ticker_.emplace(kLook, [this] { look(); });
}

ControlWatch::~ControlWatch() {
  ticker_.reset();
  remove_own_command();
}

void ControlWatch::remove_own_command() {
  if (!own_command_.empty()) remove_command(run_dir_, own_command_);
  own_command_.clear();
}

void ControlWatch::look() noexcept {
  try {
    answer();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "k25: warning: rank %d: %s\n", world_.rank(), error.what());
  }
}

void ControlWatch::answer() {
  if (!own_command_.empty() && since_own_.seconds() > kAnswered) remove_own_command();
  if (const std::int64_t signals = signals_; signals != signals_seen_) {
    signals_seen_ = signals;
    remove_own_command();
    own_command_ = post_command(run_dir_, "dump");
    since_own_ = Stopwatch();
  }
  std::vector<std::string> dumps;
  for (const ControlCommand& command : inbox_.take_new()) {
    if (command.what == "dump") dumps.push_back(command.id);
  }
  if (!dumps.empty()) write_dump(run_dir_, world_, dumps);
}

}  // namespace k25::trainer
