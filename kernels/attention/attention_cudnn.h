#pragma once
// Private to attention: cuDNN as a second implementation on the GPU. In a build without cuDNN
// attention_cudnn_none.cpp refuses everything.
//
// cuDNN sees whole sequences: documents are a mask, which hides keys before the query's document,
// and hidden tiles cost as much as visible ones. The backward pass stores the gradients of all
// scores of the sequences it works on, so it takes the batch in equal pieces.

#include "kernels/attention/attention.h"

namespace k25::kernels {

inline constexpr std::int64_t kCudnnWord = 8;  ///< bf16 elements in the 16 bytes it loads at once
inline constexpr std::int64_t kCudnnScratchAlignment = 256;
inline constexpr Bytes kCudnnSlack{std::int64_t{1} << 20};  ///< scratch for counters and the like

// What is planned, in attention_cuda_plan.cpp: every build plans the same bytes. A build without
// CUDA plans for one with cuDNN.

/// Scratch of cuDNN's backward pass: gradients of the scores, and dk and dv of each head.
Bytes cudnn_backward_bytes(const AttentionDesc& desc, std::int64_t sequences);
/// Of a piece of the batch, [sequences, H, T].
Bytes cudnn_delta_bytes(const AttentionDesc& desc, std::int64_t sequences);
/// Sequences that the backward pass takes at once: a divisor of the batch.
std::int64_t cudnn_backward_piece(const AttentionDesc& desc);
/// Throws kUsage with `refusal`, unless it is null, where cuDNN was asked for.
void check_cudnn_choice(const AttentionDesc& desc, const char* refusal);
/// Whether cuDNN is asked first: on demand, and where it takes the shape and pays.
bool may_use_cudnn(const AttentionDesc& desc);

// What runs.

/// Null after the work is enqueued; otherwise why cuDNN does not take these operands on this GPU.
const char* attention_forward_cudnn(Context& ctx, const AttentionDesc& desc,
                                    const AttentionForwardIn& in, const AttentionForwardOut& out,
                                    Workspace workspace);
const char* attention_backward_cudnn(Context& ctx, const AttentionDesc& desc,
                                     const AttentionBackwardIn& in, const AttentionBackwardOut& out,
                                     Workspace workspace);

}  // namespace k25::kernels
