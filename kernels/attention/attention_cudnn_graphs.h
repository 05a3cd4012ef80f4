#pragma once
// Private to attention: causal attention as graphs of cuDNN operations, in the form that the
// library's fused kernels recognise.

#include "kernels/attention/attention_engines.h"
#include "kernels/attention/cudnn_graph.h"

namespace k25::kernels {

/// Numbers of the operands. kDelta is scratch, fp32 [B, H, T]. kScale is the desc's, kOne 1 and
/// kHidden the score of a hidden key, minus infinity.
enum class CudnnOperand : std::int64_t {
  kQ = 1,
  kK,
  kV,
  kOut,
  kLse,
  kDout,
  kDq,
  kDk,
  kDv,
  kDocBegin,
  kDelta,
  kScale,
  kOne,
  kHidden,
};

/// Writes kOut and kLse.
void describe_attention_forward(const AttentionEngineKey& key, CudnnGraph& graph);
/// Writes kDq, kDk and kDv. dq is one product of the stored score gradients with k: its terms are
/// added in a fixed order, where fp32 atomics would add them as they come.
void describe_attention_backward(const AttentionEngineKey& key, CudnnGraph& graph);

}  // namespace k25::kernels
