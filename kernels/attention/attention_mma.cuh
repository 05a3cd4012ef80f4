#pragma once
// Private to attention's CUDA sources: bf16 tiles in shared memory and their tensor-core products
// (mma.sync m16n8k16, sm_80 and later; fp32 accumulators).
//
// A tile is [rows][kDim] bf16 without padding; the 16-byte words of row r are permuted by
// word ^ (r & 7), so that neither a row-wise copy nor ldmatrix meets a bank twice.
// Accumulators. acc[m][n][4] of a warp: rows m * 16 + lane / 4 (+ 8 for elements 2 and 3), columns
// n * 8 + lane % 4 * 2 (+ 1 for elements 1 and 3).
//
// Hidden pairs. On the diagonal of causal attention a probability 0 meets a value that must stay
// hidden, and 0 * inf is NaN. Such a tile is searched for non-finite elements; if there are any,
// they are added to the rows that see them and replaced by 0 before the product.

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/attention/attention_cuda_args.cuh"
#include "kernels/core/cuda_check.h"

namespace k25::kernels {

inline constexpr float kLog2e = 1.44269504088896340736f;

__device__ inline float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ inline std::uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  std::uint32_t bits;
  memcpy(&bits, &pair, sizeof(bits));
  return bits;
}

__device__ inline std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

__device__ inline void copy_async_16(std::uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}
__device__ inline void copy_async_4(std::uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from),
               "r"(valid ? 4 : 0)
               : "memory");
}
__device__ inline void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ inline void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

__device__ inline void load_matrices(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ inline void load_matrices_transposed(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ inline void multiply_add_16816(float (&c)[4], const std::uint32_t (&a)[4],
                                          std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Byte offset of 16-byte word `word` of row `row`.
template <int kDim>
__device__ inline std::uint32_t tile_offset(int row, int word) {
  return static_cast<std::uint32_t>(row * kDim * 2 + ((word ^ (row & 7)) << 4));
}

/// Rows [first, first + kRows) of a document of `length` tokens into a tile; what lies outside of
/// the document or past head_dim becomes 0. `rows` points at the document's first row. The vector
/// path is asynchronous.
template <int kDim, int kRows, int kThreads>
__device__ inline void load_rows(std::uint32_t tile, const BFloat16* rows,
                                 std::int64_t token_stride, bool vector, int head_dim, int first,
                                 int length) {
  constexpr int kWords = kDim / 8, kStep = kThreads / kWords;
  static_assert(kThreads % kWords == 0 && kRows % kStep == 0);
  const int word = threadIdx.x % kWords;
  int row = threadIdx.x / kWords;
  const BFloat16* from = rows + std::int64_t{first + row} * token_stride + word * 8;
#pragma unroll 4
  for (int i = 0; i < kRows / kStep; ++i, row += kStep, from += kStep * token_stride) {
    const std::uint32_t to = tile + tile_offset<kDim>(row, word);
    const bool inside = first + row < length;
    if (vector) {
      const bool valid = inside && word * 8 < head_dim;
      copy_async_16(to, valid ? from : rows, valid);
    } else {
#pragma unroll 1  // the accumulators need the registers
      for (int e = 0; e < 8; e += 2) {
        const int left = head_dim - word * 8 - e;
        const std::uint32_t low = inside && left > 0 ? from[e].bits : 0;
        const std::uint32_t high = inside && left > 1 ? from[e + 1].bits : 0;
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(to + e * 2), "r"(low | high << 16) : "memory");
      }
    }
  }
}

/// Keeps the compiler from computing what follows from `address` ahead of the loop it is used in:
/// the registers are full.
__device__ inline std::uint32_t recompute(std::uint32_t address) {
  asm volatile("" : "+r"(address));
  return address;
}

/// acc[m][n] += A(row0 + .., :) B(.., :)^T, summed over kDim; both tiles are [rows][kDim].
/// NOTE: tiles start on multiples of a row's bytes, so the permuted word of a lane's address moves
/// by an exclusive or alone.
template <int kDim, int kM, int kN>
__device__ inline void multiply_rows(float (&acc)[kM][kN][4], std::uint32_t a, int row0,
                                     std::uint32_t b) {
  constexpr int kRowBytes = kDim * 2;
  const int lane = threadIdx.x % 32;
  const std::uint32_t a_lane = recompute(a + tile_offset<kDim>(row0 + lane % 16, lane / 16));
  const std::uint32_t b_lane =
      recompute(b + tile_offset<kDim>(lane / 16 * 8 + lane % 8, lane / 8 % 2));
#pragma unroll 8
  for (int k = 0; k < kDim / 16; ++k) {
    std::uint32_t left[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m) load_matrices(left[m], (a_lane ^ (k * 32)) + m * 16 * kRowBytes);
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      std::uint32_t right[4];
      load_matrices(right, (b_lane ^ (k * 32)) + n * 8 * kRowBytes);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        multiply_add_16816(acc[m][n], left[m], right[0], right[1]);
        multiply_add_16816(acc[m][n + 1], left[m], right[2], right[3]);
      }
    }
  }
}

/// An accumulator of this warp, rounded to bf16, as the left operand of a product: kK / 2 steps of
/// 16 columns.
template <int kM, int kK>
struct Weights {
  std::uint32_t word[kM][kK / 2][4];

  Weights() = default;
  __device__ explicit Weights(const float (&p)[kM][kK][4]) {
#pragma unroll
    for (int i = 0; i < kM * kK * 2; ++i) {
      const int m = i / (kK * 2), n = i / 2 % kK, half = i % 2;
      word[m][n / 2][n % 2 * 2 + half] = pack_bf16(p[m][n][2 * half], p[m][n][2 * half + 1]);
    }
  }
};

/// acc[m][n] += weights B(:, col0 + ..), summed over the kK * 8 rows of tile B.
template <int kDim, int kM, int kN, int kK>
__device__ inline void multiply_columns(float (&acc)[kM][kN][4], const Weights<kM, kK>& weights,
                                        std::uint32_t b, int col0) {
  const int lane = threadIdx.x % 32;
  const std::uint32_t b_lane =
      recompute(b + (tile_offset<kDim>(lane % 16, lane / 16) ^ (col0 * 2)));
#pragma unroll
  for (int k = 0; k < kK / 2; ++k) {
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      std::uint32_t right[4];
      load_matrices_transposed(right, (b_lane ^ (n * 16)) + k * 16 * kDim * 2);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        multiply_add_16816(acc[m][n], weights.word[m][k], right[0], right[1]);
        multiply_add_16816(acc[m][n + 1], weights.word[m][k], right[2], right[3]);
      }
    }
  }
}

template <int kM, int kN>
__device__ inline void clear(float (&acc)[kM][kN][4]) {
#pragma unroll
  for (int i = 0; i < kM * kN * 4; ++i) acc[i / 4 / kN][i / 4 % kN][i % 4] = 0.f;
}

// ---- non-finite elements on the diagonal -------------------------------------------------------

__device__ inline bool not_finite(std::uint32_t bits) { return (bits & 0x7f80u) == 0x7f80u; }

/// True for all threads when a tile holds an infinity or NaN. A barrier.
template <int kDim, int kRows, int kThreads>
__device__ inline bool any_not_finite(const unsigned char* tile) {
  const auto* const words = reinterpret_cast<const uint4*>(tile);
  bool found = false;
#pragma unroll 2
  for (int i = threadIdx.x; i < kRows * kDim / 8; i += kThreads) {
    const uint4 w = words[i];
    for (const std::uint32_t u : {w.x, w.y, w.z, w.w}) {
      found = found || not_finite(u) || not_finite(u >> 16);
    }
  }
  return __syncthreads_or(found) != 0;
}

/// Replaces non-finite elements by 0.
template <int kDim, int kRows, int kThreads>
__device__ inline void clear_not_finite(unsigned char* tile) {
  auto* const halves = reinterpret_cast<std::uint16_t*>(tile);
#pragma unroll 1
  for (int i = threadIdx.x; i < kRows * kDim; i += kThreads) {
    if (not_finite(halves[i])) halves[i] = 0;
  }
}

enum class Sees { kEarlier, kLater };  ///< row r sees step k when k <= r, or when k >= r

/// Adds the non-finite elements of rows k0 + .. of a tile to the accumulator rows that see them.
/// Row 0 of the accumulator is token `row0`, row 0 of the tile is token `k0`.
template <Sees kSees, int kDim, int kRows, int kM, int kN>
__device__ inline void add_not_finite(float (&acc)[kM][kN][4], const unsigned char* tile, int row0,
                                      int k0, int col0) {
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int k = 0; k < kRows; ++k) {
    const std::uint32_t row = shared_address(tile) + tile_offset<kDim>(k, col0 / 8) + lane % 4 * 4;
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      std::uint32_t pair;  // NOTE: volatile loads stay one by one; the accumulators need registers
      asm volatile("ld.shared.u32 %0, [%1];" : "=r"(pair) : "r"(row ^ (n * 16)) : "memory");
      if (!not_finite(pair) && !not_finite(pair >> 16)) continue;
#pragma unroll
      for (int i = 0; i < kM * 4; ++i) {
        const int at = row0 + i / 4 * 16 + lane / 4 + i % 4 / 2 * 8;
        const std::uint32_t bits = i % 2 == 0 ? pair & 0xffffu : pair >> 16;
        const bool seen = kSees == Sees::kEarlier ? k0 + k <= at : k0 + k >= at;
        if (seen && not_finite(bits)) acc[i / 4][n][i % 4] += __uint_as_float(bits << 16);
      }
    }
  }
}

// ---- results -----------------------------------------------------------------------------------

/// Stores the warp's accumulator times `factor(m, half)` as rows row0 .. of the document, through
/// its own rows and columns of a tile that nobody else reads any more. `tile_row0` is row 0's place
/// in that tile; `to` points at the document's first row.
template <int kDim, int kM, int kN, class Factor>
__device__ inline void store_rows(const float (&acc)[kM][kN][4], unsigned char* tile, int tile_row0,
                                  int col0, BFloat16* to, std::int64_t token_stride, bool vector,
                                  int head_dim, int row0, int length, const Factor& factor) {
  const int lane = threadIdx.x % 32;
  __syncwarp();
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float f = factor(m, half);
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        const int row = tile_row0 + m * 16 + half * 8 + lane / 4;
        const std::uint32_t pair = pack_bf16(acc[m][n][2 * half] * f, acc[m][n][2 * half + 1] * f);
        memcpy(tile + tile_offset<kDim>(row, (col0 + n * 8) / 8) + lane % 4 * 4, &pair,
               sizeof(pair));
      }
    }
  }
  __syncwarp();
#pragma unroll 4
  for (int i = lane; i < kM * 16 * kN; i += 32) {
    const int row = i / kN, word = col0 / 8 + i % kN;
    if (row0 + row >= length) continue;
    uint4 w;
    memcpy(&w, tile + tile_offset<kDim>(tile_row0 + row, word), sizeof(w));
    BFloat16* const at = to + std::int64_t{row0 + row} * token_stride + word * 8;
    if (vector) {
      if (word * 8 < head_dim) *reinterpret_cast<uint4*>(at) = w;
    } else {
      const std::uint32_t u[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        if (word * 8 + e < head_dim) {
          at[e].bits = static_cast<std::uint16_t>(u[e / 2] >> (e % 2 * 16));
        }
      }
    }
  }
}

// ---- kernels -----------------------------------------------------------------------------------

inline constexpr int kBackwardWarps = 4;  ///< along the rows of a tile

/// What both backward loops stream: two operands, kRows tokens of each, one after the other.
template <int kDim, int kRows, int kThreads>
struct Stream {
  static constexpr int kBytes = kRows * kDim * 2;

  const BFloat16 *a, *b;
  std::int64_t a_stride, b_stride;
  bool a_vector, b_vector;

  __device__ void load(std::uint32_t to, int head_dim, int first, int length) const {
    load_rows<kDim, kRows, kThreads>(to, a, a_stride, a_vector, head_dim, first, length);
    load_rows<kDim, kRows, kThreads>(to + kBytes, b, b_stride, b_vector, head_dim, first, length);
  }
};

/// One block of S::kThreads threads and S::kShared bytes for each tile of each head.
template <class S, class Kernel>
void launch_tiles(Kernel* kernel, const CudaAttentionArgs<BFloat16>& x, int heads, int tile,
                  cudaStream_t stream) {
  const std::int64_t slots = attention_slots(x.tokens, tile);
  K25_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kShared));
  const auto blocks = static_cast<unsigned>(slots * x.batch * heads);
  kernel<<<blocks, S::kThreads, S::kShared, stream>>>(x, static_cast<int>(slots));
  K25_CUDA_CHECK_LAUNCH();
}

}  // namespace k25::kernels
