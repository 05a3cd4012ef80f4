#pragma once
// Memory with an owner. Ops never allocate; the trainer does, before step 0, through these types.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <mutex>
#include <span>
#include <vector>

#include "kernels/core/dtype.h"
#include "kernels/core/tensor.h"

namespace k25 {

inline constexpr std::int64_t kAlignment = 64;  ///< of every buffer and arena allocation, in bytes

constexpr std::int64_t align_up(std::int64_t n, std::int64_t to = kAlignment) {
  return (n + to - 1) / to * to;
}

/// What an object takes, by where: on the device it computes on, and in pinned host memory beside a
/// GPU (0 on the CPU).
struct Footprint {
  Bytes device, host;
  friend constexpr bool operator==(Footprint, Footprint) = default;
  friend constexpr Footprint operator+(Footprint a, Footprint b) {
    return {{a.device.n + b.device.n}, {a.host.n + b.host.n}};
  }
};

/// One live allocation. `name` is the category that its owner gave.
struct Allocation {
  const void* data = nullptr;
  Bytes size;
  const char* name = "";
};

/// Where buffers come from. `parallel` injects others (pinned, registered, device).
/// Counts what is live, so that a plan can be compared with the truth.
class Allocator {
 public:
  virtual ~Allocator() = default;
  virtual Device device() const = 0;

  /// kAlignment-aligned and zeroed; null for size 0. Throws kUsage when there is not enough.
  /// `name` (a literal) says what it is for.
  void* allocate(Bytes size, const char* name = "");
  /// `size` as given to allocate. A null pointer is ignored.
  void deallocate(void* data, Bytes size) noexcept;

  Bytes live() const { return Bytes{live_.load()}; }
  Bytes peak() const { return Bytes{peak_.load()}; }
  /// What is live, in the order in which it was allocated. Callable from any thread.
  std::vector<Allocation> allocations() const;

 protected:
  virtual void* do_allocate(Bytes size) = 0;
  virtual void do_deallocate(void* data, Bytes size) noexcept = 0;

 private:
  std::atomic<std::int64_t> live_{0};
  std::atomic<std::int64_t> peak_{0};
  mutable std::mutex mutex_;
  std::vector<Allocation> allocations_;  ///< a few dozen: all of them are made before step 0
};

/// Ordinary host memory.
class HostAllocator : public Allocator {
 public:
  Device device() const override { return Device::kCpu; }

 protected:
  void* do_allocate(Bytes size) override;
  void do_deallocate(void* data, Bytes size) noexcept override;
};

/// Throws kUsage as HostAllocator does when the system would not give so much now. Takes nothing:
/// for the moment before a call into a library that crashes where it is refused memory.
void require_host_memory(Bytes size);

/// Move-only owner of one allocation. A zero-sized buffer has a null pointer.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Bytes size, Allocator& allocator, const char* name = "");
  ~Buffer();
  Buffer(Buffer&& o) noexcept;
  Buffer& operator=(Buffer&& o) noexcept;

  void* data() const noexcept { return data_; }
  Bytes size() const noexcept { return size_; }
  Device device() const noexcept { return device_; }

  /// A contiguous view at `offset` bytes; throws when it does not fit.
  Tensor view(DType dtype, std::initializer_list<std::int64_t> shape, Bytes offset = {}) const;

 private:
  void* data_ = nullptr;
  Bytes size_{};
  Device device_ = Device::kCpu;
  Allocator* allocator_ = nullptr;
};

/// Bump allocation inside one buffer. mark/rewind free everything taken since.
/// A measuring arena owns nothing and hands out null views: running the same sequence through it
/// gives the bytes to plan.
class Arena {
 public:
  Arena() = default;  ///< measuring
  Arena(Bytes capacity, Allocator& allocator, const char* name = "");

  /// kAlignment-aligned, not zeroed. Throws kInternal when the plan was too small.
  Tensor take(DType dtype, std::span<const std::int64_t> shape);
  Tensor take(DType dtype, std::initializer_list<std::int64_t> shape) {
    return take(dtype, std::span<const std::int64_t>(shape.begin(), shape.size()));
  }

  struct Mark {
    std::int64_t used = 0;
  };
  Mark mark() const { return {used_}; }
  /// Marks are rewound in reverse order; throws kInternal for a mark above what is in use.
  void rewind(Mark m);

  Bytes used() const { return Bytes{used_}; }
  Bytes peak() const { return Bytes{peak_}; }
  Bytes capacity() const { return buffer_.size(); }
  bool measuring() const { return measuring_; }

 private:
  Buffer buffer_;
  std::int64_t used_ = 0;
  std::int64_t peak_ = 0;
  bool measuring_ = true;
};

}  // namespace k25
