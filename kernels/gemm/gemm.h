#pragma once
// General matrix product, the only one in the project: D = op(A) op(B), or D += op(A) op(B).
//
// Legend  M, N, K: op(A) is [M, K], op(B) is [K, N], D is [M, N]. Row-major; a view may have any
// row
//         stride, its last dimension must be dense.
// Numerics  fp32 and bf16 operands accumulate in fp32, fp64 in fp64; a bf16 D is rounded once. The
//         sum over K runs in an order that depends on shape, instruction set and dtypes only.
// Aliasing  D must not overlap A or B.
// Errors  kUsage for shapes, dtypes or strides that do not fit together.

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
};

struct GemmPlan {
  GemmDesc desc;
  Bytes workspace_bytes;  ///< packing scratch and, for bf16, fp32 copies
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
