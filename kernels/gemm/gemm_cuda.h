#pragma once
// Private to kernels/gemm: the product on the GPU, through cuBLASLt.

#include "kernels/gemm/gemm.h"

namespace k25::kernels {

/// What cuBLASLt may use in every product. A constant, so that it does not decide the algorithm
/// differently in two places; 32 MiB is what the library's manual advises for Hopper.
inline constexpr std::int64_t kGemmLibraryBytes = std::int64_t{32} << 20;
/// cuBLASLt wants its workspace on such a border, ours begins on one of 64 bytes.
inline constexpr std::int64_t kGemmLibraryAlignment = 256;
inline constexpr std::int64_t kGemmCudaBytes = kGemmLibraryBytes + kGemmLibraryAlignment;

/// cuBLASLt has no bf16 result of fp32 operands: D is formed in fp32 part by part, then rounded.
inline constexpr std::int64_t kGemmWideRows = 1024;
inline constexpr std::int64_t kGemmWideCols = 16384;

constexpr bool gemm_is_widened(const GemmDesc& d) {
  return d.dtype_ab == DType::kFloat32 && d.dtype_d == DType::kBFloat16;
}

/// The product of a validated call with m, n > 0. `workspace` holds kGemmCudaBytes and, for a
/// widened one, an fp32 part of D behind them.
void gemm_forward_cuda(const Context& ctx, const GemmDesc& desc, const GemmIn& in,
                       const GemmOut& out, Workspace workspace);

}  // namespace k25::kernels
