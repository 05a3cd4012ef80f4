#pragma once
// Commands to a live run, as small files: `k25 ctl` writes RUN/control/ID.json, every rank sees it
// within half a second and answers. What a command needs besides is for its own kind to say.
//
// dump: each rank writes its last collectives to RUN/dumps/collectives-rank-00000.txt. That is done
// by a thread of its own, so that it works while the step's thread hangs in a collective.

#include <atomic>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kernels/core/stopwatch.h"
#include "parallel/comm/world.h"
#include "trainer/watch/ticker.h"

namespace k25::trainer {

struct ControlCommand {
  std::string id;    ///< of the file's name: letters, digits, '-'
  std::string what;  ///< "dump"
};

/// Writes the command where ranks look for it; returns its id. Throws kCheckpoint.
std::string post_command(const std::filesystem::path& run_dir, const std::string& what);
/// Takes it back once it is answered.
void remove_command(const std::filesystem::path& run_dir, const std::string& id) noexcept;

/// Commands as they come. Those that are there already when it is made are of the past.
class ControlInbox {
 public:
  explicit ControlInbox(std::filesystem::path run_dir);
  std::vector<ControlCommand> take_new();

 private:
  std::filesystem::path folder_;
  std::set<std::string> seen_;
};

std::filesystem::path dump_path(const std::filesystem::path& run_dir, int rank);
/// Of one rank: who it is, what it waits for, its last collectives. `ids` are those of the commands
/// that it answers.
void write_dump(const std::filesystem::path& run_dir, const parallel::World& world,
                const std::vector<std::string>& ids);

struct DumpAnswers {
  int ranks = 0;  ///< of the run; 0: nobody has answered
  std::vector<int> answered;
};
/// Which ranks have written their dump for this command.
DumpAnswers dump_answers(const std::filesystem::path& run_dir, const std::string& id);

/// Answers commands and SIGUSR2 on a thread of its own, on every rank.
class ControlWatch {
 public:
  /// `signals` counts this rank's SIGUSR2s: each becomes a dump command to all ranks.
  ControlWatch(std::filesystem::path run_dir, const parallel::World& world,
               const std::atomic<std::int64_t>& signals);
  ~ControlWatch();
  ControlWatch(const ControlWatch&) = delete;
  ControlWatch& operator=(const ControlWatch&) = delete;

 private:
  void look() noexcept;
  void answer();
  void remove_own_command();

  std::filesystem::path run_dir_;
  const parallel::World& world_;
  const std::atomic<std::int64_t>& signals_;
  std::int64_t signals_seen_ = 0;
  ControlInbox inbox_;
  std::string own_command_;  ///< of the last signal
  Stopwatch since_own_;
  std::optional<Ticker> ticker_;
};

}  // namespace k25::trainer
