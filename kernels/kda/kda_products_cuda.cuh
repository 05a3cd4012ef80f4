#pragma once
// Private to kda's CUDA sources: loops and products of matrices by a whole block. Matrices lie in
// the block's scratch in global memory, which the caches hold; every function here starts and ends
// with all threads past a barrier or needing none, as it says.

#include <cstdint>

#include "kernels/core/cuda_math.cuh"

namespace k25::kernels::kda_cuda {

inline constexpr int kThreads = 256;
inline constexpr int kWarps = kThreads / cuda::kWarp;
inline constexpr int kRows = 64;  ///< tokens of a chunk, and the side of a tile
inline constexpr int kSub = 16;   ///< tokens of a sub-chunk
inline constexpr int kSubs = kRows / kSub;

/// f(row, col) for all of rows x kCols (a power of two), neighbours in a row. No barrier.
template <int kCols, int kUnroll = 2, class F>
__device__ __forceinline__ void for_elements(int rows, const F& f) {
  static_assert(kThreads % kCols == 0);
  const int col = static_cast<int>(threadIdx.x) % kCols;
#pragma unroll kUnroll
  for (int row = static_cast<int>(threadIdx.x) / kCols; row < rows; row += kThreads / kCols) {
    f(row, col);
  }
}

/// How an operand of a product lies in memory.
enum class Lies : std::uint8_t {
  kDeep,  ///< neighbours along the sum
  kWide,  ///< neighbours along the row or column of the result
};

/// Which terms of row i count. The others may be anything, NaN included.
enum class Terms : std::uint8_t { kAll, kUpTo, kFrom };  ///< k <= i; k >= i

/// A 64 x 64 tile of a result, 4 x 4 elements to a thread.
struct Tile {
  static constexpr int kDepth = 16;  ///< terms at a time
  static constexpr int kPitch =
      68;  ///< of the rows in shared memory: 16-byte vectors, few conflicts
  static constexpr int kSide = 4;
  static constexpr int kShared = 2 * kDepth * kPitch;  ///< floats

  float sum[kSide][kSide];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (auto& row : sum) {
#pragma unroll
      for (float& x : row) x = 0.f;
    }
  }
  __device__ __forceinline__ static int row() {
    return static_cast<int>(threadIdx.x) / (kRows / kSide) * kSide;
  }
  __device__ __forceinline__ static int col() {
    return static_cast<int>(threadIdx.x) % (kRows / kSide) * kSide;
  }

  /// sum(i, j) += a(i, k) b(k, j) over k in [0, depth), in order; depth a multiple of 16. Begins
  /// and ends with a barrier.
  template <Lies kA, Lies kB, Terms kTerms = Terms::kAll, class A, class B>
  __device__ __forceinline__ void add_product(int depth, const A& a, const B& b, float* shared) {
    float* const left = shared;
    float* const right = shared + kDepth * kPitch;
#pragma unroll 1
    for (int first = 0; first < depth; first += kDepth) {
      __syncthreads();
#pragma unroll
      for (int n = 0; n < kRows * kDepth / kThreads; ++n) {
        const int e = static_cast<int>(threadIdx.x) + n * kThreads;
        const int deep = e % kDepth, deep_other = e / kDepth;
        const int wide = e % kRows, wide_other = e / kRows;
        if constexpr (kA == Lies::kDeep) {
          left[deep * kPitch + deep_other] = a(deep_other, first + deep);
        } else {
          left[wide_other * kPitch + wide] = a(wide, first + wide_other);
        }
        if constexpr (kB == Lies::kDeep) {
          right[deep * kPitch + deep_other] = b(first + deep, deep_other);
        } else {
          right[wide_other * kPitch + wide] = b(first + wide_other, wide);
        }
      }
      __syncthreads();
#pragma unroll 4
      for (int k = 0; k < kDepth; ++k) {
        const auto x = cuda::load_aligned<float, kSide>(left + k * kPitch + row());
        const auto y = cuda::load_aligned<float, kSide>(right + k * kPitch + col());
#pragma unroll
        for (int i = 0; i < kSide; ++i) {
          const bool counts =
              kTerms == Terms::kAll ||
              (kTerms == Terms::kUpTo ? first + k <= row() + i : first + k >= row() + i);
#pragma unroll
          for (int j = 0; j < kSide; ++j) {
            if (counts) sum[i][j] = fmaf(x.get(i), y.get(j), sum[i][j]);
          }
        }
      }
    }
    __syncthreads();
  }

  /// f(row, col, sum) for this thread's elements. No barrier.
  template <class F>
  __device__ __forceinline__ void for_each(const F& f) const {
#pragma unroll
    for (int i = 0; i < kSide; ++i) {
#pragma unroll
      for (int j = 0; j < kSide; ++j) f(row() + i, col() + j, sum[i][j]);
    }
  }
};

}  // namespace k25::kernels::kda_cuda
