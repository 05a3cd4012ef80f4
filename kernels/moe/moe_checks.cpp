#include "kernels/moe/moe_checks.h"

#include <cstdint>
#include <string>

#include "kernels/core/operand.h"

namespace k25::kernels {

void check_moe_device(std::string_view op, Device device) {
  if (device == Device::kCpu) return;
  fail(ErrorKind::kUsage,
       std::string(op) + ": planned for the GPU, but it runs on the CPU only; plan it for the CPU");
}

void check_moe_routing_dtype(std::string_view op, DType dtype) {
  if (dtype == DType::kFloat32 || dtype == DType::kFloat64) return;
  fail(ErrorKind::kUsage, std::string(op) + ": dtype is " + std::string(dtype_name(dtype)) +
                              "; routing is computed in fp32 (or fp64)");
}

void check_moe_index(std::string_view op, const ConstTensor& index_NK, std::int64_t tokens,
                     std::int64_t top_k, std::int64_t experts) {
  check_operand(op, "index_NK", index_NK, DType::kInt32, {tokens, top_k}, Density::kRows);
  if (tokens == 0) return;
  const auto* index = index_NK.data<std::int32_t>();
  for (std::int64_t n = 0; n < tokens; ++n) {
    for (std::int64_t k = 0; k < top_k; ++k) {
      const std::int32_t expert = index[n * index_NK.stride(0) + k];
      if (expert >= 0 && expert < experts) continue;
      fail(ErrorKind::kUsage, std::string(op) + ": choice " + std::to_string(k) + " of token " +
                                  std::to_string(n) + " is expert " + std::to_string(expert) +
                                  ", there are " + std::to_string(experts) + " (0 to " +
                                  std::to_string(experts - 1) + ")");
    }
  }
}

void check_moe_rows(std::string_view op, std::int64_t tokens, std::int64_t top_k) {
  if (tokens <= INT32_MAX / top_k) return;
  fail(ErrorKind::kUsage, std::string(op) + ": " + std::to_string(tokens) + " tokens x " +
                              std::to_string(top_k) +
                              " choices must be below 2^31 rows; use smaller batches");
}

void check_moe_row(std::string_view op, const ConstTensor& row_NK, std::int64_t tokens,
                   std::int64_t top_k) {
  check_operand(op, "row_NK", row_NK, DType::kInt32, {tokens, top_k}, Density::kRows);
  if (tokens == 0) return;
  const auto* row = row_NK.data<std::int32_t>();
  const std::int64_t rows = tokens * top_k;
  for (std::int64_t n = 0; n < tokens; ++n) {
    for (std::int64_t k = 0; k < top_k; ++k) {
      const std::int32_t r = row[n * row_NK.stride(0) + k];
      if (r >= 0 && r < rows) continue;
      fail(ErrorKind::kUsage, std::string(op) + ": row_NK says " + std::to_string(r) +
                                  " for choice " + std::to_string(k) + " of token " +
                                  std::to_string(n) + ", there are " + std::to_string(rows) +
                                  " rows; pass what moe_sort wrote");
    }
  }
}

void check_moe_choice(std::string_view op, const ConstTensor& choice_R, std::int64_t rows) {
  check_operand(op, "choice_R", choice_R, DType::kInt32, {rows}, Density::kContiguous);
  if (rows == 0) return;
  const auto* choice = choice_R.data<std::int32_t>();
  for (std::int64_t r = 0; r < rows; ++r) {
    if (choice[r] >= 0 && choice[r] < rows) continue;
    fail(ErrorKind::kUsage, std::string(op) + ": choice_R says " + std::to_string(choice[r]) +
                                " for row " + std::to_string(r) + ", there are " +
                                std::to_string(rows) + " choices; pass what moe_sort wrote");
  }
}

}  // namespace k25::kernels
