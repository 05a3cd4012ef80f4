// What attention takes on the GPU, and by which implementation: pure functions of the description.

#include <algorithm>
#include <string>

#include "kernels/attention/attention_cuda.h"
#include "kernels/attention/attention_cudnn.h"
#include "kernels/core/buffer.h"
#include "kernels/core/check.h"

namespace k25::kernels {
namespace {

constexpr bool kPlansCudnn = K25_PLANS_CUDNN;
constexpr std::int64_t kMaxHeadDim = 256;
constexpr std::int64_t kScoreTile = 128;  // cuDNN rounds stored scores up to whole tiles
constexpr std::int64_t kShortest = 512;   // below, the launches weigh more than the arithmetic
constexpr Bytes kPieceLimit{std::int64_t{5} << 29};     // scratch worth more sequences at once
constexpr Bytes kSequenceLimit{std::int64_t{4} << 30};  // scratch worth cuDNN for one sequence

/// Why cuDNN does not compute this, or null: it may be asked.
const char* cudnn_refusal(const AttentionDesc& d) {
  if (!kPlansCudnn) return "this build has no cuDNN";
  if (d.device != Device::kCuda) return "cuDNN runs on the GPU";
  if (d.dtype != DType::kBFloat16) return "cuDNN takes bf16";
  if (d.masking != Masking::kCausal) return "cuDNN takes causal masking";
  if (d.head_dim % kCudnnWord != 0 || d.head_dim > kMaxHeadDim) {
    return "cuDNN takes head dims that are multiples of 8 up to 256";
  }
  if (d.tokens == 1) return "cuDNN takes sequences of two or more tokens";
  return nullptr;
}

/// Whether it is worth asking: long sequences whose scores fit the scratch that we allow.
bool cudnn_pays(const AttentionDesc& d) {
  return cudnn_refusal(d) == nullptr && d.tokens >= kShortest &&
         cudnn_backward_bytes(d, 1).n <= kSequenceLimit.n;
}

Bytes cudnn_workspace(const AttentionDesc& d) {
  const std::int64_t piece = cudnn_backward_piece(d);
  return Bytes{cudnn_delta_bytes(d, piece).n + cudnn_backward_bytes(d, piece).n + kCudnnSlack.n +
               kCudnnScratchAlignment};
}

}  // namespace

Bytes cudnn_backward_bytes(const AttentionDesc& d, std::int64_t sequences) {
  const std::int64_t padded = align_up(d.tokens, kScoreTile);
  return Bytes{sequences * d.heads * (padded * padded + 2 * d.tokens * d.head_dim) *
               dtype_bytes(DType::kBFloat16)};
}

Bytes cudnn_delta_bytes(const AttentionDesc& d, std::int64_t sequences) {
  return Bytes{align_up(sequences * d.heads * d.tokens * dtype_bytes(DType::kFloat32))};
}

std::int64_t cudnn_backward_piece(const AttentionDesc& d) {
  std::int64_t pieces = 1;
  while (pieces < d.batch &&
         (d.batch % pieces != 0 || cudnn_backward_bytes(d, d.batch / pieces).n > kPieceLimit.n)) {
    ++pieces;
  }
  return d.batch / pieces;
}

void check_cudnn_choice(const AttentionDesc& d, const char* refusal) {
  if (refusal == nullptr || d.implementation != AttentionImplementation::kCudnn) return;
  fail(ErrorKind::kUsage, std::string("attention: implementation cudnn was asked for, but ") +
                              refusal + "; ask for automatic");
}

bool may_use_cudnn(const AttentionDesc& d) {
  if (d.implementation == AttentionImplementation::kCudnn) return true;
  return d.implementation == AttentionImplementation::kAutomatic && cudnn_pays(d);
}

Bytes attention_workspace_cuda(const AttentionDesc& d) {
  const Bytes own{attention_list_bytes_cuda(d).n + align_up(d.batch * d.heads * d.tokens * 4)};
  if (!may_use_cudnn(d)) return own;
  check_cudnn_choice(d, cudnn_refusal(d));
  return Bytes{std::max(own.n, cudnn_workspace(d).n)};
}

}  // namespace k25::kernels
