#pragma once
// Which cuBLASLt algorithm computes which product on the GPU.
//
// A caller owns one table per GPU and points Context::gemm_algorithms to it. The first product of a
// description asks cuBLASLt's heuristic, once, and the table keeps the answer; later products find
// it here, descriptors included, and allocate nothing. What the heuristic answers is a function of
// description, library version and GPU, so that ranks with equal hardware agree without talking.
//
// to_strings() goes into a run's records and load() brings it back, so that a resumed run sums in
// the same order. One string an entry, in a fixed order:
//   "bf16->fp32 m=8192 n=2048 k=2048 A^T B add align=16,16,16 cublaslt=130100 <128 hex digits>"
// Threads  one table is used by one thread at a time.
// Errors  kUsage naming the entry: load() for one that is malformed, of a product no GEMM computes,
//         or there twice; gemm_forward for one that was stored by another version of cuBLASLt or
//         that cuBLASLt refuses.

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/gemm/gemm.h"

namespace k25::kernels {

/// A product as far as the choice of its algorithm goes.
struct GemmAlgorithmKey {
  std::int64_t m = 0, n = 0, k = 0;
  Transpose transpose_a = Transpose::kNo, transpose_b = Transpose::kNo;
  DType dtype_ab = DType::kFloat32, dtype_d = DType::kFloat32;
  Accumulate accumulate = Accumulate::kOverwrite;
  /// Of A, B and D: the largest power of two up to 16 bytes that divides address and row stride.
  std::array<std::int64_t, 3> alignment{};

  friend auto operator<=>(const GemmAlgorithmKey&, const GemmAlgorithmKey&) = default;
};

struct GemmAlgorithm {
  std::uint64_t library = 0;             ///< cublasLtGetVersion() of who chose it
  std::array<std::uint64_t, 8> words{};  ///< the opaque cublasLtMatmulAlgo_t

  friend bool operator==(const GemmAlgorithm&, const GemmAlgorithm&) = default;
};

/// Private to the CUDA build: descriptors of one product with its row strides.
struct PreparedGemm;

class GemmAlgorithms {
 public:
  GemmAlgorithms() = default;
  GemmAlgorithms(const GemmAlgorithms&) = delete;
  GemmAlgorithms& operator=(const GemmAlgorithms&) = delete;

  std::size_t size() const { return algorithms_.size(); }
  std::vector<std::string> to_strings() const;
  /// Adds to an empty table, or to one that has none of the entries.
  void load(std::span<const std::string> entries);

 private:
  friend class GemmTableAccess;  // gemm_cuda.cpp
  using Strides = std::array<std::int64_t, 3>;

  std::map<GemmAlgorithmKey, GemmAlgorithm> algorithms_;
  std::map<std::pair<GemmAlgorithmKey, Strides>, std::shared_ptr<const PreparedGemm>> prepared_;
};

/// The entry's string, as in to_strings().
std::string gemm_algorithm_string(const GemmAlgorithmKey& key, const GemmAlgorithm& algorithm);

}  // namespace k25::kernels
