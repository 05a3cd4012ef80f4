#pragma once
// The processes of this job. Built once by main; everything that communicates gets it from there.
//
// Under mpirun or srun (recognised by the launcher's environment) the MPI backend is used: its
// communication thread makes every MPI call, MPI_Init_thread and MPI_Finalize included. A process
// started alone is a world of one and touches no MPI.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"

namespace k25::parallel {

struct WorldOptions {
  /// comm.timeout_s: no message for so long, while calls are pending, is an error. Must exceed the
  /// longest time that a rank legitimately computes, reads or writes between two collectives.
  std::chrono::milliseconds timeout{60000};
  Bytes max_chunk{std::int64_t{1} << 30};  ///< comm.max_chunk: larger messages are cut
  bool check = false;                      ///< comm.check: compare every call across ranks
};

struct Peer {
  std::string host;
  std::int64_t pid = 0;
};

class CollectiveLog;

class World {
 public:
  /// MPI when a launcher started us, otherwise a world of one. Throws kCommunication.
  static std::unique_ptr<World> create(const WorldOptions& options);
  virtual ~World() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int local_rank() const = 0;  ///< among the ranks of this host
  virtual int local_size() const = 0;
  virtual const Peer& peer(int rank) const = 0;

  virtual Communicator& comm() = 0;  ///< of all ranks
  /// Collective: ranks with equal color form one communicator, ordered by key.
  virtual std::unique_ptr<Communicator> split(int color, int key, const std::string& name) = 0;

  /// The timeout, chunk size and check of all communicators from now on (the config arrives after
  /// the world exists).
  virtual void configure(const WorldOptions& options) = 0;

  /// What this rank is waiting for: "collective #12 (all_gather layers.3), missing rank 1 (host h,
  /// pid p)", or empty. Callable from any thread (not from a signal handler), also while a call
  /// hangs. For a SIGTERM (mpirun sends it to the others after a rank was killed): wait some 200
  /// ms, so that a peer's failure message can arrive, then print this unless it is empty or
  /// peer_failed().
  virtual std::string waiting_for() const = 0;
  /// The last 256 collectives, one a line, oldest first. Callable from any thread.
  virtual std::string dump() const = 0;
  /// What dump() prints; device communicators record their calls there too.
  virtual std::shared_ptr<CollectiveLog> log() const = 0;
  /// True once a peer told us that it failed and printed the reason: stay silent and go.
  virtual bool peer_failed() const = 0;

  /// Collective, the orderly end: waits for all calls, finalizes. No call may follow.
  virtual void finish() = 0;
  /// Tells the peers that this rank has printed an error, then ends the job with `exit_code`. After
  /// peer_failed() it only waits (at most 5 s) to be ended by that peer, whose exit code counts.
  [[noreturn]] virtual void abort(int exit_code) = 0;
};

/// How long MPI may take to start and the ranks to agree on a config, which says comm.timeout_s for
/// all that follows: 20 s, in a job of more than 64 ranks 60 s.
std::chrono::milliseconds start_timeout();

/// True when a launcher's environment says that this process is one rank of an MPI job.
bool launched_by_mpi();

}  // namespace k25::parallel
