#pragma once
// Tensors as the host sees them, wherever they live. None of this is for a step: on a GPU every
// call waits.

#include <cstring>
#include <functional>
#include <memory>

#include "kernels/core/device.h"

namespace k25 {

/// Copies a contiguous tensor to host memory of the same size.
inline void read_to_host(const Context& context, const ConstTensor& t, void* host) {
  if constexpr (kWithCuda) {
    if (t.device() == Device::kCuda) {
      copy_bytes(context, t.raw(), host, t.bytes());
      return synchronize(context);
    }
  }
  if (t.numel() > 0) std::memcpy(host, t.raw(), static_cast<std::size_t>(t.bytes().n));
}

/// Copies host memory of the same size to a contiguous tensor.
inline void write_from_host(const Context& context, const void* host, const Tensor& t) {
  if constexpr (kWithCuda) {
    if (t.device() == Device::kCuda) {
      copy_bytes(context, host, t.raw(), t.bytes());
      return synchronize(context);
    }
  }
  if (t.numel() > 0) std::memcpy(t.raw(), host, static_cast<std::size_t>(t.bytes().n));
}

/// Lets `fill` write every element of a contiguous tensor: in place, or into a copy on the host.
template <class Fill>
void fill_on_host(const Context& context, const Tensor& t, const Fill& fill) {
  if (t.numel() == 0) return;
  if (t.device() == Device::kCpu) return fill(t);
  const std::unique_ptr<char[]> host(new char[static_cast<std::size_t>(t.bytes().n)]);
  fill(t.at(host.get(), Device::kCpu));
  write_from_host(context, host.get(), t);
}

}  // namespace k25
