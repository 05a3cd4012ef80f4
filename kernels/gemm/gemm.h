#pragma once
// General matrix product, the only one in the project: D = op(A) op(B), or D += op(A) op(B).
//
// Legend  M, N, K: op(A) is [M, K], op(B) is [K, N], D is [M, N]. Row-major; a view may have any
//         row stride, its last dimension must be dense.
// Numerics  fp32 and bf16 operands accumulate in fp32, fp64 in fp64; a bf16 D is rounded once. The
//         sum over K runs in an order that depends on shape, instruction set and dtypes only.
// GPU     bf16 and fp32 (true fp32, no tf32) through cuBLASLt; fp64 runs on the CPU only. The order
//         of the sum is that of the algorithm in Context::gemm_algorithms (gemm_algorithms.h), one
//         per shape, dtypes, transposes and alignment of address and row stride up to 16 bytes; the
//         rest of the stride does not matter. Two runs give the same bits. Tensor cores cut each
//         partial sum of 16 bf16 products to fp32 towards zero: up to K/16 2^-23 relative.
// Aliasing  D must not overlap A or B.
// Errors  kUsage for shapes, dtypes, strides or devices that do not fit together, and for the GPU
//         without a table of algorithms.

#include "kernels/core/context.h"
#include "kernels/core/tensor.h"

namespace k25::kernels {

enum class Transpose : std::uint8_t { kNo, kYes };
enum class Accumulate : std::uint8_t { kOverwrite, kAdd };

struct GemmDesc {
  std::int64_t m = 0, n = 0, k = 0;
  Transpose transpose_a = Transpose::kNo;  ///< kYes: A is stored [K, M]
  Transpose transpose_b = Transpose::kNo;  ///< kYes: B is stored [N, K]
  DType dtype_ab = DType::kFloat32;        ///< of both operands: fp32, bf16 or fp64
  DType dtype_d = DType::kFloat32;         ///< fp32, bf16 (from bf16 or fp32 operands) or fp64
  Accumulate accumulate = Accumulate::kOverwrite;
  Device device = Device::kCpu;  ///< where it runs
};

struct GemmPlan {
  GemmDesc desc;
  /// Packing scratch and, for bf16, fp32 copies. GPU: 32 MiB for cuBLASLt, and at most 64 MiB more
  /// for a bf16 D of fp32 operands.
  Bytes workspace_bytes;
};

struct GemmIn {
  ConstTensor a, b;
};
struct GemmOut {
  Tensor d;
};

GemmPlan gemm_plan(const GemmDesc& desc);
void gemm_forward(Context& ctx, const GemmPlan& plan, const GemmIn& in, const GemmOut& out,
                  Workspace workspace);

}  // namespace k25::kernels
