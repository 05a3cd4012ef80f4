#include "kernels/core/buffer.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "kernels/core/check.h"

namespace k25 {

void* Allocator::allocate(Bytes size, const char* name) {
  K25_CHECK(size.n >= 0,
            "an allocation's size must not be negative, got " + std::to_string(size.n));
  if (size.n == 0) return nullptr;
  void* data = do_allocate(size);
  {
    const std::lock_guard lock(mutex_);
    allocations_.push_back({data, size, name});
  }
  const std::int64_t live = live_.fetch_add(size.n) + size.n;
  std::int64_t peak = peak_.load();
  while (peak < live && !peak_.compare_exchange_weak(peak, live)) {
  }
  return data;
}

void Allocator::deallocate(void* data, Bytes size) noexcept {
  if (data == nullptr) return;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(allocations_, [&](const Allocation& a) { return a.data == data; });
  }
  do_deallocate(data, size);
  live_.fetch_sub(size.n);
}

std::vector<Allocation> Allocator::allocations() const {
  const std::lock_guard lock(mutex_);
  return allocations_;
}

void* HostAllocator::do_allocate(Bytes size) {
  constexpr std::int64_t kMost = std::int64_t{1} << 62;  // align_up must not overflow
  void* data = size.n > kMost
                   ? nullptr
                   : std::aligned_alloc(kAlignment, static_cast<std::size_t>(align_up(size.n)));
  if (data == nullptr) {
    fail(ErrorKind::kUsage, out_of_memory(std::to_string(size.n) + " bytes"));
  }
  std::memset(data, 0, static_cast<std::size_t>(align_up(size.n)));
  return data;
}

void HostAllocator::do_deallocate(void* data, Bytes) noexcept { std::free(data); }

void require_host_memory(Bytes size) {
  K25_CHECK(size.n > 0, "memory to look for must be more than " + std::to_string(size.n));
  const auto bytes = static_cast<std::size_t>(size.n);
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    fail(ErrorKind::kUsage, out_of_memory(std::to_string(size.n) + " bytes"));
  }
  munmap(data, bytes);
}

Buffer::Buffer(Bytes size, Allocator& allocator, const char* name)
    : data_(allocator.allocate(size, name)),
      size_(size),
      device_(allocator.device()),
      allocator_(&allocator) {}

Buffer::~Buffer() {
  if (data_ != nullptr) allocator_->deallocate(data_, size_);
}

Buffer::Buffer(Buffer&& o) noexcept
    : data_(std::exchange(o.data_, nullptr)),
      size_(std::exchange(o.size_, Bytes{})),
      device_(o.device_),
      allocator_(o.allocator_) {}

Buffer& Buffer::operator=(Buffer&& o) noexcept {
  std::swap(data_, o.data_);
  std::swap(size_, o.size_);
  std::swap(device_, o.device_);
  std::swap(allocator_, o.allocator_);
  return *this;
}

Tensor Buffer::view(DType dtype, std::initializer_list<std::int64_t> shape, Bytes offset) const {
  const Bytes bytes = Tensor(nullptr, dtype, shape, device_).bytes();
  K25_CHECK(offset.n >= 0 && offset.n <= size_.n && bytes.n <= size_.n - offset.n,
            "a view of " + std::to_string(bytes.n) + " bytes at offset " +
                std::to_string(offset.n) + " lies outside the buffer of " +
                std::to_string(size_.n) + " bytes");
  char* data = data_ == nullptr ? nullptr : static_cast<char*>(data_) + offset.n;
  return Tensor(data, dtype, shape, device_);
}

Arena::Arena(Bytes capacity, Allocator& allocator, const char* name)
    : buffer_(capacity, allocator, name), measuring_(false) {}

Tensor Arena::take(DType dtype, std::span<const std::int64_t> shape) {
  const std::int64_t begin = used_;
  const std::int64_t end = begin + align_up(Tensor(nullptr, dtype, shape).bytes().n);
  if (!measuring_ && end > buffer_.size().n) {
    fail(ErrorKind::kInternal,
         "arena of " + std::to_string(buffer_.size().n) + " bytes is too small: " +
             std::to_string(begin) + " are in use and " + shape_string(shape) + " " +
             std::string(dtype_name(dtype)) + " needs " + std::to_string(end - begin) + " more");
  }
  used_ = end;
  if (used_ > peak_) peak_ = used_;
  char* base = static_cast<char*>(buffer_.data());
  return Tensor(base == nullptr ? nullptr : base + begin, dtype, shape, buffer_.device());
}

void Arena::rewind(Mark m) {
  if (m.used < 0 || m.used > used_) {
    fail(ErrorKind::kInternal, "arena rewound to " + std::to_string(m.used) + " with only " +
                                   std::to_string(used_) + " bytes in use");
  }
  used_ = m.used;
}

}  // namespace k25
