#pragma once
// Operands and the definition, shared by the CPU and the CUDA tests of GEMM.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/gemm/gemm.h"
#include "tests/kernels/op_test.h"

namespace k25::gemm_test {

using kernels::Accumulate;
using kernels::GemmDesc;
using kernels::Transpose;
using op_test::GuardedTensor;
using op_test::Layout;

/// Operand and result types; the GPU has all but the last.
inline constexpr std::array<std::array<DType, 2>, 5> kPairs{{{DType::kFloat32, DType::kFloat32},
                                                             {DType::kBFloat16, DType::kBFloat16},
                                                             {DType::kBFloat16, DType::kFloat32},
                                                             {DType::kFloat32, DType::kBFloat16},
                                                             {DType::kFloat64, DType::kFloat64}}};
inline constexpr int kVariants = 8 * static_cast<int>(kPairs.size());

/// One of every combination of transposes, accumulate mode (bits 0 to 2) and types.
inline GemmDesc variant_of(std::int64_t m, std::int64_t n, std::int64_t k, int variant) {
  const auto& types = kPairs[static_cast<std::size_t>(variant / 8)];
  return {.m = m,
          .n = n,
          .k = k,
          .transpose_a = (variant & 1) != 0 ? Transpose::kYes : Transpose::kNo,
          .transpose_b = (variant & 2) != 0 ? Transpose::kYes : Transpose::kNo,
          .dtype_ab = types[0],
          .dtype_d = types[1],
          .accumulate = (variant & 4) != 0 ? Accumulate::kAdd : Accumulate::kOverwrite};
}

inline std::vector<std::int64_t> stored_shape(Transpose t, std::int64_t rows, std::int64_t cols) {
  if (t == Transpose::kYes) return {cols, rows};
  return {rows, cols};
}

inline GuardedTensor operand_a(const GemmDesc& d, Layout layout = {}) {
  return op_test::random_tensor("a", d.dtype_ab, stored_shape(d.transpose_a, d.m, d.k), layout);
}
inline GuardedTensor operand_b(const GemmDesc& d, Layout layout = {}) {
  return op_test::random_tensor("b", d.dtype_ab, stored_shape(d.transpose_b, d.k, d.n), layout);
}
inline GuardedTensor old_d(const GemmDesc& d, Layout layout = {}) {
  return op_test::random_tensor("d", d.dtype_d, {d.m, d.n}, layout);
}

/// The definition, summed in Acc in index order.
template <class Acc>
std::vector<double> naive(const GemmDesc& d, const GuardedTensor& a, const GuardedTensor& b,
                          const GuardedTensor& old) {
  const std::vector<double> av = a.get(), bv = b.get(), dv = old.get();
  std::vector<double> out(static_cast<std::size_t>(d.m * d.n));
  for (std::int64_t i = 0; i < d.m; ++i) {
    for (std::int64_t j = 0; j < d.n; ++j) {
      Acc sum = 0;
      for (std::int64_t k = 0; k < d.k; ++k) {
        const auto x = d.transpose_a == Transpose::kYes ? k * d.m + i : i * d.k + k;
        const auto y = d.transpose_b == Transpose::kYes ? j * d.k + k : k * d.n + j;
        sum += static_cast<Acc>(av[static_cast<std::size_t>(x)]) *
               static_cast<Acc>(bv[static_cast<std::size_t>(y)]);
      }
      const auto at = static_cast<std::size_t>(i * d.n + j);
      if (d.accumulate == Accumulate::kAdd) sum += static_cast<Acc>(dv[at]);
      out[at] = static_cast<double>(sum);
    }
  }
  return out;
}

inline std::string describe(const GemmDesc& d) {
  return "m=" + std::to_string(d.m) + " n=" + std::to_string(d.n) + " k=" + std::to_string(d.k) +
         (d.transpose_a == Transpose::kYes ? " A^T" : " A") +
         (d.transpose_b == Transpose::kYes ? " B^T " : " B ") +
         std::string(dtype_name(d.dtype_ab)) + "->" + std::string(dtype_name(d.dtype_d)) +
         (d.accumulate == Accumulate::kAdd ? " add" : " overwrite");
}

}  // namespace k25::gemm_test
