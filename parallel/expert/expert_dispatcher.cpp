#include "parallel/expert/expert_dispatcher.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>

#include "kernels/core/operand.h"

namespace k25::parallel {
namespace {

constexpr const char* kOp = "expert dispatch";

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

/// One side of an all_to_all_v: a block for each rank.
struct Blocks {
  std::vector<Bytes> offsets, sizes;

  void add(std::int64_t first_row, std::int64_t rows, std::int64_t row_bytes) {
    offsets.push_back(Bytes{first_row * row_bytes});
    sizes.push_back(Bytes{rows * row_bytes});
  }
};

void check_rows(const char* name, const ConstTensor& t, DType dtype, std::int64_t rows,
                std::int64_t cols) {
  check_operand(kOp, name, t, dtype, {rows, cols}, Density::kContiguous);
}

}  // namespace

ExpertRange experts_of(std::int64_t experts, int ranks, int rank) {
  K25_CHECK(
      experts >= 1 && ranks >= 1 && rank >= 0 && rank < ranks,
      fmt::format("{}: no experts for rank {} of {} with {} experts", kOp, rank, ranks, experts));
  const std::int64_t first = rank * experts / ranks;
  return {first, (rank + std::int64_t{1}) * experts / ranks - first};
}

std::int64_t ExpertRoute::rows(int round) const {
  return offset(round).data<std::int64_t>()[held_.count];
}

ConstTensor ExpertRoute::offset(int round) const {
  K25_CHECK(round >= 0 && round < rounds_,
            fmt::format("{}: round {} of a route with {} rounds", kOp, round, rounds_));
  const std::int64_t borders = held_.count + 1;
  return {offset_.data() + round * borders, DType::kInt64, {borders}};
}

ExpertDispatcher::ExpertDispatcher(Communicator& comm, std::int64_t experts, std::int64_t capacity)
    : comm_(comm),
      experts_(experts),
      capacity_(capacity),
      held_(experts_of(experts, comm.size(), comm.rank())) {
  K25_CHECK(capacity >= 1,
            fmt::format("{}: the capacity is {} rows, it must be at least 1", kOp, capacity));
}

ExpertRoute ExpertDispatcher::make_route() const {
  ExpertRoute route;
  route.held_ = held_;
  route.counts_.assign(at(comm_.size() * experts_), 0);
  route.held_start_.assign(route.counts_.size(), 0);
  route.source_start_.assign(at(experts_), 0);
  return route;
}

Work ExpertDispatcher::start_counts(std::string_view name, const ConstTensor& count_E,
                                    ExpertRoute& route) const {
  check_operand(kOp, "count_E", count_E, DType::kInt64, {experts_}, Density::kContiguous);
  const auto* count = count_E.data<std::int64_t>();
  for (std::int64_t e = 0; e < experts_; ++e) {
    K25_CHECK(
        count[e] >= 0,
        fmt::format("{}: the count of expert {} is {}; counts are not negative", kOp, e, count[e]));
  }
  K25_CHECK(route.counts_.size() == at(comm_.size() * experts_),
            fmt::format("{}: the route was not made by this dispatcher", kOp));
  std::copy_n(count, experts_, route.counts_.data() + comm_.rank() * experts_);
  return comm_.all_gather({.name = name},
                          {.buffer = route.counts_.data(),
                           .per_rank = Bytes{experts_ * std::int64_t{sizeof(std::int64_t)}}});
}

void ExpertDispatcher::finish_counts(ExpertRoute& route) const {
  std::int64_t fullest = 0;
  for (int d = 0; d < comm_.size(); ++d) {
    const ExpertRange range = experts_of(experts_, comm_.size(), d);
    std::int64_t rows = 0;
    for (std::int64_t e = range.first; e < range.first + range.count; ++e) {
      for (int s = 0; s < comm_.size(); ++s) {
        route.held_start_[at(s * experts_ + e)] = rows;
        rows += route.counts_[at(s * experts_ + e)];
      }
    }
    fullest = std::max(fullest, rows);
  }
  route.source_rows_ = 0;
  for (std::int64_t e = 0; e < experts_; ++e) {
    route.source_start_[at(e)] = route.source_rows_;
    route.source_rows_ += route.counts_[at(comm_.rank() * experts_ + e)];
  }
  route.rounds_ = static_cast<int>(fullest / capacity_ + (fullest % capacity_ != 0 ? 1 : 0));
  route.offset_.assign(at(route.rounds_ * (held_.count + 1)), 0);
  for (int r = 0; r < route.rounds_; ++r) {
    std::int64_t* const offset = route.offset_.data() + r * (held_.count + 1);
    for (std::int64_t i = 0; i < held_.count; ++i) {
      offset[i + 1] = offset[i];
      for (int s = 0; s < comm_.size(); ++s) {
        offset[i + 1] += rows_before(route, s, held_.first + i, r + 1) -
                         rows_before(route, s, held_.first + i, r);
      }
    }
  }
}

std::int64_t ExpertDispatcher::rows_before(const ExpertRoute& route, std::int64_t source,
                                           std::int64_t expert, int round) const {
  const std::size_t i = at(source * experts_ + expert);
  // NOTE: what overflows lies above every row.
  std::int64_t border = 0;
  if (__builtin_mul_overflow(capacity_, std::int64_t{round}, &border)) border = INT64_MAX;
  return std::clamp(border - route.held_start_[i], std::int64_t{0}, route.counts_[i]);
}

void ExpertDispatcher::exchange(Context& ctx, std::string_view name, const ExpertRoute& route,
                                int round, const ExpertRows& operands, Direction direction) const {
  const Tensor& rows_RD = operands.rows_RD;
  const bool alone = comm_.size() == 1;
  const std::int64_t held_rows = route.rows(round);                        // and checks the round
  const Tensor& given = rows_RD.ndim() == 2 ? rows_RD : operands.held_MD;  // either may be absent
  const std::int64_t cols = given.ndim() == 2 ? given.dim(1) : 0;
  check_rows("rows_RD", rows_RD, given.dtype(), route.source_rows_, cols);
  check_rows("held_MD", operands.held_MD, given.dtype(), held_rows, cols);
  if (!alone) check_rows("staging_MD", operands.staging_MD, given.dtype(), held_rows, cols);

  const std::int64_t row_bytes = cols * dtype_bytes(given.dtype());
  Blocks tokens, experts;
  std::int64_t staged = 0;
  for (int d = 0; d < comm_.size(); ++d) {
    const ExpertRange range = experts_of(experts_, comm_.size(), d);
    std::int64_t before = 0, in_round = 0, arriving = 0;
    for (std::int64_t e = range.first; e < range.first + range.count; ++e) {
      const std::int64_t done = rows_before(route, comm_.rank(), e, round);
      before += done;
      in_round += rows_before(route, comm_.rank(), e, round + 1) - done;
    }
    for (std::int64_t e = held_.first; e < held_.first + held_.count; ++e) {
      arriving += rows_before(route, d, e, round + 1) - rows_before(route, d, e, round);
    }
    const std::int64_t first = range.count == 0 ? 0 : route.source_start_[at(range.first)];
    tokens.add(first + before, in_round, row_bytes);
    experts.add(staged, arriving, row_bytes);
    staged += arriving;
  }
  void* const staging = alone ? operands.held_MD.raw() : operands.staging_MD.raw();
  if (direction == Direction::kToTokens) {
    if (!alone) reorder(ctx, route, round, operands, direction);
    comm_
        .all_to_all_v({.name = name}, {staging, experts.offsets, experts.sizes, rows_RD.raw(),
                                       tokens.offsets, tokens.sizes})
        .wait();
  } else {
    comm_
        .all_to_all_v({.name = name}, {rows_RD.raw(), tokens.offsets, tokens.sizes, staging,
                                       experts.offsets, experts.sizes})
        .wait();
    if (!alone) reorder(ctx, route, round, operands, direction);
  }
}

/// Between staging (by source rank, then expert) and held (by expert, then source rank).
void ExpertDispatcher::reorder(Context& ctx, const ExpertRoute& route, int round,
                               const ExpertRows& operands, Direction direction) const {
  if (route.rows(round) == 0) return;
  const std::int64_t row_bytes = operands.held_MD.dim(1) * dtype_bytes(operands.held_MD.dtype());
  auto* const held = static_cast<char*>(operands.held_MD.raw());
  auto* const staging = static_cast<char*>(operands.staging_MD.raw());
  const std::int64_t last = held_.first + held_.count;
  const auto body = [&](std::int64_t source, std::int64_t) {
    std::int64_t staged = 0;
    for (std::int64_t s = 0; s <= source; ++s) {
      for (std::int64_t e = held_.first; e < last; ++e) {
        const std::int64_t before = rows_before(route, s, e, round);
        const std::int64_t rows = rows_before(route, s, e, round + 1) - before;
        if (s == source && rows > 0) {
          const std::int64_t first = capacity_ * round;  // of the round, in the experts' order
          const std::int64_t to = route.held_start_[at(s * experts_ + e)] + before - first;
          char* const a = held + to * row_bytes;
          char* const b = staging + staged * row_bytes;
          const auto bytes = static_cast<std::size_t>(rows * row_bytes);
          if (direction == Direction::kToExperts) {
            std::memcpy(a, b, bytes);
          } else {
            std::memcpy(b, a, bytes);
          }
        }
        staged += rows;
      }
    }
  };
  parallel_for(ctx.threads, comm_.size(), 1, std::ref(body));
}

void ExpertDispatcher::dispatch(Context& ctx, std::string_view name, const ExpertRoute& route,
                                int round, const ExpertRows& operands) const {
  exchange(ctx, name, route, round, operands, Direction::kToExperts);
}

void ExpertDispatcher::collect(Context& ctx, std::string_view name, const ExpertRoute& route,
                               int round, const ExpertRows& operands) const {
  exchange(ctx, name, route, round, operands, Direction::kToTokens);
}

}  // namespace k25::parallel
