#include "kernels/core/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "tests/kernels/op_test.h"

namespace k25 {
namespace {

using op_test::throws_error;

TEST(ThreadPool, EveryIndexRunsOnceInTheSameBlocks) {
  for (int threads = 1; threads <= 5; ++threads) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.num_threads(), threads);
    for (const auto& [count, grain] : std::vector<std::pair<std::int64_t, std::int64_t>>{
             {0, 1}, {1, 1}, {7, 3}, {100, 1}, {100, 7}, {100, 100}, {100, 1000}, {1000, 13}}) {
      std::vector<std::atomic<int>> runs(static_cast<std::size_t>(count));
      std::mutex mutex;
      std::set<std::pair<std::int64_t, std::int64_t>> blocks;
      parallel_for(&pool, count, grain, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) ++runs[static_cast<std::size_t>(i)];
        const std::lock_guard lock(mutex);
        blocks.emplace(begin, end);
      });
      for (const auto& r : runs) ASSERT_EQ(r.load(), 1);
      std::set<std::pair<std::int64_t, std::int64_t>> expected;
      for (std::int64_t b = 0; b < count; b += grain) {
        expected.emplace(b, std::min(b + grain, count));
      }
      EXPECT_EQ(blocks, expected) << count << " by " << grain << ", " << threads << " threads";
    }
  }
}

TEST(ThreadPool, WithoutAPoolBlocksRunInOrder) {
  std::vector<std::pair<std::int64_t, std::int64_t>> blocks;
  parallel_for(nullptr, 10, 4,
               [&](std::int64_t begin, std::int64_t end) { blocks.emplace_back(begin, end); });
  EXPECT_EQ(blocks, (std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 4}, {4, 8}, {8, 10}}));
}

TEST(ThreadPool, ManyLoopsInARow) {
  // Workers that wake up late for one loop must neither miss nor repeat blocks of the next.
  ThreadPool pool(4);
  for (std::int64_t round = 1; round <= 3000; ++round) {
    std::atomic<std::int64_t> sum{0};
    pool.parallel_for(5, 1, [&](std::int64_t begin, std::int64_t) { sum += begin + round; });
    ASSERT_EQ(sum.load(), 10 + 5 * round);
  }
}

TEST(ThreadPool, WritesOfTheBodyAreSeenAfterTheLoop) {
  ThreadPool pool(3);
  std::vector<int> values(10000);
  pool.parallel_for(10000, 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      values[static_cast<std::size_t>(i)] = static_cast<int>(i);
    }
  });
  for (int i = 0; i < 10000; ++i) ASSERT_EQ(values[static_cast<std::size_t>(i)], i);
}

TEST(ThreadPool, LoopsNestOverAnotherPoolOrNone) {
  ThreadPool outer(3), inner(2);
  std::atomic<int> runs{0};
  outer.parallel_for(6, 1, [&](std::int64_t, std::int64_t) {
    parallel_for(nullptr, 5, 2,
                 [&](std::int64_t b, std::int64_t e) { runs += static_cast<int>(e - b); });
  });
  EXPECT_EQ(runs.load(), 30);
  parallel_for(nullptr, 4, 1, [&](std::int64_t, std::int64_t) {
    inner.parallel_for(5, 1,
                       [&](std::int64_t b, std::int64_t e) { runs += static_cast<int>(e - b); });
  });
  EXPECT_EQ(runs.load(), 50);
}

TEST(ThreadPool, LoopsOnTheSamePoolDoNotNest) {
  ThreadPool pool(2);
  std::atomic<int> refused{0};
  pool.parallel_for(2, 1, [&](std::int64_t, std::int64_t) {
    try {
      pool.parallel_for(2, 1, [](std::int64_t, std::int64_t) {});
    } catch (const Error& e) {
      if (e.kind() == ErrorKind::kInternal) ++refused;
    }
  });
  EXPECT_EQ(refused.load(), 2);
  // The pool still works.
  std::atomic<int> runs{0};
  pool.parallel_for(8, 1, [&](std::int64_t, std::int64_t) { ++runs; });
  EXPECT_EQ(runs.load(), 8);
}

TEST(ThreadPool, BadArguments) {
  for (const int n : {0, -3}) {
    EXPECT_TRUE(throws_error([n] { ThreadPool pool(n); }, ErrorKind::kUsage,
                             {"at least 1 thread", std::to_string(n)}));
  }
  ThreadPool pool(2);
  for (ThreadPool* p : {static_cast<ThreadPool*>(nullptr), &pool}) {
    for (const std::int64_t grain : {0, -1}) {
      EXPECT_TRUE(
          throws_error([&] { parallel_for(p, 3, grain, [](std::int64_t, std::int64_t) {}); },
                       ErrorKind::kUsage, {"grain must be at least 1"}));
    }
  }
}

}  // namespace
}  // namespace k25
