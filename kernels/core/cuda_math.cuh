#pragma once
// Private to CUDA sources: vectors of elements, reductions in a fixed order, and grids.
//
// Numerics  bf16 to float and back are the conversions of BFloat16, bit for bit, NaN payloads
//         included. Reductions join lanes and warps in an order that thread numbers fix, and every
//         thread receives the same bits.
// Memory  a Vec is loaded and stored by accesses of up to 16 bytes when kAligned is promised;
//         kScalar touches one element at a time, at any alignment, and only the first `count`.
//         Both give a thread the same elements, so the bits of a sum do not depend on alignment.

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/core/check.h"
#include "kernels/core/context.h"
#include "kernels/core/dtype.h"

namespace k25::cuda {

inline constexpr int kWarp = 32;
inline constexpr int kMaxWarps = 32;  ///< of one block
inline constexpr std::int64_t kVectorBytes = 16;

// ---- elements -----------------------------------------------------------------------------------

__device__ __forceinline__ float nan_value() { return __uint_as_float(0x7fc00000u); }

/// Two floats rounded to bf16, `low` in the low half.
__device__ __forceinline__ std::uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  std::uint32_t word = *reinterpret_cast<const std::uint32_t*>(&pair);
  // The instruction forgets the payload of NaN, the CPU keeps it.
  if (low != low || high != high) [[unlikely]] {
    word = BFloat16(low).bits | static_cast<std::uint32_t>(BFloat16(high).bits) << 16;
  }
  return word;
}

/// N elements of T (float or BFloat16) in registers. Indices must be constants after unrolling.
template <class T, int N>
struct Vec {
  static constexpr int kBytes = N * static_cast<int>(sizeof(T));
  static constexpr int kWords = kBytes < 4 ? 1 : kBytes / 4;
  static_assert(kBytes <= 4 || kBytes == 8 || kBytes % 16 == 0);
  std::uint32_t word[kWords];

  __device__ __forceinline__ float get(int i) const {
    if constexpr (std::is_same_v<T, float>) {
      return __uint_as_float(word[i]);
    } else {
      const std::uint32_t w = word[i / 2];
      return __uint_as_float(i % 2 == 0 ? w << 16 : w & 0xffff0000u);
    }
  }
  __device__ __forceinline__ void widen(float (&values)[N]) const {
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = get(i);
  }
  /// Rounds; bf16 to nearest even.
  __device__ __forceinline__ static Vec narrow(const float (&values)[N]) {
    Vec v;
    if constexpr (std::is_same_v<T, float>) {
#pragma unroll
      for (int i = 0; i < N; ++i) v.word[i] = __float_as_uint(values[i]);
    } else if constexpr (N == 1) {
      v.word[0] = pack_bf16(values[0], 0.f);
    } else {
#pragma unroll
      for (int i = 0; i < N / 2; ++i) v.word[i] = pack_bf16(values[2 * i], values[2 * i + 1]);
    }
    return v;
  }
  __device__ __forceinline__ static Vec zero() {
    Vec v;
#pragma unroll
    for (int i = 0; i < kWords; ++i) v.word[i] = 0;
    return v;
  }
};

/// Elements in 16 bytes.
template <class T>
inline constexpr int kVectorOf = static_cast<int>(kVectorBytes / sizeof(T));

enum class Access : std::uint8_t {
  kAligned,  ///< the address is a multiple of min(16, the vector's bytes), all N elements exist
  kScalar,   ///< any address, the first `count` elements exist; the others read as zero
};

template <class T, int N>
__device__ __forceinline__ Vec<T, N> load_aligned(const T* p) {
  Vec<T, N> v;
  if constexpr (Vec<T, N>::kBytes >= 16) {
#pragma unroll
    for (int i = 0; i < Vec<T, N>::kWords / 4; ++i) {
      const uint4 w = reinterpret_cast<const uint4*>(p)[i];
      v.word[4 * i] = w.x;
      v.word[4 * i + 1] = w.y;
      v.word[4 * i + 2] = w.z;
      v.word[4 * i + 3] = w.w;
    }
  } else if constexpr (Vec<T, N>::kBytes == 8) {
    const uint2 w = *reinterpret_cast<const uint2*>(p);
    v.word[0] = w.x;
    v.word[1] = w.y;
  } else if constexpr (Vec<T, N>::kBytes == 4) {
    v.word[0] = *reinterpret_cast<const std::uint32_t*>(p);
  } else {
    v.word[0] = *reinterpret_cast<const std::uint16_t*>(p);
  }
  return v;
}

template <class T, int N>
__device__ __forceinline__ void store_aligned(T* p, const Vec<T, N>& v) {
  if constexpr (Vec<T, N>::kBytes >= 16) {
#pragma unroll
    for (int i = 0; i < Vec<T, N>::kWords / 4; ++i) {
      reinterpret_cast<uint4*>(p)[i] =
          make_uint4(v.word[4 * i], v.word[4 * i + 1], v.word[4 * i + 2], v.word[4 * i + 3]);
    }
  } else if constexpr (Vec<T, N>::kBytes == 8) {
    *reinterpret_cast<uint2*>(p) = make_uint2(v.word[0], v.word[1]);
  } else if constexpr (Vec<T, N>::kBytes == 4) {
    *reinterpret_cast<std::uint32_t*>(p) = v.word[0];
  } else {
    *reinterpret_cast<std::uint16_t*>(p) = static_cast<std::uint16_t>(v.word[0]);
  }
}

/// Elements p[0 .. N), of which `count` exist (read by kScalar alone).
template <Access kAccess, int N, class T>
__device__ __forceinline__ Vec<T, N> load(const T* p, std::int64_t count) {
  if constexpr (kAccess == Access::kAligned) {
    return load_aligned<T, N>(p);
  } else {
    Vec<T, N> v = Vec<T, N>::zero();
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (i >= count) break;
      if constexpr (std::is_same_v<T, float>) {
        v.word[i] = __float_as_uint(p[i]);
      } else {
        v.word[i / 2] |= static_cast<std::uint32_t>(p[i].bits) << (i % 2 * 16);
      }
    }
    return v;
  }
}

template <Access kAccess, int N, class T>
__device__ __forceinline__ void store(T* p, const Vec<T, N>& v, std::int64_t count) {
  if constexpr (kAccess == Access::kAligned) {
    store_aligned<T, N>(p, v);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (i >= count) break;
      if constexpr (std::is_same_v<T, float>) {
        p[i] = __uint_as_float(v.word[i]);
      } else {
        p[i].bits = static_cast<std::uint16_t>(v.word[i / 2] >> (i % 2 * 16));
      }
    }
  }
}

// ---- reductions ---------------------------------------------------------------------------------

struct Add {
  __device__ __forceinline__ static float join(float a, float b) { return a + b; }
  static constexpr float kNeutral = 0.f;
};
struct Max {  ///< NaN loses against a number
  __device__ __forceinline__ static float join(float a, float b) { return fmaxf(a, b); }
  static constexpr float kNeutral = -__builtin_huge_valf();
};

/// Joins aligned groups of kLanes lanes (a power of two); the whole warp must call it.
template <class Op, int kLanes = kWarp>
__device__ __forceinline__ float warp_reduce(float v) {
#pragma unroll
  for (int by = kLanes / 2; by > 0; by /= 2) v = Op::join(v, __shfl_xor_sync(~0u, v, by));
  return v;
}
/// The same for a group size known at run time.
template <class Op>
__device__ __forceinline__ float group_reduce(float v, int lanes) {
  for (int by = lanes / 2; by > 0; by /= 2) v = Op::join(v, __shfl_xor_sync(~0u, v, by));
  return v;
}

/// Joins a block of whole warps (blockDim.y = z = 1); all threads must call it. `shared` holds
/// kMaxWarps floats that nobody touches until the next barrier after the call: call it with two
/// buffers in turn and one barrier a call (the one inside) is enough.
template <class Op>
__device__ __forceinline__ float block_reduce(float v, float* shared) {
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  v = warp_reduce<Op>(v);
  if (lane == 0) shared[threadIdx.x / kWarp] = v;
  __syncthreads();
  return warp_reduce<Op>(lane < warps ? shared[lane] : Op::kNeutral);
}

// ---- launches -----------------------------------------------------------------------------------

/// True when every pointer is a multiple of `bytes`.
template <class... T>
bool all_aligned(std::int64_t bytes, const T*... pointers) {
  const auto unit = static_cast<std::uintptr_t>(bytes);
  return ((reinterpret_cast<std::uintptr_t>(pointers) % unit == 0) && ...);
}

/// True when `cols` and the strides of `rows` rows (of any dimension) are whole vectors of T.
template <class T, class... Stride>
bool vector_rows(std::int64_t rows, std::int64_t cols, Stride... strides) {
  constexpr std::int64_t kN = kVectorOf<T>;
  return cols % kN == 0 && (rows <= 1 || ((strides % kN == 0) && ...));
}

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Smallest power of two >= n, at most `limit` (itself a power of two).
constexpr int power_of_two(std::int64_t n, int limit) {
  int p = 1;
  while (p < n && p < limit) p *= 2;
  return p;
}

/// Blocks for `items` pieces of work in a grid-stride loop: at least 1, at most `per_sm` for each
/// multiprocessor. Throws kUsage when the context has no GPU.
inline unsigned grid_blocks(const Context& ctx, std::int64_t items, std::int64_t items_per_block,
                            int per_sm) {
  K25_CHECK(ctx.num_sms > 0, "the context has no GPU: CudaDevice::attach it first");
  const std::int64_t most = std::int64_t{ctx.num_sms} * per_sm;
  return static_cast<unsigned>(std::clamp<std::int64_t>(ceil_div(items, items_per_block), 1, most));
}

// ---- flat ops -----------------------------------------------------------------------------------

inline constexpr int kFlatThreads = 256;

/// Runs an elementwise op over [0, count). The op has, for N = kWidth and N = 1,
///   template <int N> struct In;  template <int N> In<N> load(std::int64_t i) const;
///   template <int N> void finish(std::int64_t i, const In<N>&) const;
/// Loads of kUnroll pieces are in flight before the first is finished, so an output may be an
/// input, element by element, but must not overlap one in another way.
template <int kWidth, int kUnroll, class Op>
__global__ void __launch_bounds__(kFlatThreads) flat_kernel(const Op op, std::int64_t count) {
  using In = typename Op::template In<kWidth>;
  const std::int64_t stride = std::int64_t{gridDim.x} * kFlatThreads;
  const std::int64_t first = std::int64_t{blockIdx.x} * kFlatThreads + threadIdx.x;
  const std::int64_t pieces = count / kWidth;
  for (std::int64_t p = first; p < pieces; p += stride * kUnroll) {
    In in[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (p + u * stride < pieces) in[u] = op.template load<kWidth>((p + u * stride) * kWidth);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (p + u * stride < pieces) op.template finish<kWidth>((p + u * stride) * kWidth, in[u]);
    }
  }
  if constexpr (kWidth > 1) {
    const std::int64_t i = pieces * kWidth + first;
    if (i < count) op.template finish<1>(i, op.template load<1>(i));
  }
}

/// Enqueues flat_kernel: kWidth elements a thread where `aligned`, one otherwise. Follow it with
/// K25_CUDA_CHECK_LAUNCH().
template <int kWidth, int kUnroll, class Op>
void launch_flat(const Context& ctx, const Op& op, std::int64_t count, bool aligned) {
  constexpr int kBlocksPerSm = 16;
  if (aligned) {
    const unsigned grid = grid_blocks(ctx, ceil_div(count, kWidth),
                                      std::int64_t{kFlatThreads} * kUnroll, kBlocksPerSm);
    flat_kernel<kWidth, kUnroll><<<grid, kFlatThreads, 0, ctx.stream>>>(op, count);
  } else {
    const unsigned grid =
        grid_blocks(ctx, count, std::int64_t{kFlatThreads} * kUnroll, kBlocksPerSm);
    flat_kernel<1, kUnroll><<<grid, kFlatThreads, 0, ctx.stream>>>(op, count);
  }
}

// ---- row ops ------------------------------------------------------------------------------------

/// As flat_kernel, over rows of `cols` elements (a multiple of kWidth): load(row, col) and
/// finish(row, col, in). x counts pieces of a row, y rows.
template <int kWidth, int kUnroll, class Op>
__global__ void __launch_bounds__(kFlatThreads)
    rows_kernel(const Op op, std::int64_t rows, std::int64_t cols) {
  using In = typename Op::template In<kWidth>;
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.y;
  const std::int64_t first = std::int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  const std::int64_t col_stride = std::int64_t{gridDim.y} * blockDim.x * kWidth;
  std::int64_t col = (std::int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * kWidth;
  for (; col < cols; col += col_stride) {
    for (std::int64_t r = first; r < rows; r += stride * kUnroll) {
      In in[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (r + u * stride < rows) in[u] = op.template load<kWidth>(r + u * stride, col);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (r + u * stride < rows) op.template finish<kWidth>(r + u * stride, col, in[u]);
      }
    }
  }
}

/// Enqueues rows_kernel: kWidth elements a thread where `aligned` (every row of every operand, and
/// cols a multiple of kWidth), one otherwise. Follow it with K25_CUDA_CHECK_LAUNCH().
template <int kWidth, int kUnroll, class Op>
void launch_rows(const Context& ctx, const Op& op, std::int64_t rows, std::int64_t cols,
                 bool aligned) {
  constexpr int kBlocksPerSm = 16;
  constexpr std::int64_t kMaxTiles = 65535;
  const std::int64_t pieces = aligned ? cols / kWidth : cols;
  const std::int64_t tiles = std::min(ceil_div(pieces, kFlatThreads), kMaxTiles);
  // Equal tiles of a row, so that few threads have nothing to do.
  const std::int64_t per_tile = std::min<std::int64_t>(ceil_div(pieces, tiles), kFlatThreads);
  const int x = per_tile <= kWarp ? power_of_two(per_tile, kWarp)
                                  : static_cast<int>(ceil_div(per_tile, kWarp)) * kWarp;
  const int y = kFlatThreads / x;
  const int per_sm = static_cast<int>(std::max<std::int64_t>(1, kBlocksPerSm / tiles));
  const dim3 grid(grid_blocks(ctx, rows, std::int64_t{y} * kUnroll, per_sm),
                  static_cast<unsigned>(tiles));
  const dim3 block(static_cast<unsigned>(x), static_cast<unsigned>(y));
  if (aligned) {
    rows_kernel<kWidth, kUnroll><<<grid, block, 0, ctx.stream>>>(op, rows, cols);
  } else {
    rows_kernel<1, kUnroll><<<grid, block, 0, ctx.stream>>>(op, rows, cols);
  }
}

}  // namespace k25::cuda
