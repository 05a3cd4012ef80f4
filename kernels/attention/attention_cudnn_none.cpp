#include "kernels/attention/attention_cudnn.h"

namespace k25::kernels {
namespace {

constexpr const char* kRefusal = "this build has no cuDNN";

}  // namespace

const char* attention_forward_cudnn(Context& /*ctx*/, const AttentionDesc& /*desc*/,
                                    const AttentionForwardIn& /*in*/,
                                    const AttentionForwardOut& /*out*/, Workspace /*workspace*/) {
  return kRefusal;
}

const char* attention_backward_cudnn(Context& /*ctx*/, const AttentionDesc& /*desc*/,
                                     const AttentionBackwardIn& /*in*/,
                                     const AttentionBackwardOut& /*out*/, Workspace /*workspace*/) {
  return kRefusal;
}

}  // namespace k25::kernels
