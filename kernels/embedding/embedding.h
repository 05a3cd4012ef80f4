#pragma once
// Row lookup:  out_n = table[token_n];  backward: dtable[token_n] += dout_n, tokens in order.
//
// Legend  N tokens, V vocabulary, D hidden. token: [N] int32. table: [V, D], out, dout: [N, D] of
//         one dtype (fp32, bf16, on the CPU fp64), rows dense. dtable: [V, D] fp32 (fp64 for fp64),
//         accumulated into.
// Devices  CPU and CUDA, equal bits: on the GPU too each row of dtable adds its tokens in order
//         (IEEE leaves the payload of NaN open). N and V below 2^31 on the GPU.
// Workspace  CUDA backward: lists of each row's tokens. CPU and forward: none.
// Errors  kUsage naming the position, the token and V for a token outside [0, V); nothing is
//         written. On the GPU tokens are not read back: call embedding_check_tokens on the host's
//         copy. A bad token there turns its row of out into NaN, is skipped by backward, and
//         touches no foreign memory.

#include "kernels/core/context.h"
#include "kernels/core/tensor.h"

namespace k25::kernels {

struct EmbeddingDesc {
  std::int64_t tokens = 0, vocab = 0, hidden = 0;
  DType dtype = DType::kFloat32;
  Device device = Device::kCpu;  ///< where it runs
};
struct EmbeddingPlan {
  EmbeddingDesc desc;
  Bytes workspace_bytes;  ///< of backward; forward needs none
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
/// Throws kUsage unless every token ([N] int32, in host memory) is in the vocabulary.
void embedding_check_tokens(const EmbeddingDesc& desc, const ConstTensor& host_token_N);
void embedding_forward(Context& ctx, const EmbeddingPlan& plan, const EmbeddingForwardIn& in,
                       const EmbeddingForwardOut& out, Workspace workspace);
void embedding_backward(Context& ctx, const EmbeddingPlan& plan, const EmbeddingBackwardIn& in,
                        const EmbeddingBackwardOut& out, Workspace workspace);

}  // namespace k25::kernels
