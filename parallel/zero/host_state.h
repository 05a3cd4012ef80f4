#pragma once
// Private to parallel/zero: the offloaded units' way between device and host.
//
// optimizer: host. The caller's thread sends each gradient down when it is final and starts the
// update; a thread of this class waits for a unit's gradient, updates its chunks with a pool of
// threads, sends new parameters up, and says that the unit is ready. Units go in order, so the
// caller, who needs them in that order, runs behind it into the next step.
// offload.early: with a guess of the update, units with room for a second copy of their state are
// updated into it while the backward pass still runs, in the order in which gradients come. The
// step's update then exchanges the copies, or does the work anew from the old state.
// optimizer: device, params: host. A chunk of the masters visits the device for its update.

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "parallel/offload/copy_stream.h"
#include "parallel/zero/nvme_moments.h"
#include "parallel/zero/zero_memory.h"

namespace k25::parallel {

class HostState {
 public:
  HostState(Mesh& mesh, const ZeroShape& shape, ZeroMemory& memory, Context& context);
  ~HostState();
  HostState(const HostState&) = delete;
  HostState& operator=(const HostState&) = delete;

  bool holds(int unit) const { return shape_.masters_on_host(unit); }

  /// Makes the device's stream wait until the copy of the unit's shard on the device is that of
  /// its master.
  void before_use(int unit);
  /// Brings the shard in its compute dtype into `slice` of a gather buffer; returns the queue on
  /// which it is there.
  Queue fetch(int unit, const Tensor& slice);
  /// Done when all fetches from host memory so far are.
  Work fetched();

  void begin_step();
  /// What the stream holds now is the step's last addition to the unit's gradient.
  void gradient_final(int unit);
  /// After the last reduction: gradients that no call of gradient_final came for.
  void finish_gradients();

  void guess_update(const ShardUpdate& update);
  void update(const ShardUpdate& update, Guess guess);
  /// After a guess that no update came for.
  void drop_guess();
  /// Blocks the host until masters and moments of the unit may be read and written there.
  void settle(int unit);
  /// Of a unit whose moments are in a file; blocks until no update is under way.
  void read_moments(int unit, std::int64_t begin, std::span<float> m, std::span<float> v);
  void write_moments(int unit, std::int64_t begin, std::span<const float> m,
                     std::span<const float> v);
  /// All masters were written: makes the shards' copies anew.
  void refresh();

  OffloadTimes take_times();
  std::string nvme_text() const { return nvme_ == nullptr ? "" : nvme_->text(); }

 private:
  enum class Early : std::uint8_t { kNone, kQueued, kRunning, kDone };
  struct Unit {
    bool pending = false;  ///< its update has not ended; under mutex_
    bool sent = false;     ///< its gradient of this step
    Work gradient;         ///< on the host
    Work ready;            ///< the copy of its shard is there; written before pending is cleared
    Early early = Early::kNone;  ///< under mutex_
    Work early_ready;            ///< as ready, when early is kDone
  };

  void wait_for_update(int unit);
  void wait_for_all();
  /// Takes an early update back whose gradient is written again.
  void withdraw(int unit);
  void run_updates();
  void run_job(std::unique_lock<std::mutex>& lock);
  void run_early(std::unique_lock<std::mutex>& lock);
  void keep_early(int unit);
  void update_on_host(int unit);
  void update_aside(int unit, const ShardUpdate& update);
  /// [begin, end) of the unit's shard; `piece` without its gradient and copy.
  void update_range(const ShardUpdate& update, int unit, std::int64_t begin, std::int64_t end,
                    UpdatePiece piece, OffloadTimes& times);
  void add_times(const OffloadTimes& times);
  void refresh(int unit);
  void update_visiting(int unit, const ShardUpdate& update);
  /// Where the host rounds a range of the unit's masters to: its place in the copy on the host, or
  /// the next staging chunk. Absent when the copy is fp32.
  Tensor take_rounded(int unit, std::int64_t begin, std::int64_t end);
  /// Sends the range to a copy on the device: `rounded`, which take_rounded gave, or `master`.
  void send_up(int unit, std::int64_t begin, const Tensor& master, const Tensor& rounded);
  void copy_on_stream(const Tensor& from, const Tensor& to);
  Work mark_compute() const;

  const ZeroShape& shape_;
  ZeroMemory& memory_;
  Context& context_;
  CudaLink* link_;
  CopyStream down_, up_;
  std::vector<Unit> units_;
  std::vector<std::int64_t> shard_begin_;
  Work last_download_;

  std::unique_ptr<NvmeMoments> nvme_;
  std::unique_ptr<ThreadPool> pool_;
  Context host_context_;
  std::vector<Work> staged_;  ///< per staging chunk
  std::size_t next_staging_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  ShardUpdate job_, guess_;
  bool has_job_ = false, stop_ = false;
  Guess job_guess_ = Guess::kNone;
  std::deque<int> early_;  ///< units, kQueued
  bool guessing_ = false;  // the caller's thread alone
  std::optional<Error> failure_;
  OffloadTimes times_;
  double exposed_ = 0.0;  // the caller's thread alone
  std::thread thread_;
};

/// Calls f(parameter, begin, end) for each trained parameter's part of a shard that begins at flat
/// element `shard_begin` and has `n` elements, in pieces of at most `piece`.
template <class F>
void for_each_trained_range(const UnitLayout& layout, std::int64_t shard_begin, std::int64_t n,
                            std::int64_t piece, const F& f) {
  for (std::size_t p = 0; p < layout.parameters.size(); ++p) {
    const ParameterSpec& parameter = layout.parameters[p];
    if (parameter.frozen) continue;
    const std::int64_t first = std::max<std::int64_t>(layout.offsets[p] - shard_begin, 0);
    const std::int64_t last = std::min(layout.offsets[p] + parameter.numel() - shard_begin, n);
    for (std::int64_t at = first; at < last; at += piece) {
      f(parameter, at, std::min(at + piece, last));
    }
  }
}

}  // namespace k25::parallel
