#pragma once
// Private to attention's CUDA sources: what every kernel is handed, and how tokens are cut.
//
// Tiles. Like on the CPU a document is an attention problem of its own, and its tiles start at its
// first token: a tile holds tokens of one document only. With documents a small kernel lists the
// first tokens of all tiles in the workspace; without, tile i starts at token i * tile.
// A grid has one block per (tile of a sequence without documents, sequence, head); a block takes
// tile number `slot`, slot + slots, and so on: documents make more tiles than slots.

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/core/dtype.h"

namespace k25::kernels {

/// A [B, T, heads, E] view with dense E.
template <class T>
struct CudaHeads {
  T* data = nullptr;
  std::int64_t batch_stride = 0, token_stride = 0, head_stride = 0;
  bool vector = false;  ///< rows start on 16-byte borders and hold whole 16-byte words

  __device__ T* head(std::int64_t b, std::int64_t h) const {
    return data + b * batch_stride + h * head_stride;
  }
};

/// First tokens of tiles: sequence b has counts[b] of them at firsts[b * tokens]. counts[b] is
/// kBadDocuments where the borders of sequence b contradict each other.
struct CudaTileList {
  const std::int32_t* firsts = nullptr;
  const std::int32_t* counts = nullptr;
};
inline constexpr std::int32_t kBadDocuments = -1;

/// One call, both directions. T is the storage; arithmetic is fp32.
template <class T>
struct CudaAttentionArgs {
  std::int64_t batch = 0;
  std::int32_t tokens = 0, heads = 0, kv_heads = 0, head_dim = 0;
  bool causal = true;
  float scale = 1.f;

  CudaHeads<const T> q, k, v;
  const std::int32_t* doc_begin = nullptr;  ///< null: one document a sequence
  const std::int32_t* doc_end = nullptr;
  std::int64_t doc_begin_stride = 0, doc_end_stride = 0;
  CudaTileList tiles;

  CudaHeads<T> out;  ///< forward
  float* lse = nullptr;
  std::int64_t lse_batch_stride = 0, lse_head_stride = 0;

  CudaHeads<const T> saved_out, dout;  ///< backward
  CudaHeads<T> dq, dk, dv;
  float* delta = nullptr;  ///< [B, H, T], sum_e dout out

  __device__ float* lse_row(std::int64_t b, std::int64_t h) const {
    return lse + b * lse_batch_stride + h * lse_head_stride;
  }
  __device__ float* delta_row(std::int64_t b, std::int64_t h) const {
    return delta + (b * heads + h) * tokens;
  }
};

// Launchers. Tiles must have been listed for the tile length the kernel works with.
inline constexpr int kFp32Tile = 64;
int forward_tile_bf16(int head_dim);
int query_gradient_tile_bf16(int head_dim);
inline constexpr int kKeyGradientTileBf16 = 64;

void launch_forward(const CudaAttentionArgs<BFloat16>& x, cudaStream_t stream);
void launch_forward(const CudaAttentionArgs<float>& x, cudaStream_t stream);
void launch_query_gradient(const CudaAttentionArgs<BFloat16>& x, cudaStream_t stream);
void launch_query_gradient(const CudaAttentionArgs<float>& x, cudaStream_t stream);
void launch_key_gradients(const CudaAttentionArgs<BFloat16>& x, cudaStream_t stream);
void launch_key_gradients(const CudaAttentionArgs<float>& x, cudaStream_t stream);

/// Tiles of a sequence without documents.
inline std::int64_t attention_slots(std::int64_t tokens, int tile) {
  return (tokens + tile - 1) / tile;
}

// ---- device ------------------------------------------------------------------------------------

/// Tokens [first, end) of a tile of one document [begin, end of document) of sequence b. Inside a
/// kernel positions count from `begin`.
struct DocTile {
  std::int32_t begin = 0, length = 0;  // of the document
  std::int32_t first = 0;              // of the tile, from begin
};

__device__ inline std::int32_t tile_count(const CudaTileList& tiles, std::int64_t b,
                                          std::int32_t slots) {
  return tiles.counts == nullptr ? slots : tiles.counts[b];
}

template <class T>
__device__ DocTile doc_tile(const CudaAttentionArgs<T>& x, std::int64_t b, std::int32_t index,
                            int tile) {
  if (x.tiles.counts == nullptr) return {0, x.tokens, index * tile};
  const std::int32_t first = x.tiles.firsts[b * x.tokens + index];
  const std::int32_t begin = x.doc_begin[b * x.doc_begin_stride + first];
  const std::int32_t end = x.doc_end[b * x.doc_end_stride + first];
  return {begin, end - begin, first - begin};
}

/// Where borders contradict each other: NaN in rows [first, first + tile) of one head.
template <class T>
__device__ void fill_nan(const CudaAttentionArgs<T>& x, const CudaHeads<T>& view, std::int64_t b,
                         std::int64_t h, std::int64_t first, int tile) {
  T* const rows = view.head(b, h);
  const T nan = static_cast<T>(__int_as_float(0x7fc00000));
  for (int i = threadIdx.x; i < tile * x.head_dim; i += blockDim.x) {
    const std::int64_t t = first + i / x.head_dim;
    if (t < x.tokens) rows[t * view.token_stride + i % x.head_dim] = nan;
  }
}

}  // namespace k25::kernels
