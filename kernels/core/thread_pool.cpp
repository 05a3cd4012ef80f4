#include "kernels/core/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "kernels/core/check.h"

namespace k25 {

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return CPU_COUNT(&set);
}

void bind_this_thread(int cpu) {
  if (cpu < 0 || cpu >= CPU_SETSIZE) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  sched_setaffinity(0, sizeof set, &set);  // of this thread; where that fails it runs as before
}

struct ThreadPool::State {
  std::mutex mutex;
  std::condition_variable wake;
  std::condition_variable finished;
  std::uint64_t generation = 0;  // counts loops; a worker joins each at most once
  bool open = false;             // a loop may be joined
  bool stop = false;
  int active = 0;  // workers inside the loop

  const Body* body = nullptr;
  std::int64_t count = 0;
  std::int64_t grain = 1;
  std::atomic<std::int64_t> next{0};

  std::vector<std::thread> workers;

  void run_blocks() {
    for (;;) {
      const std::int64_t begin = next.fetch_add(grain);
      if (begin >= count) return;
      (*body)(begin, std::min(begin + grain, count));
    }
  }

  void work() {
    std::uint64_t seen = 0;
    std::unique_lock lock(mutex);
    for (;;) {
      wake.wait(lock, [&] { return stop || (open && generation != seen); });
      if (stop) return;
      seen = generation;
      ++active;
      lock.unlock();
      run_blocks();
      lock.lock();
      if (--active == 0) finished.notify_one();
    }
  }

  void join() {
    {
      std::lock_guard lock(mutex);
      stop = true;
    }
    wake.notify_all();
    for (std::thread& t : workers) t.join();
  }
};

ThreadPool::ThreadPool(int num_threads, std::span<const int> cpus)
    : state_(std::make_unique<State>()) {
  K25_CHECK(num_threads >= 1,
            "a thread pool needs at least 1 thread, not " + std::to_string(num_threads));
  state_->workers.reserve(static_cast<std::size_t>(num_threads) - 1);
  try {
    for (int i = 1; i < num_threads; ++i) {
      const auto place = static_cast<std::size_t>(i);
      const int cpu = place < cpus.size() ? cpus[place] : -1;
      state_->workers.emplace_back([s = state_.get(), cpu] {
        bind_this_thread(cpu);
        s->work();
      });
    }
  } catch (const std::system_error& e) {
    const std::size_t started = state_->workers.size() + 1;
    state_->join();
    fail(ErrorKind::kUsage, "the system gives only " + std::to_string(started) + " of " +
                                std::to_string(num_threads) + " threads (" + e.what() +
                                "): " + thread_limits());
  }
}

ThreadPool::~ThreadPool() { state_->join(); }

int ThreadPool::num_threads() const { return static_cast<int>(state_->workers.size()) + 1; }

void ThreadPool::parallel_for(std::int64_t count, std::int64_t grain, const Body& body) {
  State& s = *state_;
  if (s.workers.empty() || count <= grain) return k25::parallel_for(nullptr, count, grain, body);
  K25_CHECK(grain >= 1, "parallel_for: grain must be at least 1, not " + std::to_string(grain));
  {
    std::lock_guard lock(s.mutex);
    // A loop whose last block is claimed is no longer open, but a worker may still be inside it.
    if (s.open || s.active > 0) {
      fail(ErrorKind::kInternal, "parallel_for inside a loop of the same pool");
    }
    s.body = &body;
    s.count = count;
    s.grain = grain;
    s.next = 0;
    s.open = true;
    ++s.generation;
  }
  s.wake.notify_all();
  s.run_blocks();
  // Every block has been claimed. A worker that has not woken up yet is not waited for.
  std::unique_lock lock(s.mutex);
  s.open = false;
  s.finished.wait(lock, [&] { return s.active == 0; });
}

void parallel_for(ThreadPool* pool, std::int64_t count, std::int64_t grain,
                  const ThreadPool::Body& body) {
  if (pool != nullptr) return pool->parallel_for(count, grain, body);
  K25_CHECK(grain >= 1, "parallel_for: grain must be at least 1, not " + std::to_string(grain));
  for (std::int64_t begin = 0; begin < count; begin += grain) {
    body(begin, std::min(begin + grain, count));
  }
}

}  // namespace k25
