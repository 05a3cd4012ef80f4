#pragma once
// Rows of a mixture of experts to the ranks that hold their experts, and back (the expert axis).
//
// A rank holds whole experts: rank p of P those in [p E / P, (p + 1) E / P), rounded down, so that
// any P goes, more ranks than experts too. On the tokens' side rows are sorted by expert, then
// token (moe_sort); on the experts' side by expert, then source rank, then token. That is the order
// which one rank alone would compute in, had it the tokens of all ranks in rank order.
//
//   ExpertRoute route = dispatcher.make_route();          // once; used again every micro-batch
//   Work counts = dispatcher.start_counts("layers.3", count_E, route);
//   ... the shared experts ...
//   counts.wait();  dispatcher.finish_counts(route);      // the one wait of the host
//   for (round of route.rounds()) {
//     dispatcher.dispatch(ctx, "layers.3", route, round, {rows_RD, held_MD, staging_MD});
//     ... experts, with route.offset(round) ...
//     dispatcher.collect(ctx, "layers.3", route, round, {rows_RD, held_MD, staging_MD});
//   }
//
// Adjoint   dispatch of one round copies each of its rows once, collect copies them back: each is
//           the other's transpose, for gradients as for activations. Backward uses forward's route:
//           it dispatches the gradients (and the activations again, if they were not kept), and
//           collects the gradient of the rows.
// Rounds    Nothing is dropped. No rank receives more than `capacity` rows a round; there are as
//           many rounds as the fullest rank needs, the same number on all ranks, none when no rank
//           has rows. A round holds the next rows of the experts' order, so an expert may be in
//           two.
// Bits      Rows are copied. With one round an expert's product has the rows, in the order, of one
//           rank's alone, hence its bits; with more rounds a product has fewer rows, and equal
//           results to rounding (kernels/gemm: the bits of a row depend on the number of rows).
// Legend    E experts, P ranks, R rows of this rank, M <= capacity rows that a round brings here,
//           B = held experts + 1 borders, D columns. rows: [R, D], held, staging: [M, D], one
//           dtype, contiguous, in host memory. count: [E] int64.
// Aliasing  staging overlaps neither of the others.
// Errors    kUsage, naming the expert or the operand, for a negative count and for shapes that do
//           not fit the route; as parallel/comm/communicator.h for what peers do.
// Source    DESIGN: data-dependent shapes are bounded, never dropped.

#include <cstdint>
#include <string_view>
#include <vector>

#include "kernels/core/context.h"
#include "kernels/core/tensor.h"
#include "parallel/comm/communicator.h"

namespace k25::parallel {

/// Experts [first, first + count).
struct ExpertRange {
  std::int64_t first = 0, count = 0;
};

/// What rank `rank` of `ranks` holds of `experts`.
ExpertRange experts_of(std::int64_t experts, int ranks, int rank);

/// Where the rows of one micro-batch go: the count matrix and what follows from it.
class ExpertRoute {
 public:
  int rounds() const { return rounds_; }
  /// Rows that round `round` brings to this rank.
  std::int64_t rows(int round) const;
  /// Their borders by held expert: [B] int64 in host memory, valid until the next finish_counts.
  /// A rank without experts has one border, 0.
  ConstTensor offset(int round) const;
  /// Rows of this rank's tokens, all rounds.
  std::int64_t source_rows() const { return source_rows_; }

 private:
  friend class ExpertDispatcher;
  ExpertRange held_;
  int rounds_ = 0;
  std::int64_t source_rows_ = 0;
  std::vector<std::int64_t> counts_;        ///< [P, E], rank s has counts[s, e] rows for e
  std::vector<std::int64_t> held_start_;    ///< [P, E], their place in the order of e's rank
  std::vector<std::int64_t> source_start_;  ///< [E], where this rank's rows for e begin
  std::vector<std::int64_t> offset_;        ///< [rounds, B]
};

/// Operands of both directions. One rank alone needs no staging.
struct ExpertRows {
  Tensor rows_RD;     ///< dispatch reads it; collect writes the round's rows and no other
  Tensor held_MD;     ///< dispatch writes it, collect reads it
  Tensor staging_MD;  ///< scratch
};

class ExpertDispatcher {
 public:
  /// `capacity`: rows, at least 1; kUnlimited is one round, however many rows that is. Equal on all
  /// ranks of `comm`, which must outlive this.
  ExpertDispatcher(Communicator& comm, std::int64_t experts, std::int64_t capacity);

  static constexpr std::int64_t kUnlimited = INT64_MAX;

  ExpertRange held() const { return held_; }
  ExpertRoute make_route() const;

  /// Collective. `count_E`, what moe_sort counted here, is copied; the route is not to be used
  /// until the Work is done and finish_counts was called.
  Work start_counts(std::string_view name, const ConstTensor& count_E, ExpertRoute& route) const;
  void finish_counts(ExpertRoute& route) const;

  /// Collective, both; they return when the rows are there.
  void dispatch(Context& ctx, std::string_view name, const ExpertRoute& route, int round,
                const ExpertRows& operands) const;
  void collect(Context& ctx, std::string_view name, const ExpertRoute& route, int round,
               const ExpertRows& operands) const;

 private:
  enum class Direction : std::uint8_t { kToExperts, kToTokens };
  void exchange(Context& ctx, std::string_view name, const ExpertRoute& route, int round,
                const ExpertRows& operands, Direction direction) const;
  void reorder(Context& ctx, const ExpertRoute& route, int round, const ExpertRows& operands,
               Direction direction) const;
  /// Rows of `source` for `expert` that lie below round `round` in the order of the expert's rank.
  std::int64_t rows_before(const ExpertRoute& route, std::int64_t source, std::int64_t expert,
                           int round) const;

  Communicator& comm_;
  std::int64_t experts_, capacity_;
  ExpertRange held_;
};

}  // namespace k25::parallel
