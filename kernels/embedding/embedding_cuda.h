#pragma once
// Private to embedding: the CUDA versions, for operands that embedding.cpp has checked (but the
// tokens).

#include "kernels/embedding/embedding.h"

namespace k25::kernels {

void embedding_forward_cuda(Context& ctx, const EmbeddingPlan& plan, const EmbeddingForwardIn& in,
                            const EmbeddingForwardOut& out);
void embedding_backward_cuda(Context& ctx, const EmbeddingPlan& plan, const EmbeddingBackwardIn& in,
                             const EmbeddingBackwardOut& out, Workspace workspace);

}  // namespace k25::kernels
