#pragma once
// Checkpoints: RUN/checkpoints/step-000120/{manifest.json, rank-00000.h5, ...}, pointers RUN/latest
// and RUN/best (text: the folder's name), written by shard, read at any rank count.
//
// A rank's file holds, for every unit, its owned element range of master, m and v (fp32). The
// manifest holds the state, the resolved config, every unit's parameters (name, shape, offset),
// which file holds which range, each file's size and block digests, and the SHA-256 of its own
// content. A folder without a valid manifest is unfinished.
//
// Order of a save: snapshot between two updates (collective) -> each rank writes and fsyncs its
// file in step-N.tmp, on its own thread when asynchronous -> all ranks agree -> rank 0 writes the
// manifest -> rename of the folder -> fsync -> latest (write, rename) -> retention: older ones go
// only after that, never the newest `keep`, the best, or the one this run resumed from.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/core/buffer.h"
#include "parallel/mesh.h"
#include "parallel/zero/zero_store.h"
#include "trainer/checkpoint/state.h"
#include "trainer/config/config.h"

namespace k25::trainer {

/// What a finished checkpoint says of itself; reading it verifies the manifest, not the payload.
struct CheckpointInfo {
  std::filesystem::path folder;
  TrainState state;
  std::string config;  ///< resolved YAML
  int ranks = 0;
  std::int64_t parameters = 0, bytes = 0;
};

/// Throws kCheckpoint: no manifest ("unfinished"), bad JSON, unknown format, content that is not
/// the one its digest was taken of, a step other than the folder's name says.
CheckpointInfo read_checkpoint_info(const std::filesystem::path& folder);

/// Every byte against its digest, and every dataset against the manifest. Throws kCheckpoint naming
/// file, block, expected and actual SHA-256, or file and dataset.
void verify_checkpoint(const std::filesystem::path& folder, int threads = 1);
/// Collective: the same by all ranks together, each a part of the blocks. Throws AgreedError.
void verify_together(parallel::Communicator& comm, const std::filesystem::path& folder);

/// Collective. What --resume asks for, found by rank 0 and verified by all ranks together. `auto`:
/// the newest checkpoint that verifies (reasons for the skipped ones go to `notes`), or none in a
/// fresh directory; a named target that is missing or broken throws kCheckpoint, and so does a
/// directory that holds only broken checkpoints. Writes nothing: see set_aside_for().
std::optional<std::filesystem::path> find_resume_target(parallel::Communicator& comm,
                                                        const std::filesystem::path& run_dir,
                                                        const std::string& resume,
                                                        std::vector<std::string>& notes);

/// What set_aside_for renamed.
struct Renamed {
  std::filesystem::path from, to;
};
/// One rank, right before the first file of a start is written, when nothing else can refuse it.
/// Going on from a named target sets aside what the run directory holds of later steps (everything,
/// when the target is elsewhere), a fresh start everything: renamed, never removed. All of it or,
/// with kCheckpoint, nothing.
std::vector<Renamed> set_aside_for(const std::filesystem::path& run_dir, const std::string& resume,
                                   const std::optional<std::filesystem::path>& target,
                                   std::vector<std::string>& notes);
/// RUN/latest names `target`, one of the run's own checkpoints.
void point_latest_at(const std::filesystem::path& run_dir, const std::filesystem::path& target);
/// For a start that fails after all.
void put_back(const std::vector<Renamed>& renamed) noexcept;

/// Whether `folder` is one of the run's own checkpoints.
bool is_step_of(const std::filesystem::path& run_dir, const std::filesystem::path& folder);

enum class LoadWhat : std::uint8_t { kAll, kWeightsOnly };

/// Collective. Fills this rank's shards from any rank count's files, reading and verifying only the
/// blocks its ranges touch; then all ranks compare a digest of the loaded state with the
/// manifest's. Units and parameters must match by name and shape, otherwise kCheckpoint listing the
/// differences.
TrainState load_checkpoint(parallel::Mesh& mesh, parallel::ZeroStore& store,
                           const std::filesystem::path& folder, LoadWhat what);

/// SHA-256 that identifies master, m and v whatever the rank count: a digest over the units' chunk
/// digests in order. Collective; same string on all ranks. `k25 inspect --hash` prints the same
/// from files.
std::string state_digest(parallel::Mesh& mesh, parallel::ZeroStore& store);
std::string state_digest_of_files(const std::filesystem::path& folder);

/// Makes the run directory where there is none, refuses (kCheckpoint) one that holds something
/// else, and takes RUN/lock for this process; throws kCheckpoint "directory in use by pid P on host
/// H since ...". The kernel holds the lock (flock), so that of a process which is gone does not
/// bind. The destructor releases it, and removes the lock and the folders that the constructor made
/// when nothing else came into them.
class RunLock {
 public:
  explicit RunLock(const std::filesystem::path& run_dir);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  /// What the lock file says: pid, host and time.
  const std::string& owner() const { return owner_; }
  /// Throws kCheckpoint unless RUN/lock is still the file that is locked: the directory may have
  /// been moved, removed or replaced, and what stands there now belongs to somebody else. One stat.
  void require_held() const;

 private:
  void open_and_take();
  void sign();
  bool is_at_path() const;
  void remove_what_was_made() noexcept;

  std::filesystem::path run_dir_, path_;
  std::vector<std::filesystem::path> made_;  // folders, outermost first
  bool made_lock_ = false;
  std::string owner_;
  int fd_ = -1;
};

/// Saves of one run. Every method is collective.
class CheckpointWriter {
 public:
  /// `lock`: rank 0's of run_dir, null on the other ranks. It is looked at before anything is
  /// written: a directory that is no longer the locked one throws kCheckpoint on all ranks,
  /// whatever checkpoint.on_error says.
  CheckpointWriter(parallel::Mesh& mesh, parallel::ZeroStore& store,
                   const std::filesystem::path& run_dir, const RunLock* lock,
                   const CheckpointConfig& config, const DebugKill& kill,
                   const std::string& resolved_config,
                   std::optional<std::filesystem::path> resumed_from, Allocator& allocator);
  ~CheckpointWriter();

  /// Bytes of the snapshot buffers on one rank.
  static Bytes plan(const std::vector<parallel::UnitSpec>& units, const parallel::MeshShape& mesh);

  /// Snapshots and starts writing; waits for an earlier save first. Synchronous when so configured.
  /// A step that is saved already is not saved again.
  void save(const TrainState& state);
  /// Between steps: commits a save whose files are all written, in microseconds when none is
  /// pending. A failed write throws kCheckpoint on all ranks, or warns with checkpoint.on_error:
  /// warn; the unfinished folder is removed, latest and older checkpoints stay.
  void poll();
  /// Waits for and commits what is pending.
  void finish();
  /// Points RUN/best at `step` once that checkpoint is committed.
  void mark_best(std::int64_t step);
  /// The step committed last by this writer; -1 before. Below the last save's step when that one
  /// failed with checkpoint.on_error: warn.
  std::int64_t saved_step() const;
  /// Seconds that training stood still for saves since the last call.
  double take_seconds();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace k25::trainer
