#pragma once
// Output head and cross-entropy in one op, in vocabulary chunks: the [N, V] logits never exist.
//
// Legend  N rows, D hidden, V vocabulary. x, dx: [N, D] and weight: [V, D] of one dtype (fp32,
//         bf16, fp64). label: [N] int32; kIgnoredLabel marks a row without a label. nll, lse: [N]
//         fp32 (fp64). argmax: [N] int32. dweight: [V, D] fp32 (fp64).
// Formula  z = x weight^T;  lse_n = log sum_v exp(z_nv);
//         nll_n = lse_n - z_{n, label}, 0 if ignored.
//         argmax_n = the v with the largest z_nv, ties to the lowest v; for every row.
// Backward  of sum_n nll_n:  dz_nv = exp(z_nv - lse_n) - [v = label_n], 0 for ignored rows;
//         dx = dz weight (overwritten);  dweight += dz^T x, or with kOverwrite = dz^T x. z is
//         recomputed chunk by chunk.
// Numerics  z, softmax and sums in fp32 for fp32 and bf16 storage; dz is rounded to x's dtype
//         before the two products. Chunks in order.
// Training  cross_entropy_train is forward and backward in one: where a chunk holds the whole
//         vocabulary, each tile's z is formed once. On the CPU its results have the bits of the two
//         calls.
// GPU     fp32 and bf16; fp64 runs on the CPU only. Rows go in tiles of at most 8192. A chunk is
// the
//         whole vocabulary where that leaves tiles of 2048 rows, else at most 8192 classes, so that
//         the workspace stays below 1 GiB however many rows there are (chunks chosen by the caller
//         aside). The products need Context::gemm_algorithms (kernels/gemm).
// Errors  kUsage naming row, label and V for a label outside [0, V) that is not kIgnoredLabel. On
//         the GPU labels are not read back: check them on the host before they are copied
//         (cross_entropy_check_labels); a wrong one gives its row nll = NaN and no gradient.

#include "kernels/core/context.h"
#include "kernels/core/tensor.h"
#include "kernels/gemm/gemm.h"

namespace k25::kernels {

inline constexpr std::int32_t kIgnoredLabel = -1;

struct CrossEntropyDesc {
  std::int64_t rows = 0, hidden = 0, vocab = 0;
  DType dtype = DType::kFloat32;
  std::int64_t vocab_chunk = 0;  ///< 0: chosen by the plan
  Device device = Device::kCpu;  ///< where it runs
};
struct CrossEntropyPlan {
  CrossEntropyDesc desc;
  std::int64_t row_tile = 0, vocab_chunk = 0;
  Bytes workspace_bytes;
  Bytes saved_bytes;  ///< lse
};
struct CrossEntropyForwardIn {
  ConstTensor x_ND, weight_VD, label_N;
};
struct CrossEntropyForwardOut {
  Tensor nll_N, lse_N, argmax_N;  ///< argmax optional
};
struct CrossEntropyBackwardIn {
  ConstTensor x_ND, weight_VD, label_N, lse_N;
};
struct CrossEntropyBackwardOut {
  Tensor dx_ND, dweight_VD;  ///< dweight optional (frozen head)
  Accumulate dweight_mode = Accumulate::kAdd;
};

struct CrossEntropyTrainOut {
  Tensor nll_N, lse_N, argmax_N;  ///< argmax optional
  Tensor dx_ND, dweight_VD;       ///< as CrossEntropyBackwardOut
  Accumulate dweight_mode = Accumulate::kAdd;
};

CrossEntropyPlan cross_entropy_plan(const CrossEntropyDesc& desc);
/// Throws kUsage, as above, for a wrong label among `host_label_N`, [N] int32 in host memory. On
/// the CPU both directions call it themselves.
void cross_entropy_check_labels(const CrossEntropyDesc& desc, const ConstTensor& host_label_N);
void cross_entropy_forward(Context& ctx, const CrossEntropyPlan& plan,
                           const CrossEntropyForwardIn& in, const CrossEntropyForwardOut& out,
                           Workspace workspace);
void cross_entropy_backward(Context& ctx, const CrossEntropyPlan& plan,
                            const CrossEntropyBackwardIn& in, const CrossEntropyBackwardOut& out,
                            Workspace workspace);
void cross_entropy_train(Context& ctx, const CrossEntropyPlan& plan,
                         const CrossEntropyForwardIn& in, const CrossEntropyTrainOut& out,
                         Workspace workspace);

}  // namespace k25::kernels
