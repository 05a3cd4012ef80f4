#pragma once
// Private to kernels/gemm: what the dispatcher hands to the build for one instruction set.
//
// The product is cut as in Goto and van de Geijn, "Anatomy of high-performance matrix
// multiplication", TOMS 2008. All sizes below are constants, never detected, so that the order of
// every sum is a function of shape, dtypes and instruction set.

#include <cstdint>

#include "kernels/core/isa.h"
#include "kernels/gemm/eigen_cache.h"
#include "kernels/gemm/gemm.h"

namespace k25::kernels {

/// The unit of work of a thread: rows of D. Also the cut when there is one thread.
inline constexpr std::int64_t kGemmRowBlock = 64;
/// Rows of D that share one packed panel of op(B); bounds the workspace for tall D.
inline constexpr std::int64_t kGemmRowSpan = 2048;
/// Columns of D at a time: a packed row block and its part of D stay in a 1 MiB L2.
inline constexpr std::int64_t kGemmColSpan = 512;
/// Columns of op(B) packed as one task; a multiple of the widest register tile of every build.
inline constexpr std::int64_t kGemmPackCols = 96;
/// Terms summed in registers before they are added to D: 48 columns x 128 fit a 32 KiB L1.
inline constexpr std::int64_t kGemmDepth = 128;
/// Terms whose packed op(B) is kept at once; a multiple of kGemmDepth.
inline constexpr std::int64_t kGemmDepthSpan = 1024;

/// A part of the product: rows x cols of D, terms `depth` of the sum. Pointers are those of the
/// part.
struct GemmPart {
  const void* a = nullptr;  ///< op(A)[0, 0] of the part
  const void* b = nullptr;  ///< op(B)[0, 0] of the part
  void* d = nullptr;
  std::int64_t a_stride = 0, b_stride = 0, d_stride = 0;  ///< of stored rows, in elements
  Transpose transpose_a = Transpose::kNo, transpose_b = Transpose::kNo;
  DType dtype_ab = DType::kFloat32, dtype_d = DType::kFloat32;
  Accumulate accumulate = Accumulate::kOverwrite;
  std::int64_t rows = 0, cols = 0, depth = 0;
  bool first = true;         ///< holds term 0 of the sum: D is cleared (or read, for kAdd) here
  bool last = true;          ///< holds the last term: a bf16 D is rounded here
  void* packed_b = nullptr;  ///< cols x depth accumulators
  void* packed_a = nullptr;  ///< kGemmRowBlock x min(depth, kGemmDepth) accumulators a slot
  float* wide_d = nullptr;   ///< rows x cols, dense; null unless D is bf16
};

// pack: columns [begin, end) of op(B), begin a multiple of kGemmPackCols, end another or `cols`.
// rows: rows [begin, end) of D, at most kGemmRowBlock, with the packing slot to use.
K25_ISA_DECLARE(void gemm_pack_cpu(const GemmPart& part, std::int64_t begin, std::int64_t end);
                void gemm_rows_cpu(const GemmPart& part, std::int64_t begin, std::int64_t end,
                                   std::int64_t slot);)

}  // namespace k25::kernels
