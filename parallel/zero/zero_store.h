#pragma once
// ZeRO-3: every unit's master parameters, moments and gradients exist once, cut over the shard
// axis; the whole parameters exist only while they are needed.
//
// One step, driven by the trainer (docs/numerics.md explains slots and rounds):
//
//   begin_step()
//   for each round, for each micro-batch of this rank's slot in the round:
//     forward:   views = acquire(u) ... release(u, kForward)          prefetch(next) any time
//     backward:  views = acquire(u), grads = gradient(u) ... release(u, kBackward);
//                gradient_done(u)
//     end_micro_batch()
//   finish_gradients()      every shard now holds the step's ordered sum of slot gradients
//   update(f)               calls f for every trained range
//   end_step()              gathered copies are stale from here
//
// Reduction, mode kOrdered: slot s belongs to data rank s mod W in round s div W (W data ranks). A
// slot's gradient is the fp32 sum of its micro-batches in order: the blocks add each micro-batch to
// a buffer that was zero before the slot's first, or is written by it (gradient_state). The shard
// adds the slot gradients of a round in rank order, starting from zero. So the result is the left
// fold over slots 0, 1, 2, ..., whatever W is. Each slot is reduced once, unit by unit in the
// backward of its last micro-batch; this order leaves reduce_after no choice. With one micro-batch
// per slot the whole gradients of a few units exist at a time, with more those of all units.
//
// Mode kLibrary: shards add what the library's reduce-scatter gives, per micro-batch or, with whole
// gradients of all units, once a step.
//
// A unit used twice in a micro-batch (tied embedding) is reduced once: gradient_done(u) is called
// after its last use. A unit that a micro-batch does not use at all may be left out, by all ranks
// or by none; a rank that alone has no use for it calls gradient_done(u) without gradient(u) and
// adds zeros. All ranks make the same calls (gradient aside) in the same order.
//
// Gathered parameters, reshard_after: kForward keeps the 1 + prefetch units used last (so a unit
// may still be there and costs nothing), kMicroBatch and kStep keep all, until end_micro_batch or
// end_step. Replicated units, and on one shard all units that compute in fp32, are read in place
// and never gathered.
//
// Offloaded units (all sharded ones but the lowest, whose share is offload.resident) have state in
// host memory, which is pinned where the device is a GPU:
//
//   optimizer: host   masters and moments; the update runs on a thread of the store's own, unit 0
//                     first, while the caller goes on with the next step: what needs a unit
//                     (acquire, prefetch, master, m, v) waits for its update. Gradients follow each
//                     unit's last reduction to the host, beside the computation.
//   params: host      the parameters between their uses: gathered from there, on a stream of
//   copies.
//                     Without optimizer: host the masters lie there too and visit the device for
//                     the update.
//   params: device    with optimizer: host, a copy of the shard in the compute dtype stays.
//   nvme: FOLDER      with optimizer: host, the moments are in a file there and pass through host
//                     memory a few chunks at a time, ahead of the update and behind it.
//
// The arithmetic is the same wherever it runs, so offload changes no bit.
//
// Errors  kInternal for calls out of order, naming the unit; kUsage for options that do not fit the
// mesh.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/core/buffer.h"
#include "kernels/core/context.h"
#include "parallel/mesh.h"
#include "parallel/zero/unit.h"

namespace k25::parallel {

enum class ReshardAfter : std::uint8_t { kForward, kMicroBatch, kStep };
enum class ReduceAfter : std::uint8_t { kMicroBatch, kStep };  ///< matters to kLibrary only
enum class Phase : std::uint8_t { kForward, kBackward };

/// What the views of gradient(unit) hold.
enum class GradientState : std::uint8_t {
  kUnwritten,  ///< zeros; where the parameter's gradient_start is kWritten, nothing of use
  kSums,       ///< gradients of this slot (step, micro-batch) so far
};

enum class Place : std::uint8_t { kDevice, kHost };

struct OffloadOptions {
  Place optimizer = Place::kDevice;
  Place params = Place::kDevice;
  double resident = 0.0;       ///< share of the sharded state that stays on the device
  int threads = 1;             ///< of the update on the host
  double early = 0.0;          ///< share of what the host updates that has room for a second copy
  std::vector<int> cpus;       ///< that these are bound to, one each; empty: anywhere
  std::filesystem::path nvme;  ///< folder of a local disk for the moments updated on the host
  bool any() const { return optimizer == Place::kHost || params == Place::kHost; }
};

struct ZeroOptions {
  ReshardAfter reshard_after = ReshardAfter::kForward;
  ReduceAfter reduce_after = ReduceAfter::kMicroBatch;
  int prefetch = 1;        ///< units gathered ahead
  int open_gradients = 0;  ///< sharded units whose gradient stays open while others come and go
                           ///< (a tied embedding: 1)
  ReduceMode mode = ReduceMode::kOrdered;
  std::int64_t slots = 1;  ///< S, a multiple of the data ranks
  std::int64_t micro_batches_per_slot = 1;
  DType compute = DType::kFloat32;
  Device device = Device::kCpu;  ///< where the blocks compute and what is not offloaded lives
  OffloadOptions offload;
};

/// Bytes of one rank, by category; made by the same code that allocates.
struct ZeroPlan {
  Bytes masters, moments, shard_gradients, gathered, unit_gradients, reduction_scratch;
  Bytes replicated;    ///< master, moments and gradients of replicated units
  Bytes shard_copies;  ///< of offloaded units, in the compute dtype
  Bytes offload_scratch;
  struct Host {
    Bytes masters, moments, gradients, shard_copies, staging;  ///< of offloaded units
    Bytes reduction_scratch;                                   ///< beside a GPU
    Bytes total() const;
  };
  Host host;
  Bytes nvme;                 ///< of their moments, where offload.nvme is given
  Bytes total() const;        ///< on the device
  Bytes model_state() const;  ///< masters, moments, shard gradients and copies: falls as 1/W
};

/// One range of a trained parameter, as an update sees it: [n] views, all on one device.
struct UpdatePiece {
  const ParameterSpec& parameter;
  Tensor master, m, v;
  Tensor gradient;
  Tensor copy_out;                  ///< absent, or bf16: receives the new master rounded
  Tensor old_master, old_m, old_v;  ///< absent: master, m and v hold the state to begin from
};
/// Runs on any thread; all it needs beside its arguments it holds by value.
using ShardUpdate = std::function<void(Context& context, const UpdatePiece& piece)>;

/// What became of the update that guess_update foretold.
enum class Guess : std::uint8_t { kNone, kRight, kWrong };

/// Seconds of an update on the host.
struct OffloadTimes {
  double copy = 0.0;     ///< that the update waited for copies
  double compute = 0.0;  ///< of arithmetic
  double exposed = 0.0;  ///< that the caller's thread waited for either
  OffloadTimes& operator+=(const OffloadTimes& o) {
    copy += o.copy;
    compute += o.compute;
    exposed += o.exposed;
    return *this;
  }
};

class ZeroStore {
 public:
  static ZeroPlan plan(const std::vector<UnitSpec>& units, const MeshShape& mesh,
                       const ZeroOptions& options);

  /// `host` may be null when nothing is offloaded.
  ZeroStore(Mesh& mesh, const std::vector<UnitSpec>& units, const ZeroOptions& options,
            Context& context, Allocator& allocator, Allocator* host = nullptr);
  ~ZeroStore();

  const Context& context() const;  ///< whose stream the state is written on
  int num_units() const;
  const UnitLayout& layout(int unit) const;
  int unit_index(const std::string& name) const;  ///< throws kInternal for an unknown name

  // State of this rank: [shard_elems] fp32 (a replicated unit: [padded]), wherever it lives.
  Tensor master(int unit);
  Tensor m(int unit);  ///< kInternal for moments in a file: read_state knows them too
  Tensor v(int unit);
  /// Host memory of as many elements each, empty for what is not wanted; m and v come together.
  template <class Float>
  struct StateSpans {
    std::span<Float> master, m, v;
  };
  /// Copies elements of this rank's state from `begin` on, wherever they live, and back. Blocks.
  void read_state(int unit, std::int64_t begin, const StateSpans<float>& to);
  void write_state(int unit, std::int64_t begin, const StateSpans<const float>& from);
  /// Valid between finish_gradients and end_step; a replicated unit's is whole on every rank.
  Tensor shard_gradient(int unit);
  /// First flat element of this rank's range in the unit; 0 for a replicated unit.
  std::int64_t shard_begin(int unit) const;
  /// The range of a unit whose gradient this rank owns for statistics: every element of every unit
  /// is owned by exactly one rank of shard_comm. Begin and length in elements of
  /// shard_gradient(unit).
  struct Range {
    std::int64_t begin = 0, length = 0;
  };
  Range owned(int unit) const;

  void begin_step();
  void prefetch(int unit);
  /// Whole parameters, one view per ParameterSpec of the unit, in its compute dtype.
  const std::vector<Tensor>& acquire(int unit);
  void release(int unit, Phase phase);
  /// fp32 accumulators, one view per ParameterSpec (absent for frozen parameters).
  const std::vector<Tensor>& gradient(int unit);
  /// As the last gradient(unit) found it. kUnwritten: until the unit's gradient_done every
  /// parameter whose gradient_start is kWritten has to be written, each element of it.
  GradientState gradient_state(int unit) const;
  void gradient_done(int unit);
  void end_micro_batch();
  void finish_gradients();
  /// Before the last micro-batch's backward, if at all: the update that the step will probably
  /// call for. Units with room for a second copy of their state (offload.early, the highest first)
  /// are updated into it as soon as their gradient is on the host.
  void guess_update(const ShardUpdate& update);
  /// Whether guess_update would begin anything.
  bool can_guess() const;
  /// Enqueues the update of every trained range, each once. kRight: `update` is what guess_update
  /// was given, and what it has done is kept; otherwise that is done anew, from the old state. Its
  /// error may come later, from a call that needs the unit.
  void update(const ShardUpdate& update, Guess guess = Guess::kNone);
  /// Drops what was guessed when there was no update.
  void end_step();
  /// Tells that shard_gradient(unit) was written to after finish_gradients.
  void gradient_written(int unit);

  /// Where this rank's own gradients of the step were first not finite, before any reduction; unit
  /// is -1 when they all are, and when sums_are_own(). `element` counts in the unit's flat buffer.
  /// On a GPU call it after the step's host wait.
  struct BadElement {
    int unit = -1;
    std::int64_t element = 0;
  };
  BadElement first_bad_gradient() const;
  /// One rank with one slot: shard_gradient holds this rank's own gradients, which were not looked
  /// at. Whoever sums their squares knows whether they are finite.
  bool sums_are_own() const;

  /// Forgets gathered parameters: call after masters were written by other means (load, init).
  /// No unit may be acquired.
  void invalidate();

  /// Seconds that acquire and finish_gradients spent waiting since the last call.
  double take_wait_seconds();
  /// How moments in a file get there and back, for people; "" where none are in one.
  std::string nvme_text() const;
  /// Of the updates on the host, since the last call.
  OffloadTimes take_offload_times();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace k25::parallel
