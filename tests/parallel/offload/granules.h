#pragma once
// Memory whose address is a multiple of a file tier's granule.

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>

#include "parallel/offload/file_tier.h"

namespace k25::parallel {

class Granules {
 public:
  explicit Granules(std::int64_t count, unsigned char fill = 0)
      : size_(static_cast<std::size_t>(count * FileTier::kGranule.n)),
        memory_(static_cast<std::byte*>(
            std::aligned_alloc(static_cast<std::size_t>(FileTier::kGranule.n), size_))) {
    std::memset(memory_.get(), fill, size_);
  }
  std::span<std::byte> span() const { return {memory_.get(), size_}; }
  std::span<std::byte> part(std::int64_t first, std::int64_t count) const {
    return span().subspan(static_cast<std::size_t>(first * FileTier::kGranule.n),
                          static_cast<std::size_t>(count * FileTier::kGranule.n));
  }
  bool all(unsigned char value) const {
    for (const std::byte b : span()) {
      if (b != std::byte{value}) return false;
    }
    return true;
  }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::size_t size_;
  std::unique_ptr<std::byte, Free> memory_;
};

}  // namespace k25::parallel
