#pragma once
// Private to kernels/moe: checks that its ops share.

#include <cstdint>
#include <string_view>

#include "kernels/core/tensor.h"

namespace k25::kernels {

/// Throws kUsage unless the op is planned for the CPU.
void check_moe_device(std::string_view op, Device device);

/// Throws kUsage unless dtype is fp32 or fp64: routing is never computed in less.
void check_moe_routing_dtype(std::string_view op, DType dtype);

/// Throws kUsage unless index ([N, K] int32, rows dense) names experts in [0, experts).
void check_moe_index(std::string_view op, const ConstTensor& index_NK, std::int64_t tokens,
                     std::int64_t top_k, std::int64_t experts);

/// Throws kUsage unless the tokens x top_k rows can be counted in int32.
void check_moe_rows(std::string_view op, std::int64_t tokens, std::int64_t top_k);

/// Throws kUsage unless row ([N, K] int32, rows dense) points at rows in [0, N K).
void check_moe_row(std::string_view op, const ConstTensor& row_NK, std::int64_t tokens,
                   std::int64_t top_k);

/// Throws kUsage unless choice ([R] int32) points at choices in [0, R).
void check_moe_choice(std::string_view op, const ConstTensor& choice_R, std::int64_t rows);

}  // namespace k25::kernels
