#pragma once
// Private to CUDA sources: rows of short heads, a group of lanes to each.

#include <cstdint>

#include "kernels/core/cuda_math.cuh"
#include "kernels/core/rows.h"

namespace k25::cuda {

template <class T>
__device__ __forceinline__ T* row_at(const StridedRows<T>& x, std::int64_t outer,
                                     std::int64_t inner) {
  return x.data + outer * x.outer_stride + inner * x.inner_stride;
}

/// True when every row begins at a border of the accesses that a Vec<T, N> makes; absent: true.
template <int N, class T>
bool vectors_fit(const StridedRows<T>& x, std::int64_t outer, std::int64_t inner) {
  constexpr auto kSize = static_cast<std::int64_t>(sizeof(T));
  constexpr std::int64_t kBytes = std::min<std::int64_t>(kVectorBytes, N * kSize);
  return x.data == nullptr ||
         (all_aligned(kBytes, x.data) && (outer <= 1 || x.outer_stride * kSize % kBytes == 0) &&
          (inner <= 1 || x.inner_stride * kSize % kBytes == 0));
}

/// Walks over the pairs (outer, inner), inner first, `step` at a time. first and step are below
/// 2^31 (numbers of threads), so that no division needs 64 bits.
class PairWalk {
 public:
  __device__ __forceinline__ PairWalk(std::int64_t first, std::int64_t step,
                                      std::int64_t inner_size)
      : inner_size_(inner_size) {
    const auto size = static_cast<std::uint32_t>(inner_size < UINT32_MAX ? inner_size : UINT32_MAX);
    outer = static_cast<std::uint32_t>(first) / size;
    inner = static_cast<std::uint32_t>(first) % size;
    step_outer_ = static_cast<std::uint32_t>(step) / size;
    step_inner_ = static_cast<std::uint32_t>(step) % size;
  }
  __device__ __forceinline__ void next() {
    outer += step_outer_;
    inner += step_inner_;
    if (inner >= inner_size_) {
      inner -= inner_size_;
      ++outer;
    }
  }

  std::int64_t outer, inner;

 private:
  std::int64_t inner_size_, step_outer_, step_inner_;
};

/// Lanes that share a row of `cols` elements, N to each at a time: a power of two up to a warp.
template <int N>
int lanes_of_row(std::int64_t cols) {
  return power_of_two(ceil_div(cols, N), kWarp);
}

}  // namespace k25::cuda
