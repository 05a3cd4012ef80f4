#pragma once
// A fixed set of worker threads for row-parallel CPU ops.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

namespace k25 {

/// The cores that this process may run on.
int available_cores();

/// Lets the calling thread run on `cpu` alone. A wish: what the system refuses changes nothing.
void bind_this_thread(int cpu);

/// Runs loop bodies on `num_threads` threads, the caller included.
///
/// parallel_for cuts [0, count) into blocks of `grain` iterations; the cut depends on count and
/// grain alone, so a body that writes only its own block gives the same bits for every thread
/// count. A body must not throw. One loop runs on a pool at a time: a body must not call
/// parallel_for on the same pool, nor may two threads (kInternal).
class ThreadPool {
 public:
  /// num_threads >= 1. Throws kUsage when the system does not give that many. `cpus`, one for each
  /// thread, bind the workers: the first belongs to the caller's thread, which is left alone (see
  /// bind_this_thread); threads beyond the list run anywhere.
  explicit ThreadPool(int num_threads, std::span<const int> cpus = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const;

  /// A body that captures at most two pointers is stored without an allocation (libstdc++).
  using Body = std::function<void(std::int64_t begin, std::int64_t end)>;
  /// grain >= 1; nothing runs when count <= 0.
  void parallel_for(std::int64_t count, std::int64_t grain, const Body& body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// parallel_for on `pool`, or the same blocks one after another when `pool` is null.
void parallel_for(ThreadPool* pool, std::int64_t count, std::int64_t grain,
                  const ThreadPool::Body& body);

}  // namespace k25
