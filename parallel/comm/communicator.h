#pragma once
// Collectives over one product of mesh axes, without a word of MPI or NCCL.
//
// A call takes bytes, a name and a queue, and returns a Work. Calls of one communicator are started
// in the order they are made and must be made in the same order on all its ranks (`comm.check`
// compares sequence number, operation, bytes and name). Zero sizes are legal and still take part.
// Buffers stay untouched by the caller until the Work is done.
//
// Backends: parallel/comm/single_backend (one process, really works), parallel/comm/mpi_backend
// (host memory, one communication thread makes all MPI calls), parallel/comm/cuda_backend
// (device memory through NCCL, on top of one of the others).
//
// Errors  kCommunication from Work::wait: "no progress in collective #12 (all_gather layers.3) from
//         rank 1 (host h, pid p) for 60 s", or a message that a peer failed.

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/context.h"
#include "kernels/core/dtype.h"

namespace k25::parallel {

using Clock = std::chrono::steady_clock;

/// Where a call's input becomes ready and its output is needed: the host, or a CUDA stream.
class Queue {
 public:
  static Queue host() { return Queue(nullptr, Kind::kHost); }
  static Queue on_stream(cudaStream_t stream) { return Queue(stream, Kind::kStream); }
  bool is_host() const { return kind_ == Kind::kHost; }
  cudaStream_t stream() const { return stream_; }

 private:
  enum class Kind : std::uint8_t { kHost, kStream };
  Queue(cudaStream_t stream, Kind kind) : stream_(stream), kind_(kind) {}
  cudaStream_t stream_;
  Kind kind_;
};

/// A started call. Copyable handle; a default-constructed Work is done.
class Work {
 public:
  class State {
   public:
    virtual ~State() = default;
    virtual bool done() = 0;                         ///< rethrows the call's error
    virtual bool wait(Clock::time_point until) = 0;  ///< false: not done by then
    virtual void wait_on(const Queue& queue) = 0;
  };

  Work() = default;
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

  /// Makes `queue` wait for the result; for the host queue this blocks until done, and throws
  /// kCommunication when the watchdog gives up.
  void wait_on(const Queue& queue) {
    if (state_ != nullptr) state_->wait_on(queue);
  }
  /// Blocks the host until done or `deadline`; false means the deadline passed.
  bool wait(Clock::time_point deadline) { return state_ == nullptr || state_->wait(deadline); }
  /// Blocks the host until done.
  void wait() { wait_on(Queue::host()); }
  bool done() { return state_ == nullptr || state_->done(); }

 private:
  std::shared_ptr<State> state_;
};

struct Call {
  std::string_view name;  ///< for messages and the collective log: "layers.3"
  Queue queue = Queue::host();
};

/// In place: rank r's contribution already lies at buffer + r * per_rank.
struct AllGather {
  void* buffer = nullptr;
  Bytes per_rank;
};
struct AllToAll {
  const void* send = nullptr;  ///< size * per_rank, block d goes to rank d
  void* recv = nullptr;        ///< size * per_rank, block s came from rank s
  Bytes per_rank;
};
struct AllToAllV {
  const void* send = nullptr;
  std::span<const Bytes> send_offsets, send_sizes;  ///< one per rank
  void* recv = nullptr;
  std::span<const Bytes> recv_offsets, recv_sizes;
};

enum class ReduceMode : std::uint8_t {
  kOrdered,  ///< accumulator = ((acc + rank 0) + rank 1) + ...: our sum, in rank order
  kLibrary,  ///< accumulator += the library's sum, in any order
};
/// fp32. Rank d accumulates slice `slice_of_rank[d]` of every rank's input (empty: slice d). Two
/// ranks may own the same slice (the replicate axis).
struct ReduceScatter {
  const float* input = nullptr;  ///< slices * per_slice elements
  float* accumulator = nullptr;  ///< per_slice elements
  Elems per_slice;
  /// kOrdered: size * per_slice elements; kLibrary: per_slice elements on a CUDA stream, none on
  /// the host.
  float* scratch = nullptr;
  ReduceMode mode = ReduceMode::kOrdered;
  std::span<const int> slice_of_rank;
};

enum class ReduceOp : std::uint8_t { kSum, kMax, kMin, kBitOr };
/// Few numbers, same result on all ranks: every rank's values are gathered and folded in rank
/// order.
struct AllReduceSmall {
  double* values = nullptr;          ///< either doubles (kSum, kMax, kMin)
  std::int64_t* integers = nullptr;  ///< or integers (all ops)
  std::int64_t count = 0;
  ReduceOp op = ReduceOp::kSum;
};
struct Broadcast {
  void* data = nullptr;
  Bytes size;
  int root = 0;
};
/// Sends to rank + 1, receives from rank - 1 (modulo size).
struct RingExchange {
  const void* send = nullptr;
  void* recv = nullptr;
  Bytes size;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const std::string& name() const = 0;  ///< of the axes, "shard"

  virtual Work all_gather(const Call& call, const AllGather& args) = 0;
  virtual Work all_to_all(const Call& call, const AllToAll& args) = 0;
  virtual Work all_to_all_v(const Call& call, const AllToAllV& args) = 0;
  virtual Work reduce_scatter(const Call& call, const ReduceScatter& args) = 0;
  virtual Work all_reduce_small(const Call& call, const AllReduceSmall& args) = 0;
  virtual Work broadcast(const Call& call, const Broadcast& args) = 0;
  virtual Work ring_exchange(const Call& call, const RingExchange& args) = 0;
  /// Returns when all ranks arrived; throws kCommunication at the deadline.
  virtual void barrier(std::string_view name, Clock::time_point deadline) = 0;

  /// Calls between the two are started together; group_end's Work covers them all.
  virtual void group_begin() = 0;
  virtual Work group_end() = 0;

  /// Default deadline: now + comm.timeout_s.
  virtual Clock::time_point default_deadline() const = 0;
};

}  // namespace k25::parallel
