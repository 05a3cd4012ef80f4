#pragma once
// Rotary position embedding on query or key heads.
//
// Legend  N rows (tokens), H heads, E head dimension (even). x, y: [N, H, E] of one dtype (fp32,
//         bf16, on the CPU fp64), E dense, other strides free (views into a fused q|k|v matrix).
//         position_N: int32, the token's position in its document, 0 <= position < max_position.
//         table: [max_position, E] fp32 (fp64 for fp64): cos in the first E/2 columns, then sin.
// Formula  for i < E/2 and angle a = position * theta^(-2i/E) (half-split pairs, as in Llama and
//         Hugging Face):  y_i = x_i cos a - x_{i+E/2} sin a;
//                         y_{i+E/2} = x_{i+E/2} cos a + x_i sin a.
// Backward  the rotation by -a.
// Numerics  the table is computed in fp64 and rounded once; the rotation runs in fp32 (fp64).
// Aliasing  y may be x.
// Devices  CPU and CUDA, equal bits (IEEE leaves the payload of NaN open).
// Errors  kUsage naming row and position for a position outside the table. On the GPU positions are
//         not read back: call rope_check_positions on the host's copy. A bad position there turns
//         its row of y into NaN and touches no foreign memory.
// Source  Su et al., "RoFormer: enhanced transformer with rotary position embedding", 2021, eq. 34.

#include "kernels/core/context.h"
#include "kernels/core/tensor.h"

namespace k25::kernels {

struct RopeDesc {
  std::int64_t rows = 0, heads = 0, head_dim = 0;
  std::int64_t max_position = 0;
  double theta = 10000.0;
  DType dtype = DType::kFloat32;
  Device device = Device::kCpu;  ///< where it runs
};

struct RopePlan {
  RopeDesc desc;
  Bytes workspace_bytes;
};

struct RopeIn {
  ConstTensor x_NHE, position_N, table;
};
struct RopeOut {
  Tensor y_NHE;
};

RopePlan rope_plan(const RopeDesc& desc);
/// Fills the table once, in host memory, whatever desc.device is.
void rope_fill_table(const RopeDesc& desc, const Tensor& table);
/// Throws kUsage unless every position ([N] int32, in host memory) is in the table.
void rope_check_positions(const RopeDesc& desc, const ConstTensor& host_position_N);
void rope_forward(Context& ctx, const RopePlan& plan, const RopeIn& in, const RopeOut& out,
                  Workspace workspace);
/// in.x is dy, out.y is dx.
void rope_backward(Context& ctx, const RopePlan& plan, const RopeIn& in, const RopeOut& out,
                   Workspace workspace);

}  // namespace k25::kernels
