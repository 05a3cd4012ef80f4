#pragma once
// Private to parallel/zero: every byte that a ZeroStore owns, carved in one pass. The same pass
// over measuring arenas gives the plan.

#include <vector>

#include "kernels/core/buffer.h"
#include "parallel/zero/zero_store.h"

namespace k25::parallel {

/// Elements that an update on the host takes at a time: enough that starting its threads is cheap.
inline constexpr std::int64_t kOffloadChunk = std::int64_t{1} << 22;
inline constexpr int kStagingChunks = 8;
/// Chunks of moments in memory at a time: one is updated, one leaves, two arrive.
inline constexpr int kNvmeSlots = 4;

/// What the options and the mesh mean for memory and for the order of calls.
struct ZeroShape {
  ZeroShape(const std::vector<UnitSpec>& units, const MeshShape& mesh, const ZeroOptions& options);

  std::vector<UnitLayout> layouts;
  int shards = 1;
  int data_ranks = 1;
  std::int64_t micro_batches = 1;  ///< of one rank in a step
  std::int64_t per_reduction = 1;  ///< micro-batches that add up before a unit is reduced
  int gather_pool = 0;             ///< shared buffers; 0: each gathered unit has its own
  int gradient_pool = 0;           ///< shared whole-gradient buffers; 0: each unit has its own
  bool in_place = false;  ///< one rank with one slot: a unit's gradient is formed in its shard
  bool ordered = true;    ///< the reduction is ours and needs room for all ranks' slices
  Device device = Device::kCpu;
  OffloadOptions offload;
  std::vector<bool> offloaded;  ///< per unit
  std::vector<bool> early;      ///< per unit: has room for a second copy of its state

  bool masters_on_host(int unit) const;
  bool updated_on_host(int unit) const;  ///< with moments and gradients there
  bool moments_on_nvme(int unit) const;
  std::int64_t nvme_chunk() const;  ///< elements of a chunk of moments: whole granules
  /// Per unit the number of its first chunk in the file, and behind them the number of all.
  std::vector<std::int64_t> nvme_chunks() const;
  Bytes nvme_bytes() const;             ///< of all chunks, m and v
  bool copy_on_device(int unit) const;  ///< of the shard, in the compute dtype
  bool copy_on_host(int unit) const;    ///< likewise; the master itself when that dtype is fp32

  /// Read in place, from the master or from the shard's copy: nothing is gathered.
  bool resident(int unit) const;
  /// Has a parameter that is not frozen.
  static bool trainable(const UnitLayout& unit);
  /// Takes its whole gradient from the pool.
  bool pooled(const UnitLayout& unit) const;

 private:
  std::vector<bool> choose_early() const;
};

/// Views into the arenas, one per unit where the name is a plural; absent where a unit needs none.
struct ZeroMemory {
  explicit ZeroMemory(const ZeroShape& shape);                                ///< measures
  ZeroMemory(const ZeroShape& shape, Allocator& allocator, Allocator* host);  ///< allocates
  ZeroPlan plan() const;

  std::vector<Tensor> masters, ms, vs;  ///< ms and vs: absent where they are in a file
  std::vector<Tensor> shard_gradients;  ///< a replicated unit's: [padded]
  std::vector<Tensor> gathered;         ///< uint8, per pool buffer or per gathered unit
  std::vector<Tensor> gradients;        ///< fp32, per pool buffer
  std::vector<Tensor> own_gradients;    ///< fp32 [padded], per unit with a buffer of its own
  std::vector<Tensor> shard_copies;     ///< compute dtype, on the device or on the host
  std::vector<Tensor> host_gradients;   ///< fp32 [shard_elems]
  std::vector<Tensor> staging;          ///< host, bf16 [kOffloadChunk]
  /// Of an early unit: fp32 [shard_elems], where the next state is guessed. A right guess exchanges
  /// them with masters, ms and vs.
  std::vector<Tensor> next_masters, next_ms, next_vs;
  Tensor nvme_window;        ///< host, room for kNvmeSlots chunks from a granule on
  Tensor chunk, chunk_copy;  ///< device, [kOffloadChunk] fp32 and bf16
  Tensor scratch;            ///< fp32
  Tensor finite_marks;       ///< int64, per reduction of a step
  Tensor host_marks;         ///< where finite_marks of a GPU come to the host

 private:
  void carve(const ZeroShape& shape);
  void carve_state(const ZeroShape& shape);
  void carve_gathered(const ZeroShape& shape);
  void carve_gradients(const ZeroShape& shape);
  void carve_offload(const ZeroShape& shape);
  void carve_nvme(const ZeroShape& shape);

  Arena masters_, moments_, shard_gradients_, gathered_, unit_gradients_, scratch_, replicated_;
  Arena shard_copies_, offload_scratch_;
  Bytes nvme_;
  Arena host_masters_, host_moments_, host_gradients_, host_copies_, staging_, host_scratch_;
};

}  // namespace k25::parallel
