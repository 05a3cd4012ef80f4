#pragma once
// What decides how Kimi Delta Attention forgets: the log decay g, and how much a token
// writes: beta.
//
// Legend  N rows (tokens), M value heads, K key dim. f, df: [N, M, K] and b, db: [N, M], of one
//         dtype (fp32, bf16, fp64); g, dg: [N, M, K]; beta, dbeta: [N, M]; a_log, da_log: [M];
//         dt_bias, ddt_bias: [M, K], contiguous; all fp32 (fp64 for fp64). Last dimension dense,
//         other strides free.
// Gate    with X = f + dt_bias and a = exp(a_log):
//         kSoftplus    g = -a softplus(X), any decay;
//         kLowerBound  g = lower_bound sigmoid(a X), in (lower_bound, 0); a_log absent: a = 1.
// Beta    kOne: beta = sigmoid(b), in (0, 1); kTwo: twice that (negative eigenvalues).
// Numerics  fp32 for fp32 and bf16 storage; softplus by log1p, so that it is exact to a few units
//         in the last place for X of any size. Nothing becomes NaN by overflow: a_log above 80
//         (fp64: 700) counts as that, and where a sigmoid is flat its slope is 0 whatever a is.
// Backward  with s = sigmoid(X) or sigmoid(a X): df = -a s dg, or df = lower_bound a s (1 - s) dg;
//         db = dbeta beta (1 - s); df and db are overwritten.
//         da_log += sum over N and K of dg g, or of df X; ddt_bias += sum over N of df (of df
//         before it is rounded), in blocks of rows that the shape decides.
// Aliasing  df may be f, db may be b; else outputs overlap no input.
// Devices  CPU and CUDA, which add in different orders. On the CPU, g of kSoftplus in fp64 depends
// on the system's log1p, all else has equal
//         bits on all instruction sets.
// Workspace  gate backward: partial sums of da_log and ddt_bias. The others: none.
// Source  Kimi Team, "Kimi Linear", 2025, section 4; Gu and Dao, "Mamba", 2023, section 3.6.

#include "kernels/core/context.h"
#include "kernels/core/tensor.h"

namespace k25::kernels {

enum class KdaGate : std::uint8_t { kSoftplus, kLowerBound };
enum class KdaBetaRange : std::uint8_t { kOne, kTwo };

struct KdaGateDesc {
  std::int64_t rows = 0, heads = 1, cols = 0;
  KdaGate gate = KdaGate::kSoftplus;
  double lower_bound = -5;  ///< of kLowerBound: negative
  DType dtype = DType::kFloat32;
  Device device = Device::kCpu;  ///< where it runs
};

struct KdaGatePlan {
  KdaGateDesc desc;
  Bytes workspace_bytes;  ///< of backward; forward needs none
};

struct KdaGateForwardIn {
  ConstTensor f_NMK, a_log_M, dt_bias_MK;  ///< a_log optional with kLowerBound
};
struct KdaGateForwardOut {
  Tensor g_NMK;
};
struct KdaGateBackwardIn {
  ConstTensor dg_NMK, f_NMK, a_log_M, dt_bias_MK;
};
struct KdaGateBackwardOut {
  Tensor df_NMK;
  Tensor da_log_M, ddt_bias_MK;  ///< optional (frozen)
};

KdaGatePlan kda_gate_plan(const KdaGateDesc& desc);
void kda_gate_forward(Context& ctx, const KdaGatePlan& plan, const KdaGateForwardIn& in,
                      const KdaGateForwardOut& out, Workspace workspace);
void kda_gate_backward(Context& ctx, const KdaGatePlan& plan, const KdaGateBackwardIn& in,
                       const KdaGateBackwardOut& out, Workspace workspace);

struct KdaBetaDesc {
  std::int64_t rows = 0, heads = 1;
  KdaBetaRange range = KdaBetaRange::kOne;
  DType dtype = DType::kFloat32;
  Device device = Device::kCpu;  ///< where it runs
};

struct KdaBetaPlan {
  KdaBetaDesc desc;
  Bytes workspace_bytes;  ///< 0
};

struct KdaBetaForwardIn {
  ConstTensor b_NM;
};
struct KdaBetaForwardOut {
  Tensor beta_NM;
};
struct KdaBetaBackwardIn {
  ConstTensor dbeta_NM, b_NM;
};
struct KdaBetaBackwardOut {
  Tensor db_NM;
};

KdaBetaPlan kda_beta_plan(const KdaBetaDesc& desc);
void kda_beta_forward(Context& ctx, const KdaBetaPlan& plan, const KdaBetaForwardIn& in,
                      const KdaBetaForwardOut& out, Workspace workspace);
void kda_beta_backward(Context& ctx, const KdaBetaPlan& plan, const KdaBetaBackwardIn& in,
                       const KdaBetaBackwardOut& out, Workspace workspace);

}  // namespace k25::kernels
