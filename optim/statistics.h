#pragma once
// Gathers everything a step's decision needs in one collective, the step's only host wait.
//
// The gradient norm is formed per 4096-element chunk (kernels/reduce) and the chunk sums of all
// ranks are added in index order, unit by unit, so its bits do not depend on the rank count.
// Padding, tied and replicated tensors count once.
//
// bad_parameter names the first element that was not finite in some rank's own gradients ("on rank
// 1": the rank whose samples made it), or else the first whose sum over the ranks overflowed. First
// as backward goes: the highest sharded unit, the replicated ones last.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/core/buffer.h"
#include "kernels/core/context.h"
#include "optim/decide.h"
#include "parallel/zero/zero_store.h"

namespace k25::optim {

/// Seconds of a rank by phases that the caller numbers; carried along unchanged.
using PhaseSeconds = std::array<double, 6>;
struct RankPhases {
  int rank = 0;
  PhaseSeconds seconds{};
};

struct LocalStats {
  std::int64_t nll_fixed = 0;  ///< in units of 2^-24 nats
  std::int64_t label_tokens = 0;
  bool loss_finite = true;
  bool save_and_stop = false;
  PhaseSeconds phases{};
};

/// Adds an nll in nats, rounded to 2^-24 nats. One that is not finite, or a sum too large for the
/// fixed point, clears loss_finite and adds nothing.
void add_nll(LocalStats& stats, double nll);

class Statistics {
 public:
  /// `state` gives the memory that `store` lives in; `host` is pinned when that is a GPU's.
  Statistics(parallel::Mesh& mesh, parallel::ZeroStore& store, Allocator& host, Allocator& state);
  static Footprint plan(const std::vector<parallel::UnitSpec>& units,
                        const parallel::MeshShape& mesh, Device device);
  /// After store.finish_gradients(): enqueues the sums. Then the host waits once (Mesh::wait).
  void begin(Context& context);
  /// Collective, after that wait.
  StepStats gather(Context& context, const LocalStats& local);
  /// LocalStats::phases of every data rank, of the last gather.
  const std::vector<RankPhases>& rank_phases() const { return rank_phases_; }

 private:
  using BadElement = parallel::ZeroStore::BadElement;
  Tensor host_sums(int data_rank) const;
  BadElement find_bad_sum(Context& context);
  std::int64_t first_not_finite(Context& context, const Tensor& gradient);

  parallel::Mesh& mesh_;
  parallel::ZeroStore& store_;
  Buffer rows_;         ///< per data rank: header, chunk sums
  Buffer device_sums_;  ///< of this rank's chunks, on a GPU
  std::vector<RankPhases> rank_phases_;
};

}  // namespace k25::optim
