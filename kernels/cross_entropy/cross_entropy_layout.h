#pragma once
// Private to cross_entropy: its three products, its tiles and its workspace, for both devices.

#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/gemm/gemm.h"

namespace k25::kernels {

/// z [rows, cols] = x weight^T.
GemmDesc logits_gemm(const CrossEntropyDesc& d, std::int64_t rows, std::int64_t cols);
/// dx [rows, hidden] (+)= dz weight.
GemmDesc dx_gemm(const CrossEntropyDesc& d, std::int64_t rows, std::int64_t cols,
                 Accumulate accumulate);
/// dweight [cols, hidden] (+)= dz^T x.
GemmDesc dweight_gemm(const CrossEntropyDesc& d, std::int64_t rows, std::int64_t cols,
                      Accumulate accumulate);

/// One run over the row tiles. Forward alone has no dx, backward alone no nll; with both, a tile's
/// backward follows its forward.
struct CrossEntropyPass {
  ConstTensor x_ND, weight_VD, label_N;
  Tensor nll_N = {}, lse_N = {}, argmax_N = {};  ///< argmax optional
  ConstTensor known_lse_N = {};                  ///< what backward reads
  Tensor dx_ND = {}, dweight_VD = {};            ///< dweight optional
  Accumulate dweight_mode = Accumulate::kAdd;
};

/// Sets row_tile and vocab_chunk.
void choose_cross_entropy_tile(CrossEntropyPlan& plan);

/// The workspace, piece by piece. On the GPU rows are padded to a multiple of 64 elements.
struct CrossEntropyScratch {
  Tensor logits, dz, dx;    ///< [row_tile, vocab_chunk], same, [row_tile, hidden]; dx only for bf16
  Tensor max, sum, target;  ///< [row_tile]
  Workspace gemm;
  Bytes total;
};

/// `base` null: sizes only.
CrossEntropyScratch cross_entropy_scratch(const CrossEntropyPlan& plan, void* base);

}  // namespace k25::kernels
