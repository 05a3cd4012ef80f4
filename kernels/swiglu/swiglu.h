#pragma once
// Gated activation:  out = silu(gate) * up,  silu(z) = z / (1 + exp(-z)).
//
// Legend  N rows, F columns. gate_up: [N, 2F], gate in the first F columns, up in the rest (one
//         GEMM writes both). out: [N, F]. One dtype (fp32, bf16, on the CPU fp64), rows dense.
// Backward  dgate = dout up s (1 + gate (1 - s)),  dup = dout gate s,  s = 1 / (1 + exp(-gate)).
// Numerics  in fp32 for fp32 and bf16 storage; on the CPU exp of our own, the same on every
//         instruction set; on the GPU CUDA's (for bf16 its fast one, relative error below 2^-16).
//           Backward gives forward's out again on request, with forward's bits, so that it need not
//           be kept: it costs one more write and no more reads.
// Aliasing  d_gate_up may be gate_up, and backward's out may be dout.
// Devices  CPU and CUDA.
// Source  Shazeer, "GLU variants improve transformer", 2020, eq. 6.

#include "kernels/core/context.h"
#include "kernels/core/tensor.h"

namespace k25::kernels {

struct SwigluDesc {
  std::int64_t rows = 0, cols = 0;  ///< cols = F
  DType dtype = DType::kFloat32;
  Device device = Device::kCpu;  ///< where it runs
};
struct SwigluPlan {
  SwigluDesc desc;
  Bytes workspace_bytes;
};
struct SwigluForwardIn {
  ConstTensor gate_up_NG;
};
struct SwigluForwardOut {
  Tensor out_NF;
};
struct SwigluBackwardIn {
  ConstTensor dout_NF, gate_up_NG;
};
struct SwigluBackwardOut {
  Tensor d_gate_up_NG;
  Tensor out_NF = {};  ///< optional: what forward wrote
};

SwigluPlan swiglu_plan(const SwigluDesc& desc);
void swiglu_forward(Context& ctx, const SwigluPlan& plan, const SwigluForwardIn& in,
                    const SwigluForwardOut& out, Workspace workspace);
void swiglu_backward(Context& ctx, const SwigluPlan& plan, const SwigluBackwardIn& in,
                     const SwigluBackwardOut& out, Workspace workspace);

}  // namespace k25::kernels
