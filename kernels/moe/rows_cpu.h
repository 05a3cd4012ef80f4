#pragma once
// Private to kernels/moe: rows gathered, weighted and added, for permute and combine.

#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/core/isa.h"
#include "kernels/core/rows.h"

namespace k25::kernels {

/// The weights (fp32, for fp64 storage fp64) and maps of one call. T: storage, A: weights.
struct MoeRowsArgs {
  DType dtype = DType::kFloat32;
  std::int64_t top_k = 0, cols = 0;
  ConstRows tokens_in = {};           ///< [N, cols]: x of a gather, dy of the products
  Rows tokens_out = {};               ///< [N, cols]: of a sum
  ConstRows rows_in = {};             ///< [R, cols]
  Rows rows_out = {};                 ///< [R, cols]: of a gather
  ConstRows weight = {};              ///< [N, K], null: ones
  Rows dweight = {};                  ///< [N, K]: of the products
  const std::int32_t* row = nullptr;  ///< [N, K]
  std::int64_t row_stride = 0;
  const std::int32_t* choice = nullptr;  ///< [R]
};

// gather: rows_out[r] = weight[choice] tokens_in[token of choice], rows [begin, end).
// sum: tokens_out[n] = sum over k of weight[n, k] rows_in[row[n, k]], tokens [begin, end).
// products: dweight[n, k] = <rows_in[row[n, k]], tokens_in[n]>, tokens [begin, end).
K25_ISA_DECLARE(
    void moe_gather_rows_cpu(const MoeRowsArgs& args, std::int64_t begin, std::int64_t end);
    void moe_sum_rows_cpu(const MoeRowsArgs& args, std::int64_t begin, std::int64_t end);
    void moe_row_products_cpu(const MoeRowsArgs& args, std::int64_t begin, std::int64_t end);)

}  // namespace k25::kernels
