#include "kernels/moe/router.h"

#include <cmath>
#include <functional>
#include <string>

#include "kernels/core/operand.h"
#include "kernels/moe/moe_checks.h"
#include "kernels/moe/router_cpu.h"

namespace k25::kernels {
namespace {

constexpr const char* kOp = "moe_router";
constexpr std::int64_t kTokenGrain = 32;

[[noreturn]] void refuse(const std::string& what) {
  fail(ErrorKind::kUsage, std::string(kOp) + ": " + what);
}

void check_desc(const MoeRouterDesc& d) {
  if (d.tokens < 0 || d.experts < 1) {
    refuse("tokens is " + std::to_string(d.tokens) + " and experts " + std::to_string(d.experts) +
           "; tokens must not be negative, experts must be at least 1");
  }
  if (d.groups < 1 || d.groups > kMoeMaxGroups || d.experts % d.groups != 0) {
    refuse(std::to_string(d.experts) + " experts cannot be cut into " + std::to_string(d.groups) +
           " groups; groups must divide experts and be from 1 to " + std::to_string(kMoeMaxGroups));
  }
  if (d.top_groups < 1 || d.top_groups > d.groups) {
    refuse("top_groups is " + std::to_string(d.top_groups) + ", it must be from 1 to groups (" +
           std::to_string(d.groups) + ")");
  }
  const std::int64_t candidates = d.experts / d.groups * d.top_groups;
  if (d.top_k < 1 || d.top_k > candidates) {
    refuse("top_k is " + std::to_string(d.top_k) + ", it must be from 1 to the " +
           std::to_string(candidates) + " experts of " + std::to_string(d.top_groups) + " of " +
           std::to_string(d.groups) + " groups");
  }
  if (!(std::isfinite(d.scale) && d.scale > 0)) {
    refuse("scale is " + std::to_string(d.scale) + ", it must be positive and finite");
  }
  check_moe_routing_dtype(kOp, d.dtype);
  check_moe_device(kOp, d.device);
}

template <class T>
void forward(Context& ctx, const MoeRouterDesc& d, const MoeRouterForwardIn& in,
             const MoeRouterForwardOut& out) {
  const MoeRouterForwardArgs<T> args{
      .experts = d.experts,
      .top_k = d.top_k,
      .groups = d.groups,
      .top_groups = d.top_groups,
      .normalize = d.normalize == NormalizeWeights::kYes,
      .scale = static_cast<T>(d.scale),
      .logits = in.logits_NE.data<T>(),
      .logits_stride = in.logits_NE.stride(0),
      .bias = in.bias_E ? in.bias_E.data<T>() : nullptr,
      .scores = out.scores_NE.data<T>(),
      .scores_stride = out.scores_NE.stride(0),
      .weight = out.weight_NK.data<T>(),
      .weight_stride = out.weight_NK.stride(0),
      .index = out.index_NK.data<std::int32_t>(),
      .index_stride = out.index_NK.stride(0),
  };
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    K25_ISA_CALL(ctx.isa, moe_router_forward_cpu, args, begin, end);
  };
  parallel_for(ctx.threads, d.tokens, kTokenGrain, std::ref(body));
}

template <class T>
void backward(Context& ctx, const MoeRouterDesc& d, const MoeRouterBackwardIn& in,
              const MoeRouterBackwardOut& out) {
  const MoeRouterBackwardArgs<T> args{
      .experts = d.experts,
      .top_k = d.top_k,
      .normalize = d.normalize == NormalizeWeights::kYes,
      .scale = static_cast<T>(d.scale),
      .dweight = in.dweight_NK.data<T>(),
      .dweight_stride = in.dweight_NK.stride(0),
      .scores = in.scores_NE.data<T>(),
      .scores_stride = in.scores_NE.stride(0),
      .dscores = in.dscores_NE ? in.dscores_NE.data<T>() : nullptr,
      .dscores_stride = in.dscores_NE ? in.dscores_NE.stride(0) : 0,
      .index = in.index_NK.data<std::int32_t>(),
      .index_stride = in.index_NK.stride(0),
      .dlogits = out.dlogits_NE.data<T>(),
      .dlogits_stride = out.dlogits_NE.stride(0),
  };
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    K25_ISA_CALL(ctx.isa, moe_router_backward_cpu, args, begin, end);
  };
  parallel_for(ctx.threads, d.tokens, kTokenGrain, std::ref(body));
}

}  // namespace

MoeRouterPlan moe_router_plan(const MoeRouterDesc& desc) {
  check_desc(desc);
  const std::int64_t row = desc.experts * dtype_bytes(desc.dtype) + desc.top_k * 4;
  return {.desc = desc, .workspace_bytes = Bytes{0}, .saved_bytes = Bytes{desc.tokens * row}};
}

void moe_router_forward(Context& ctx, const MoeRouterPlan& plan, const MoeRouterForwardIn& in,
                        const MoeRouterForwardOut& out, Workspace /*workspace*/) {
  const MoeRouterDesc& d = plan.desc;
  check_operand(kOp, "logits_NE", in.logits_NE, d.dtype, {d.tokens, d.experts}, Density::kRows);
  if (in.bias_E) {
    check_operand(kOp, "bias_E", in.bias_E, d.dtype, {d.experts}, Density::kContiguous);
  }
  check_operand(kOp, "scores_NE", out.scores_NE, d.dtype, {d.tokens, d.experts}, Density::kRows);
  check_operand(kOp, "weight_NK", out.weight_NK, d.dtype, {d.tokens, d.top_k}, Density::kRows);
  check_operand(kOp, "index_NK", out.index_NK, DType::kInt32, {d.tokens, d.top_k}, Density::kRows);
  if (d.tokens == 0) return;
  if (d.dtype == DType::kFloat64) {
    forward<double>(ctx, d, in, out);
  } else {
    forward<float>(ctx, d, in, out);
  }
}

void moe_router_backward(Context& ctx, const MoeRouterPlan& plan, const MoeRouterBackwardIn& in,
                         const MoeRouterBackwardOut& out, Workspace /*workspace*/) {
  const MoeRouterDesc& d = plan.desc;
  check_operand(kOp, "dweight_NK", in.dweight_NK, d.dtype, {d.tokens, d.top_k}, Density::kRows);
  check_operand(kOp, "scores_NE", in.scores_NE, d.dtype, {d.tokens, d.experts}, Density::kRows);
  if (in.dscores_NE) {
    check_operand(kOp, "dscores_NE", in.dscores_NE, d.dtype, {d.tokens, d.experts}, Density::kRows);
  }
  check_operand(kOp, "dlogits_NE", out.dlogits_NE, d.dtype, {d.tokens, d.experts}, Density::kRows);
  check_moe_index(kOp, in.index_NK, d.tokens, d.top_k, d.experts);
  if (d.tokens == 0) return;
  if (d.dtype == DType::kFloat64) {
    backward<double>(ctx, d, in, out);
  } else {
    backward<float>(ctx, d, in, out);
  }
}

}  // namespace k25::kernels
