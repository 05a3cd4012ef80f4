#include "kernels/core/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <thread>
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

std::vector<int> allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  EXPECT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

// Runs one block on each of `threads` threads; returns the CPUs that each may use, the caller's
// last.
std::vector<std::vector<int>> cpus_of_threads(ThreadPool& pool, int threads) {
  std::vector<std::vector<int>> seen, caller;
  const auto me = std::this_thread::get_id();
  std::mutex mutex;
  std::atomic<int> arrived{0};
  pool.parallel_for(threads, 1, [&](std::int64_t, std::int64_t) {
    {
      const std::lock_guard lock(mutex);
      (std::this_thread::get_id() == me ? caller : seen).push_back(allowed_cpus());
    }
    ++arrived;
    while (arrived < threads) std::this_thread::yield();  // so that no thread takes two
  });
  std::ranges::sort(seen);
  seen.insert(seen.end(), caller.begin(), caller.end());
  return seen;
}

TEST(ThreadPool, WorkersAreBoundAndTheCallerIsNot) {
  const std::vector<int> mine = allowed_cpus();
  const int last = mine.back();
  const std::vector<int> cpus = {mine.front(), last};
  ThreadPool pool(2, cpus);
  EXPECT_EQ(cpus_of_threads(pool, 2), (std::vector<std::vector<int>>{{last}, mine}));
  ThreadPool longer(3, cpus);  // the third runs anywhere
  std::vector<std::vector<int>> expected = {{last}, mine};
  std::ranges::sort(expected);
  expected.push_back(mine);
  EXPECT_EQ(cpus_of_threads(longer, 3), expected);
}

TEST(ThreadPool, CpusThatAreNotThereChangeNothing) {
  const std::vector<int> mine = allowed_cpus();
  const std::vector<int> cpus = {0, -1, CPU_SETSIZE - 1, CPU_SETSIZE + 7};
  ThreadPool pool(4, cpus);
  EXPECT_EQ(cpus_of_threads(pool, 4), (std::vector<std::vector<int>>(4, mine)));
}

TEST(ThreadPool, BindingThisThread) {
  std::thread([] {
    const int cpu = allowed_cpus().back();
    bind_this_thread(cpu);
    EXPECT_EQ(allowed_cpus(), std::vector<int>{cpu});
  }).join();
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

// The caller has claimed and run its blocks and waits; only the worker is still inside the loop.
TEST(ThreadPool, AWorkerDoesNotNestAfterTheCallerHasFinished) {
  ThreadPool pool(2);
  const std::thread::id caller = std::this_thread::get_id();
  std::atomic<int> inside{0};
  std::atomic<int> refused{0};
  pool.parallel_for(2, 1, [&](std::int64_t, std::int64_t) {
    ++inside;
    while (inside.load() < 2) std::this_thread::yield();  // one block on each thread
    if (std::this_thread::get_id() == caller) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    try {
      pool.parallel_for(2, 1, [](std::int64_t, std::int64_t) {});
    } catch (const Error& e) {
      if (e.kind() == ErrorKind::kInternal) ++refused;
    }
  });
  EXPECT_EQ(refused.load(), 1);
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
