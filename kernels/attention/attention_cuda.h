#pragma once
// Private to attention: the CUDA side of attention.cpp. Operands are checked already.

#include "kernels/attention/attention.h"
#include "kernels/core/buffer.h"

namespace k25::kernels {

inline constexpr std::int64_t kAttentionCudaMaxHeadDim = 256;
inline constexpr std::int64_t kAttentionCudaMaxTokens = std::int64_t{1} << 30;

/// The list of tiles, at the start of the workspace; delta follows.
inline Bytes attention_list_bytes_cuda(const AttentionDesc& d) {
  return Bytes{align_up((align_up(d.batch, 16) + d.batch * d.tokens) * 4)};
}
/// Scratch of the larger direction and implementation: an automatic choice is made at each call. In
/// attention_cuda_plan.cpp, so that every build plans the same bytes. Throws kUsage where the
/// implementation asked for does not exist for this desc.
Bytes attention_workspace_cuda(const AttentionDesc& desc);

void attention_forward_cuda(Context& ctx, const AttentionPlan& plan, const AttentionForwardIn& in,
                            const AttentionForwardOut& out, Workspace workspace);
void attention_backward_cuda(Context& ctx, const AttentionPlan& plan, const AttentionBackwardIn& in,
                             const AttentionBackwardOut& out, Workspace workspace);

}  // namespace k25::kernels
