#include "kernels/embedding/embedding.h"

#include <cstring>
#include <functional>
#include <string>

#include "kernels/core/operand.h"
#include "kernels/embedding/embedding_cpu.h"
#include "kernels/embedding/embedding_cuda.h"
#include "kernels/embedding/embedding_list_layout.h"

namespace k25::kernels {
namespace {

constexpr std::int64_t kRowGrain = 64;
// Backward is cut by columns, so that every column adds its tokens in order.
constexpr std::int64_t kColumnGrain = 128;

/// Before anything is written.
void check_tokens(const ConstTensor& token_N, const EmbeddingDesc& d) {
  if (d.device == Device::kCpu) return embedding_check_tokens(d, token_N);
  check_operand("embedding", "token_N", token_N, DType::kInt32, {d.tokens}, Density::kContiguous,
                d.device);
}

template <class T, class Sum>
void backward(Context& ctx, const EmbeddingDesc& d, const EmbeddingBackwardIn& in,
              const EmbeddingBackwardOut& out) {
  const EmbeddingBackwardArgs<T, Sum> args{
      .token = in.token_N.data<std::int32_t>(),
      .tokens = d.tokens,
      .dout = in.dout_ND.data<T>(),
      .dout_stride = in.dout_ND.stride(0),
      .dtable = out.dtable_VD.data<Sum>(),
      .dtable_stride = out.dtable_VD.stride(0),
  };
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    K25_ISA_CALL(ctx.isa, embedding_backward_cpu, args, begin, end);
  };
  parallel_for(ctx.threads, d.hidden, kColumnGrain, std::ref(body));
}

}  // namespace

EmbeddingPlan embedding_plan(const EmbeddingDesc& desc) {
  if (desc.tokens < 0 || desc.vocab < 0 || desc.hidden < 0) {
    fail(ErrorKind::kUsage, "embedding: tokens " + std::to_string(desc.tokens) + ", vocab " +
                                std::to_string(desc.vocab) + " and hidden " +
                                std::to_string(desc.hidden) + " must not be negative");
  }
  check_float_dtype("embedding", desc.dtype, desc.device);
  EmbeddingPlan plan{.desc = desc, .workspace_bytes = Bytes{0}};
  if (desc.device == Device::kCuda) {
    if (desc.tokens > INT32_MAX || desc.vocab > INT32_MAX) {
      fail(ErrorKind::kUsage, "embedding: tokens " + std::to_string(desc.tokens) + " and vocab " +
                                  std::to_string(desc.vocab) +
                                  " must be below 2^31 on the GPU; use smaller batches");
    }
    plan.workspace_bytes = embedding_list_layout(desc).total;
  }
  return plan;
}

void embedding_check_tokens(const EmbeddingDesc& desc, const ConstTensor& host_token_N) {
  check_operand("embedding", "token_N", host_token_N, DType::kInt32, {desc.tokens},
                Density::kContiguous);
  if (desc.tokens == 0) return;
  const auto* token = host_token_N.data<std::int32_t>();
  for (std::int64_t n = 0; n < desc.tokens; ++n) {
    if (token[n] < 0 || token[n] >= desc.vocab) {
      fail(ErrorKind::kUsage, "embedding: token " + std::to_string(token[n]) + " at position " +
                                  std::to_string(n) + " is outside the vocabulary of " +
                                  std::to_string(desc.vocab) + " (0 to " +
                                  std::to_string(desc.vocab - 1) + ")");
    }
  }
}

void embedding_forward(Context& ctx, const EmbeddingPlan& plan, const EmbeddingForwardIn& in,
                       const EmbeddingForwardOut& out, Workspace /*workspace*/) {
  const EmbeddingDesc& d = plan.desc;
  check_operand("embedding", "table_VD", in.table_VD, d.dtype, {d.vocab, d.hidden}, Density::kRows,
                d.device);
  check_operand("embedding", "out_ND", out.out_ND, d.dtype, {d.tokens, d.hidden}, Density::kRows,
                d.device);
  check_tokens(in.token_N, d);
  if (d.tokens == 0 || d.hidden == 0) return;
  if constexpr (kWithCuda) {
    if (d.device == Device::kCuda) return embedding_forward_cuda(ctx, plan, in, out);
  }

  const auto* token = in.token_N.data<std::int32_t>();
  const std::int64_t size = dtype_bytes(d.dtype);
  const auto* table = static_cast<const char*>(in.table_VD.raw());
  auto* result = static_cast<char*>(out.out_ND.raw());
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      std::memcpy(result + n * out.out_ND.stride(0) * size,
                  table + token[n] * in.table_VD.stride(0) * size,
                  static_cast<std::size_t>(d.hidden * size));
    }
  };
  parallel_for(ctx.threads, d.tokens, kRowGrain, std::ref(body));
}

void embedding_backward(Context& ctx, const EmbeddingPlan& plan, const EmbeddingBackwardIn& in,
                        const EmbeddingBackwardOut& out, Workspace workspace) {
  const EmbeddingDesc& d = plan.desc;
  check_operand("embedding", "dout_ND", in.dout_ND, d.dtype, {d.tokens, d.hidden}, Density::kRows,
                d.device);
  check_operand("embedding", "dtable_VD", out.dtable_VD, accumulator_dtype(d.dtype),
                {d.vocab, d.hidden}, Density::kRows, d.device);
  check_tokens(in.token_N, d);
  check_workspace("embedding", workspace, plan.workspace_bytes);
  if (d.tokens == 0 || d.hidden == 0) return;
  if constexpr (kWithCuda) {
    if (d.device == Device::kCuda) return embedding_backward_cuda(ctx, plan, in, out, workspace);
  }
  switch (d.dtype) {
    case DType::kFloat32:
      return backward<float, float>(ctx, d, in, out);
    case DType::kBFloat16:
      return backward<BFloat16, float>(ctx, d, in, out);
    default:
      return backward<double, double>(ctx, d, in, out);
  }
}

}  // namespace k25::kernels
