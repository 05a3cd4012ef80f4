#include "kernels/gemm/gemm_algorithms.h"

#include <string_view>

#include "kernels/core/check.h"
#include "kernels/core/entry_reader.h"

namespace k25::kernels {
namespace {

constexpr std::size_t kWordDigits = 16;

std::string hex(std::uint64_t word) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text(kWordDigits, '0');
  for (std::size_t i = kWordDigits; i-- > 0; word >>= 4) text[i] = kDigits[word & 15];
  return text;
}

bool dtype(EntryReader& in, DType& value) {
  return in.choice(value, dtype_name(DType::kFloat32), DType::kFloat32,
                   dtype_name(DType::kBFloat16), DType::kBFloat16);
}

bool parse_key(EntryReader& in, GemmAlgorithmKey& key) {
  return dtype(in, key.dtype_ab) && in.literal("->") && dtype(in, key.dtype_d) &&
         in.literal(" m=") && in.number(key.m) && in.literal(" n=") && in.number(key.n) &&
         in.literal(" k=") && in.number(key.k) &&
         in.choice(key.transpose_a, " A^T", Transpose::kYes, " A", Transpose::kNo) &&
         in.choice(key.transpose_b, " B^T", Transpose::kYes, " B", Transpose::kNo) &&
         in.choice(key.accumulate, " add", Accumulate::kAdd, " overwrite",
                   Accumulate::kOverwrite) &&
         in.literal(" align=") && in.number(key.alignment[0]) && in.literal(",") &&
         in.number(key.alignment[1]) && in.literal(",") && in.number(key.alignment[2]);
}

/// False for what no GEMM of this library asks cuBLASLt for.
bool possible(const GemmAlgorithmKey& key) {
  if (key.m <= 0 || key.n <= 0 || key.k <= 0) return false;
  if (key.dtype_ab == DType::kFloat32 && key.dtype_d != DType::kFloat32) return false;
  for (std::size_t i = 0; i < 3; ++i) {
    const std::int64_t n = key.alignment[i];
    const std::int64_t element = dtype_bytes(i < 2 ? key.dtype_ab : key.dtype_d);
    if (n < element || n > 16 || (n & (n - 1)) != 0) return false;
  }
  return true;
}

bool parse(const std::string& text, GemmAlgorithmKey& key, GemmAlgorithm& algorithm) {
  EntryReader in(text);
  if (!parse_key(in, key) || !in.literal(" cublaslt=") || !in.number(algorithm.library)) {
    return false;
  }
  if (!in.literal(" ")) return false;
  for (std::uint64_t& word : algorithm.words) {
    if (!in.number(word, 16, kWordDigits)) return false;
  }
  return in.at_end() && possible(key) && gemm_algorithm_string(key, algorithm) == text;
}

}  // namespace

std::string gemm_algorithm_string(const GemmAlgorithmKey& key, const GemmAlgorithm& algorithm) {
  std::string text = std::string(dtype_name(key.dtype_ab)) + "->" +
                     std::string(dtype_name(key.dtype_d)) + " m=" + std::to_string(key.m) +
                     " n=" + std::to_string(key.n) + " k=" + std::to_string(key.k);
  text += key.transpose_a == Transpose::kYes ? " A^T" : " A";
  text += key.transpose_b == Transpose::kYes ? " B^T" : " B";
  text += key.accumulate == Accumulate::kAdd ? " add" : " overwrite";
  text += " align=" + std::to_string(key.alignment[0]) + "," + std::to_string(key.alignment[1]) +
          "," + std::to_string(key.alignment[2]);
  text += " cublaslt=" + std::to_string(algorithm.library) + " ";
  for (const std::uint64_t word : algorithm.words) text += hex(word);
  return text;
}

std::vector<std::string> GemmAlgorithms::to_strings() const {
  std::vector<std::string> entries;
  entries.reserve(algorithms_.size());
  for (const auto& [key, algorithm] : algorithms_) {
    entries.push_back(gemm_algorithm_string(key, algorithm));
  }
  return entries;
}

void GemmAlgorithms::load(std::span<const std::string> entries) {
  load_entries(entries, "GEMM algorithm", "product", parse, algorithms_);
}

}  // namespace k25::kernels
