#include <climits>
#include <cmath>

#include "kernels/core/cuda_check.h"
#include "kernels/core/cuda_math.cuh"
#include "kernels/cross_entropy/cross_entropy_cuda.h"

namespace k25::kernels {
namespace {

using cuda::Vec;

// Of a block, which takes one row at a time, and of blocks on a multiprocessor.
constexpr int kForwardThreads = 128, kForwardBlocksPerSm = 8;
constexpr int kBackwardThreads = 256, kBackwardBlocksPerSm = 4;
constexpr int kWarps = kForwardThreads / cuda::kWarp;
constexpr int kVector = 4;  // logits in 16 bytes
constexpr int kBatch = 4;   // such loads in flight in a thread
constexpr float kLowest = -INFINITY;
constexpr int kNoColumn = INT_MAX;

// ---- forward ------------------------------------------------------------------------------------

/// Some logits of one row. `column` of max: the lowest of equal ones, kNoColumn if all are -inf.
struct Part {
  float max, sum;  ///< sum of exp(z - max); of exp(z) where max is -inf
  int column;
};

/// e^x, below 2^-126 flushed to 0. Off by about |x| 2^-24 relative, so for x <= 0 never by more
/// than 1e-7 absolute: of a sum whose largest term is 1, and of a gradient.
__device__ __forceinline__ float exp_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.4426950408889634f));
  return y;
}

__device__ __forceinline__ float rescaled(float sum, float from, float to) {
  return from == to ? sum : sum * exp_fast(from - to);
}

__device__ __forceinline__ Part joined(const Part& a, const Part& b) {
  const bool take_b = b.max > a.max || (b.max == a.max && b.column < a.column);
  const float max = take_b ? b.max : a.max;
  return {max, rescaled(a.sum, a.max, max) + rescaled(b.sum, b.max, max),
          take_b ? b.column : a.column};
}

template <int kLanes>
__device__ __forceinline__ Part warp_joined(Part p) {
#pragma unroll
  for (int by = kLanes / 2; by > 0; by /= 2) {
    p = joined(p, {__shfl_xor_sync(~0u, p.max, by), __shfl_xor_sync(~0u, p.sum, by),
                   __shfl_xor_sync(~0u, p.column, by)});
  }
  return p;
}

constexpr unsigned kStep = kForwardThreads * kVector;  // columns are below 2^31 and stay below 2^32

/// Joins the batch at column c, whose groups of four lie kStep apart.
__device__ __forceinline__ void add_batch(Part& p, const float (&z)[kBatch][kVector], unsigned c) {
  float max = p.max;
#pragma unroll
  for (int b = 0; b < kBatch; ++b) {
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      const bool larger = z[b][j] > max;
      max = larger ? z[b][j] : max;
      p.column = larger ? static_cast<int>(c + b * kStep) + j : p.column;
    }
  }
  p.sum = rescaled(p.sum, p.max, max);
  p.max = max;
  const float shift = max == kLowest ? 0.f : max;
#pragma unroll
  for (int b = 0; b < kBatch; ++b) {
    p.sum += (exp_fast(z[b][0] - shift) + exp_fast(z[b][1] - shift)) +
             (exp_fast(z[b][2] - shift) + exp_fast(z[b][3] - shift));
  }
}

/// The batch at column c of a row. Rows are padded, so that groups of four can be read whole;
/// column 0 stands in for a group behind `cols`, which masked() takes out again.
__device__ __forceinline__ void load_batch(const float* row, unsigned c, unsigned cols,
                                           float (&z)[kBatch][kVector]) {
#pragma unroll
  for (int b = 0; b < kBatch; ++b) {
    const unsigned at = c + b * kStep;
    cuda::load_aligned<float, kVector>(row + (at < cols ? at : 0)).widen(z[b]);
  }
}

/// What lies behind `cols` counts as -inf.
__device__ __forceinline__ void mask_batch(unsigned c, unsigned cols, float (&z)[kBatch][kVector]) {
  if (c + (kBatch - 1) * kStep + kVector <= cols) return;
#pragma unroll
  for (int b = 0; b < kBatch; ++b) {
#pragma unroll
    for (int j = 0; j < kVector; ++j) z[b][j] = c + b * kStep + j < cols ? z[b][j] : kLowest;
  }
}

/// What earlier chunks and the label say of a row. Loaded before its logits and not looked at
/// until they are joined, to be there in time.
struct Known {
  std::int32_t label;
  float max, sum, target;
};

__device__ __forceinline__ Known known_of(const LogitTileCuda& t, std::int64_t n,
                                          std::int32_t label) {
  const bool first = t.first_class == 0;
  const std::int64_t column = label - t.first_class;
  const float* const target = column >= 0 && column < t.cols ? t.z + n * t.z_stride + column
                              : first                        ? nullptr
                                                             : t.target + n;
  return {label, first ? kLowest : t.max[n], first ? 0.f : t.sum[n],
          target == nullptr ? 0.f : *target};
}

/// `p` is this chunk of row n.
__device__ __forceinline__ void join_row(const LogitTileCuda& t, std::int64_t n, const Known& k,
                                         const Part& p) {
  // '>' keeps the lower class of equal ones in different chunks.
  const bool larger = p.max > k.max;
  if (t.argmax != nullptr && (t.first_class == 0 || larger)) {
    t.argmax[n] = static_cast<std::int32_t>(t.first_class + (p.column == kNoColumn ? 0 : p.column));
  }
  const float max = larger ? p.max : k.max;
  const float sum = rescaled(k.sum, k.max, max) + rescaled(p.sum, p.max, max);
  t.max[n] = max;
  t.sum[n] = sum;
  t.target[n] = k.target;
  if (t.first_class + t.cols < t.vocab) return;
  const float lse = max + static_cast<float>(log(static_cast<double>(sum)));
  t.lse[n] = lse;
  const bool valid = k.label >= 0 && k.label < t.vocab;
  t.nll[n] = valid ? lse - k.target : k.label == kIgnoredLabel ? 0.f : cuda::nan_value();
}

/// The next batch, of this row or of the block's next one, is under way while one is summed.
__global__ void __launch_bounds__(kForwardThreads, kForwardBlocksPerSm)
    softmax_rows(const LogitTileCuda t) {
  __shared__ Part parts[2][kWarps];
  const int lane = threadIdx.x % cuda::kWarp, warp = threadIdx.x / cuda::kWarp;
  const unsigned first = threadIdx.x * kVector;
  const auto cols = static_cast<unsigned>(t.cols);
  std::int64_t n = blockIdx.x;
  if (n >= t.rows) return;
  float ahead[kBatch][kVector];
  load_batch(t.z + n * t.z_stride, first, cols, ahead);
  std::int32_t next_label = t.label[n];
  for (int buffer = 0; n < t.rows; buffer ^= 1) {  // in turn, so that one barrier a row is enough
    const float* const row = t.z + n * t.z_stride;
    const std::int64_t next = n + gridDim.x;
    Known known{};
    if (threadIdx.x == 0) known = known_of(t, n, next_label);
    if (next < t.rows) next_label = t.label[next];
    Part p{kLowest, 0.f, kNoColumn};
    for (unsigned begin = 0; begin < cols; begin += kBatch * kStep) {
      float z[kBatch][kVector];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
#pragma unroll
        for (int j = 0; j < kVector; ++j) z[b][j] = ahead[b][j];
      }
      if (begin + kBatch * kStep < cols) {
        load_batch(row, begin + kBatch * kStep + first, cols, ahead);
      } else if (next < t.rows) {
        load_batch(t.z + next * t.z_stride, first, cols, ahead);
      }
      mask_batch(begin + first, cols, z);
      add_batch(p, z, begin + first);
    }
    p = warp_joined<cuda::kWarp>(p);
    if (lane == 0) parts[buffer][warp] = p;
    __syncthreads();
    if (warp == 0) {
      p = warp_joined<kWarps>(parts[buffer][lane % kWarps]);
      if (lane == 0) join_row(t, n, known, p);
    }
    n = next;
  }
}

// ---- backward -----------------------------------------------------------------------------------

/// Logits whose gradients a thread stores at once, 16 bytes, and such pieces in flight.
template <class T>
inline constexpr int kPiece = cuda::kVectorOf<T>;
template <class T>
inline constexpr int kPieces = 16 / kPiece<T>;

/// dz of columns c, c + 1, ...; `target` is the label's column, or outside.
template <class T, int N>
__device__ __forceinline__ Vec<T, N> gradients(const float (&z)[N], float lse, std::int64_t c,
                                               std::int64_t target) {
  float dz[N];
#pragma unroll
  for (int j = 0; j < N; ++j) dz[j] = exp_fast(z[j] - lse) - (c + j == target ? 1.f : 0.f);
  return Vec<T, N>::narrow(dz);
}

/// NOTE: z and dz may be one: a thread reads the elements it writes, and reads them before. The
/// padding of a row is read and written: nobody uses it.
template <class T>
__global__ void __launch_bounds__(kBackwardThreads, kBackwardBlocksPerSm)
    gradient_rows(const LogitTileCuda t, T* dz) {
  constexpr int kWidth = kPiece<T>, kCount = kPieces<T>;
  constexpr std::int64_t kApart = std::int64_t{kBackwardThreads} * kWidth;
  for (std::int64_t n = blockIdx.x; n < t.rows; n += gridDim.x) {
    const std::int32_t label = t.label[n];
    const float* const z_row = t.z + n * t.z_stride;
    T* const dz_row = dz + n * t.z_stride;
    const bool counts = label >= 0 && label < t.vocab;
    const float lse = counts ? t.lse[n] : 0.f;
    const std::int64_t target = label - t.first_class;
    for (std::int64_t c = threadIdx.x * kWidth; c < t.cols; c += kCount * kApart) {
      float z[kCount][kWidth];
#pragma unroll
      for (int b = 0; b < kCount; ++b) {
        const std::int64_t at = c + b * kApart;
        if (counts && at < t.cols) cuda::load_aligned<float, kWidth>(z_row + at).widen(z[b]);
      }
#pragma unroll
      for (int b = 0; b < kCount; ++b) {
        const std::int64_t at = c + b * kApart;
        if (at >= t.cols) continue;
        cuda::store_aligned(dz_row + at,
                            counts ? gradients<T>(z[b], lse, at, target) : Vec<T, kWidth>::zero());
      }
    }
  }
}

}  // namespace

void softmax_chunk_cuda(const Context& ctx, const LogitTileCuda& tile) {
  const unsigned grid = cuda::grid_blocks(ctx, tile.rows, 1, kForwardBlocksPerSm);
  softmax_rows<<<grid, kForwardThreads, 0, ctx.stream>>>(tile);
  K25_CUDA_CHECK_LAUNCH();
}

void logit_gradients_cuda(const Context& ctx, const LogitTileCuda& tile, void* dz, DType dtype) {
  const unsigned grid = cuda::grid_blocks(ctx, tile.rows, 1, kBackwardBlocksPerSm);
  if (dtype == DType::kBFloat16) {
    gradient_rows<<<grid, kBackwardThreads, 0, ctx.stream>>>(tile, static_cast<BFloat16*>(dz));
  } else {
    gradient_rows<<<grid, kBackwardThreads, 0, ctx.stream>>>(tile, static_cast<float*>(dz));
  }
  K25_CUDA_CHECK_LAUNCH();
}

}  // namespace k25::kernels
