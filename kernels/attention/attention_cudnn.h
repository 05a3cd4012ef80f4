#pragma once
// Private to attention: cuDNN as a second implementation on the GPU. In a build without cuDNN
// attention_cudnn_none.cpp refuses everything.
//
// cuDNN sees whole sequences: documents are a mask, which hides keys before the query's document,
// and hidden tiles cost as much as visible ones. The backward pass stores the gradients of all
// scores of the sequences it works on, so it takes the batch in equal pieces.

#include "kernels/attention/attention.h"

namespace k25::kernels {

/// Why cuDNN does not compute this, or null: it may be asked.
const char* attention_cudnn_refusal(const AttentionDesc& desc);
/// Whether it is worth asking: long sequences whose scores fit the scratch that we allow.
bool attention_cudnn_pays(const AttentionDesc& desc);
/// Scratch of the larger direction.
Bytes attention_workspace_cudnn(const AttentionDesc& desc);

/// Null after the work is enqueued; otherwise why cuDNN does not take these operands on this GPU.
const char* attention_forward_cudnn(Context& ctx, const AttentionDesc& desc,
                                    const AttentionForwardIn& in, const AttentionForwardOut& out,
                                    Workspace workspace);
const char* attention_backward_cudnn(Context& ctx, const AttentionDesc& desc,
                                     const AttentionBackwardIn& in, const AttentionBackwardOut& out,
                                     Workspace workspace);

}  // namespace k25::kernels
