#pragma once
// Zeros where a tensor lies, in the order of its stream.

#include <cstring>
#include <functional>

#include "kernels/core/context.h"
#include "kernels/core/device.h"
#include "kernels/core/tensor.h"
#include "kernels/core/thread_pool.h"

namespace k25 {

/// `t` is contiguous.
inline void set_zero(Context& context, const Tensor& t) {
  constexpr std::int64_t kGrain = std::int64_t{1} << 18;  // bytes
  const Bytes bytes = t.bytes();
  if (bytes.n == 0) return;
  if constexpr (kWithCuda) {
    if (t.device() == Device::kCuda) return fill_bytes(context, t.raw(), 0, bytes);
  }
  auto* const data = static_cast<char*>(t.raw());
  const auto body = [data](std::int64_t begin, std::int64_t end) {
    std::memset(data + begin, 0, static_cast<std::size_t>(end - begin));
  };
  parallel_for(context.threads, bytes.n, kGrain, std::ref(body));
}

}  // namespace k25
