#pragma once
// Causal depthwise convolution over four tokens, then SiLU:
//         z_t = w_0 x_{t-3} + w_1 x_{t-2} + w_2 x_{t-1} + w_3 x_t;   y_t = z_t sigmoid(z_t).
//
// Legend  B rows of T tokens, D channels, S sequences.
//         x, y, dx, dy: [B, T, D]; states and their gradients [S, 3, D]: the last three x before
//         the first token, the oldest first; one dtype (fp32, bf16, fp64). weight, dweight: [D, 4],
//         fp32 (fp64 for fp64), contiguous. Last dimension dense, other strides free.
// Sequences  kernels/sequences/sequences.h: rows, packed sequences, or documents in rows. What lies
//         before a sequence is its initial state, before other documents zero.
// States  initial_state absent: zero. final_state, absent or written, holds the last three x of the
//         sequence (of its last document), of the initial state where it is shorter. Decoding is
//         forward of one token with final_state in the memory of initial_state.
// Backward  dz = dy sigmoid(z) (1 + z (1 - sigmoid(z))), z computed again;
//         dx_t = sum_i w_i dz_{t + 3 - i} within the document, plus what dfinal_state brings;
//         dinitial_state likewise; both overwritten. dweight_i += sum_t dz_t x_{t - 3 + i}.
// Numerics  fp32 for fp32 and bf16 storage, one rounding. dweight is summed over blocks of tokens
//         which the lengths alone decide. Equal bits on all instruction sets; bits of a sequence do
//         not depend on where it lies, nor can a NaN of another one reach it.
// Devices  CPU and CUDA, which add in different orders. On CUDA the contents of borders are not
// read
//         back (sequences.h).
// Aliasing  outputs overlap no input, except that final_state may be initial_state.
// Workspace  backward on CUDA: partial sums of dweight. All else: none.
// Errors  kUsage for shapes, dtypes, strides and borders that do not fit.

#include "kernels/core/context.h"
#include "kernels/core/tensor.h"
#include "kernels/sequences/sequences.h"

namespace k25::kernels {

inline constexpr std::int64_t kConv1dWidth = 4;

struct Conv1dDesc {
  std::int64_t batch = 0, tokens = 0, channels = 0;
  std::int64_t sequences = 0;  ///< packed in the only row; 0: a row is a sequence
  DType dtype = DType::kFloat32;
  Device device = Device::kCpu;  ///< where it runs
};

struct Conv1dPlan {
  Conv1dDesc desc;
  Bytes workspace_bytes;  ///< of backward; 0 on the CPU
};

struct Conv1dForwardIn {
  ConstTensor x_BTD, weight_DW;
  SequenceBorders borders;
  ConstTensor initial_state_S3D;  ///< optional
};
struct Conv1dForwardOut {
  Tensor y_BTD;
  Tensor final_state_S3D;  ///< optional
};
struct Conv1dBackwardIn {
  ConstTensor dy_BTD, x_BTD, weight_DW;
  SequenceBorders borders;
  ConstTensor initial_state_S3D, dfinal_state_S3D;  ///< optional
};
struct Conv1dBackwardOut {
  Tensor dx_BTD;
  Tensor dweight_DW;          ///< optional (frozen)
  Tensor dinitial_state_S3D;  ///< optional
};

Conv1dPlan conv1d_plan(const Conv1dDesc& desc);
void conv1d_forward(Context& ctx, const Conv1dPlan& plan, const Conv1dForwardIn& in,
                    const Conv1dForwardOut& out, Workspace workspace);
void conv1d_backward(Context& ctx, const Conv1dPlan& plan, const Conv1dBackwardIn& in,
                     const Conv1dBackwardOut& out, Workspace workspace);

}  // namespace k25::kernels
