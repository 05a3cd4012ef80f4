#pragma once
// Row lookup:  out_n = table[token_n];  backward: dtable[token_n] += dout_n, tokens in order.
//
// Legend  N tokens, V vocabulary, D hidden. token: [N] int32. table: [V, D], out, dout: [N, D] of
// one
//         dtype (fp32, bf16, fp64). dtable: [V, D] fp32 (fp64 for fp64), accumulated into.
// Errors  kUsage naming the position, the token and V for a token outside [0, V); nothing is
// written.

#include "kernels/core/context.h"
#include "kernels/core/tensor.h"

namespace k25::kernels {

struct EmbeddingDesc {
  std::int64_t tokens = 0, vocab = 0, hidden = 0;
  DType dtype = DType::kFloat32;
};
struct EmbeddingPlan {
  EmbeddingDesc desc;
  Bytes workspace_bytes;
};
struct EmbeddingForwardIn {
  ConstTensor token_N, table_VD;
};
struct EmbeddingForwardOut {
  Tensor out_ND;
};
struct EmbeddingBackwardIn {
  ConstTensor token_N, dout_ND;
};
struct EmbeddingBackwardOut {
  Tensor dtable_VD;
};

EmbeddingPlan embedding_plan(const EmbeddingDesc& desc);
void embedding_forward(Context& ctx, const EmbeddingPlan& plan, const EmbeddingForwardIn& in,
                       const EmbeddingForwardOut& out, Workspace workspace);
void embedding_backward(Context& ctx, const EmbeddingPlan& plan, const EmbeddingBackwardIn& in,
                        const EmbeddingBackwardOut& out, Workspace workspace);

}  // namespace k25::kernels
