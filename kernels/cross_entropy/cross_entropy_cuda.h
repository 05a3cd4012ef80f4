#pragma once
// Private to cross_entropy: both directions on the GPU, and the softmax passes over one tile of
// logits. Storage is fp32 or bf16, arithmetic fp32.

#include <cstdint>

#include "kernels/core/context.h"
#include "kernels/cross_entropy/cross_entropy_layout.h"

namespace k25::kernels {

/// Classes of one chunk. Large enough that the products run at full speed and that the pass over
/// dx (fp32, read and written once a chunk) costs little.
inline constexpr std::int64_t kCudaChunk = 8192;
/// Rows of one tile: dweight (fp32) is read and written once a tile.
inline constexpr std::int64_t kCudaRows = 8192;
/// Rows of a tile and classes of a chunk are multiples of it: whole tiles of every GEMM kernel.
inline constexpr std::int64_t kCudaTileUnit = 256;
/// Elements to which rows in the workspace are padded, so that they begin on 128-byte borders.
inline constexpr std::int64_t kCudaRowPadding = 64;
/// Bound of a tile's logits, dz and dx; with cuBLASLt's 32 MiB the workspace is below 1 GiB.
inline constexpr std::int64_t kCudaTileBytes = std::int64_t{960} << 20;
/// A chunk is the whole vocabulary where tiles keep at least so many rows: then training forms the
/// logits once, and reads and writes dweight (fp32) rarely enough.
inline constexpr std::int64_t kCudaWholeRows = 2048;

/// Whatever the pass asks for, on the GPU.
void cross_entropy_cuda(Context& ctx, const CrossEntropyPlan& plan, const CrossEntropyPass& pass,
                        Workspace workspace);

/// Logits of one row tile and one vocabulary chunk in device memory, and what the rows know so far.
struct LogitTileCuda {
  const float* z = nullptr;  ///< [rows, cols], rows padded to kCudaRowPadding elements
  std::int64_t z_stride = 0, rows = 0, cols = 0;
  std::int64_t first_class = 0, vocab = 0;  ///< the class of column 0; of all chunks
  const std::int32_t* label = nullptr;      ///< [rows]
  float* max = nullptr;                     ///< [rows] largest logit so far
  float* sum = nullptr;                     ///< [rows] sum of exp(z - max) so far
  float* target = nullptr;                  ///< [rows] the label's logit, once its chunk has come
  std::int32_t* argmax = nullptr;           ///< [rows], or null
  float* nll = nullptr;                     ///< [rows], written with the last chunk
  float* lse = nullptr;                     ///< [rows], written with the last chunk
};

/// Joins the chunk to max, sum, target and argmax; the last chunk writes nll and lse.
void softmax_chunk_cuda(const Context& ctx, const LogitTileCuda& tile);
/// dz = exp(z - lse) - [class = label], 0 for rows without a (valid) label. dz is of `dtype` with
/// tile.z_stride; an fp32 dz is z.
void logit_gradients_cuda(const Context& ctx, const LogitTileCuda& tile, void* dz, DType dtype);

}  // namespace k25::kernels
