#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "parallel/expert/expert_dispatcher.h"
#include "tests/kernels/op_test.h"
#include "tests/mpi_main.h"

namespace k25::parallel {
namespace {

using op_test::GuardedTensor;
using op_test::throws_error;

Communicator& comm() { return test_world().comm(); }
int rank() { return comm().rank(); }
int ranks() { return comm().size(); }

constexpr std::int64_t kUnlimited = ExpertDispatcher::kUnlimited;

/// Rows of rank `source` for expert `e`; what a test asks for.
using Counts = std::function<std::int64_t(int source, std::int64_t e)>;

struct Case {
  std::string name;
  std::int64_t experts;
  Counts counts;
};

std::vector<Case> cases() {
  return {
      {"uneven", 7, [](int s, std::int64_t e) { return (s * 5 + e * 3) % 4; }},
      {"one expert gets all", 6, [](int, std::int64_t e) { return e == 4 ? 9 : 0; }},
      {"rank 0 has no rows", 5, [](int s, std::int64_t e) { return s == 0 ? 0 : e + 1; }},
      {"only the last rank has rows", 4,
       [](int s, std::int64_t) { return s + 1 == ranks() ? 3 : 0; }},
      {"fewer experts than ranks", 2, [](int s, std::int64_t e) { return s + e; }},
      {"one expert", 1, [](int s, std::int64_t) { return s % 2 == 0 ? 5 : 0; }},
      {"no rows anywhere", 8, [](int, std::int64_t) { return 0; }},
  };
}

/// This rank's rows: each holds its expert, its rank, its number within the two, and a fraction.
constexpr std::int64_t kCols = 4;
std::vector<double> tagged_rows(const Case& c, int source) {
  std::vector<double> rows;
  for (std::int64_t e = 0; e < c.experts; ++e) {
    for (std::int64_t i = 0; i < c.counts(source, e); ++i) {
      rows.insert(rows.end(), {static_cast<double>(e), static_cast<double>(source),
                               static_cast<double>(i), 0.1 * static_cast<double>(i) - 0.3});
    }
  }
  return rows;
}

ExpertRoute routed(const ExpertDispatcher& dispatcher, const Case& c) {
  GuardedTensor count(DType::kInt64, {c.experts});
  for (std::int64_t e = 0; e < c.experts; ++e) {
    count.set(e, static_cast<double>(c.counts(rank(), e)));
  }
  ExpertRoute route = dispatcher.make_route();
  dispatcher.start_counts("counts", count, route).wait();
  dispatcher.finish_counts(route);
  return route;
}

/// Every call compared across ranks, and cut into messages of a few rows.
class Checked {
 public:
  Checked() {
    test_world().configure({.timeout = kTimeout, .max_chunk = Bytes{61}, .check = true});
  }
  ~Checked() { test_world().configure({.timeout = kTimeout}); }
  Checked(const Checked&) = delete;
  Checked& operator=(const Checked&) = delete;

 private:
  static constexpr std::chrono::seconds kTimeout{30};
};

/// What all rounds bring here, one after the other.
std::vector<double> dispatch_all(Context& ctx, const ExpertDispatcher& dispatcher,
                                 const ExpertRoute& route, const GuardedTensor& rows) {
  std::vector<double> all;
  for (int r = 0; r < route.rounds(); ++r) {
    const GuardedTensor held(rows.dtype(), {route.rows(r), kCols});
    const GuardedTensor staging(rows.dtype(), {route.rows(r), kCols});
    dispatcher.dispatch(ctx, "rows", route, r, {rows, held, staging});
    EXPECT_TRUE(held.guards_intact() && staging.guards_intact());
    const std::vector<double> values = held.get();
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

/// The way back of `dispatch_all`; rows start as unwritten.
GuardedTensor collect_all(Context& ctx, const ExpertDispatcher& dispatcher,
                          const ExpertRoute& route, DType dtype, const std::vector<double>& held) {
  GuardedTensor rows(dtype, {route.source_rows(), kCols});
  auto next = held.begin();
  for (int r = 0; r < route.rounds(); ++r) {
    const auto end = next + route.rows(r) * kCols;
    const GuardedTensor part(dtype, {route.rows(r), kCols}, std::vector<double>(next, end));
    const GuardedTensor staging(dtype, {route.rows(r), kCols});
    dispatcher.collect(ctx, "rows back", route, r, {rows, part, staging});
    next = end;
  }
  EXPECT_EQ(next, held.end());
  EXPECT_TRUE(rows.guards_intact());
  return rows;
}

double sum_over_ranks(double value) {
  comm().all_reduce_small({"sum"}, {.values = &value, .count = 1}).wait();
  return value;
}

TEST(ExpertRange, CoversAllExpertsOnce) {
  for (const std::int64_t experts : {1, 2, 7, 8, 256}) {
    for (const int size : {1, 2, 3, 4, 9}) {
      std::int64_t next = 0;
      for (int r = 0; r < size; ++r) {
        const ExpertRange range = experts_of(experts, size, r);
        EXPECT_EQ(range.first, next);
        EXPECT_GE(range.count, experts / size);
        EXPECT_LE(range.count, experts / size + 1);
        next += range.count;
      }
      EXPECT_EQ(next, experts);
    }
  }
}

// By expert, then source rank, then token, whatever the capacity; rounds of at most that many.
TEST(ExpertDispatcher, RowsArriveInTheOrderOfOneRank) {
  const Checked checked;
  ThreadPool pool(3);
  Context ctx = op_test::make_context(detect_cpu_isa(), &pool);
  for (const Case& c : cases()) {
    std::int64_t fullest = 0;
    for (int d = 0; d < ranks(); ++d) {
      const ExpertRange range = experts_of(c.experts, ranks(), d);
      std::int64_t rows = 0;
      for (std::int64_t e = range.first; e < range.first + range.count; ++e) {
        for (int s = 0; s < ranks(); ++s) rows += c.counts(s, e);
      }
      fullest = std::max(fullest, rows);
    }
    for (const std::int64_t capacity :
         {std::int64_t{1}, std::int64_t{4}, fullest + 1, kUnlimited}) {
      SCOPED_TRACE(c.name + ", capacity " + std::to_string(capacity));
      const ExpertDispatcher dispatcher(comm(), c.experts, capacity);
      const ExpertRoute route = routed(dispatcher, c);
      EXPECT_EQ(route.rounds(), capacity == 1   ? fullest
                                : capacity == 4 ? (fullest + 3) / 4
                                                : (fullest > 0 ? 1 : 0));
      const GuardedTensor rows(DType::kFloat32, {route.source_rows(), kCols},
                               tagged_rows(c, rank()));
      const std::vector<double> got = dispatch_all(ctx, dispatcher, route, rows);
      std::vector<double> expected, borders;
      const ExpertRange held = dispatcher.held();
      for (std::int64_t e = held.first; e < held.first + held.count; ++e) {
        for (int s = 0; s < ranks(); ++s) {
          const std::vector<double> theirs = tagged_rows(c, s);
          for (std::size_t i = 0; i < theirs.size(); i += kCols) {
            if (theirs[i] != static_cast<double>(e)) continue;
            const auto row = theirs.begin() + static_cast<std::ptrdiff_t>(i);
            expected.insert(expected.end(), row, row + kCols);
          }
        }
      }
      const GuardedTensor rounded(DType::kFloat32, {static_cast<std::int64_t>(expected.size())},
                                  expected);
      EXPECT_EQ(got, rounded.get());

      // The borders say which rows of a round are whose.
      std::size_t row = 0;
      for (int r = 0; r < route.rounds(); ++r) {
        EXPECT_LE(route.rows(r), capacity);
        const auto* offset = route.offset(r).data<std::int64_t>();
        EXPECT_EQ(offset[0], 0);
        for (std::int64_t i = 0; i < held.count; ++i) {
          for (std::int64_t n = offset[i]; n < offset[i + 1]; ++n, row += kCols) {
            EXPECT_EQ(got[row], static_cast<double>(held.first + i));
          }
        }
      }
      EXPECT_EQ(row, got.size());
    }
  }
}

TEST(ExpertDispatcher, CollectUndoesDispatchBitByBit) {
  Context ctx = op_test::make_context();
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat64}) {
    for (const Case& c : cases()) {
      for (const std::int64_t capacity : {std::int64_t{3}, kUnlimited}) {
        SCOPED_TRACE(c.name + ", capacity " + std::to_string(capacity));
        const ExpertDispatcher dispatcher(comm(), c.experts, capacity);
        const ExpertRoute route = routed(dispatcher, c);
        const GuardedTensor rows = op_test::random_tensor("rows" + std::to_string(rank()), dtype,
                                                          {route.source_rows(), kCols});
        const std::vector<double> held = dispatch_all(ctx, dispatcher, route, rows);
        EXPECT_EQ(collect_all(ctx, dispatcher, route, dtype, held).bits(), rows.bits());
      }
    }
  }
}

// <dispatch x, y> = <x, collect y>, summed over the ranks, with one handle used for both.
TEST(ExpertDispatcher, EachIsTheOthersAdjoint) {
  Context ctx = op_test::make_context();
  for (const Case& c : cases()) {
    for (const std::int64_t capacity : {std::int64_t{3}, kUnlimited}) {
      SCOPED_TRACE(c.name);
      const ExpertDispatcher dispatcher(comm(), c.experts, capacity);
      const ExpertRoute route = routed(dispatcher, c);
      const std::string me = std::to_string(rank());
      const GuardedTensor x =
          op_test::random_tensor("x" + me, DType::kFloat64, {route.source_rows(), kCols});
      const std::vector<double> there = dispatch_all(ctx, dispatcher, route, x);
      const std::vector<double> y =
          op_test::random_values("y" + me, static_cast<std::int64_t>(there.size()));
      const GuardedTensor back = collect_all(ctx, dispatcher, route, DType::kFloat64, y);
      const double left = sum_over_ranks(op_test::weighted_sum(there, y));
      const double right = sum_over_ranks(op_test::weighted_sum(x.get(), back.get()));
      EXPECT_NEAR(left, right, 1e-12 * std::max(1.0, std::abs(left)));
    }
  }
}

// One route after the other, fuller and emptier, with the memory of the first.
TEST(ExpertDispatcher, ARouteIsUsedAgain) {
  Context ctx = op_test::make_context();
  const ExpertDispatcher dispatcher(comm(), 6, 5);
  ExpertRoute route = dispatcher.make_route();
  for (const std::int64_t most : {9, 0, 2}) {
    const Case c{"again", 6,
                 [most](int s, std::int64_t e) { return most == 0 ? 0 : (s + e) % most; }};
    GuardedTensor count(DType::kInt64, {6});
    for (std::int64_t e = 0; e < 6; ++e) count.set(e, static_cast<double>(c.counts(rank(), e)));
    dispatcher.start_counts("counts", count, route).wait();
    dispatcher.finish_counts(route);
    const GuardedTensor rows(DType::kFloat32, {route.source_rows(), kCols}, tagged_rows(c, rank()));
    const std::vector<double> held = dispatch_all(ctx, dispatcher, route, rows);
    EXPECT_EQ(collect_all(ctx, dispatcher, route, DType::kFloat32, held).bits(), rows.bits());
  }
}

TEST(ExpertDispatcher, RefusesWhatDoesNotFit) {
  Context ctx = op_test::make_context();
  const ErrorKind usage = ErrorKind::kUsage;
  EXPECT_TRUE(throws_error([] { ExpertDispatcher(comm(), 4, 0); }, usage, {"capacity is 0 rows"}));
  EXPECT_TRUE(throws_error([] { ExpertDispatcher(comm(), 0, 1); }, usage, {"0 experts"}));
  const ExpertDispatcher dispatcher(comm(), 4, kUnlimited);
  ExpertRoute route = dispatcher.make_route();
  EXPECT_TRUE(throws_error([&] { route.offset(0); }, usage, {"round 0 of a route with 0 rounds"}));
  const GuardedTensor bad(DType::kInt64, {4}, std::vector<double>{1, 2, -3, 4});
  EXPECT_TRUE(throws_error([&] { dispatcher.start_counts("counts", bad, route); }, usage,
                           {"the count of expert 2 is -3"}));
  const GuardedTensor few(DType::kInt64, {3}, std::vector<double>{1, 2, 3});
  EXPECT_TRUE(throws_error([&] { dispatcher.start_counts("counts", few, route); }, usage,
                           {"count_E is int64 [3]", "expected int64 [4]"}));
  const ExpertDispatcher other(comm(), 5, kUnlimited);
  const GuardedTensor good(DType::kInt64, {4}, std::vector<double>{2, 2, 2, 2});
  ExpertRoute foreign = other.make_route();
  EXPECT_TRUE(throws_error([&] { dispatcher.start_counts("counts", good, foreign); }, usage,
                           {"not made by this dispatcher"}));
  dispatcher.start_counts("counts", good, route).wait();
  dispatcher.finish_counts(route);
  const GuardedTensor rows(DType::kFloat32, {8, kCols}), short_rows(DType::kFloat32, {7, kCols});
  const GuardedTensor held(DType::kFloat32, {route.rows(0), kCols});
  const GuardedTensor wide(DType::kFloat32, {route.rows(0) + 1, kCols});
  EXPECT_TRUE(
      throws_error([&] { dispatcher.dispatch(ctx, "rows", route, 0, {short_rows, held, held}); },
                   usage, {"rows_RD is fp32 [7, 4]", "expected fp32 [8, 4]"}));
  EXPECT_TRUE(throws_error([&] { dispatcher.collect(ctx, "rows", route, 0, {rows, wide, held}); },
                           usage, {"held_MD is fp32"}));
  EXPECT_TRUE(throws_error([&] { dispatcher.dispatch(ctx, "rows", route, 1, {rows, held, held}); },
                           usage, {"round 1 of a route with 1 rounds"}));
}

}  // namespace
}  // namespace k25::parallel
