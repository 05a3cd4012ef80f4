#include "kernels/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/attention/attention_cpu.h"
#include "kernels/attention/attention_cuda.h"
#include "kernels/attention/attention_views.h"
#include "kernels/core/buffer.h"
#include "kernels/core/device.h"
#include "kernels/core/operand.h"
#include "kernels/core/work_cut.h"

namespace k25::kernels {
namespace {

constexpr std::int64_t kTile = 64;  // scores of one tile (16 KiB in fp32) stay in the first cache
constexpr std::int64_t kMaxSlots = 32;  // pieces of the work, each with scratch of its own

/// How the batch x kv_heads units are cut.
WorkCut cut_of(const AttentionDesc& d) {
  const std::int64_t elements =
      attention_scratch_elements(d.tokens, align_up(d.head_dim, kAttentionPad),
                                 align_up(d.value_dim, kAttentionPad), kTile, kTile);
  return cut_work(d.batch * d.kv_heads, kMaxSlots,
                  elements * dtype_bytes(accumulator_dtype(d.dtype)));
}

/// Borders of all sequences, which are shaped right already.
void check_documents(const ConstTensor& doc_begin, const ConstTensor& doc_end,
                     const AttentionDesc& d) {
  const auto describe = [&](std::int64_t b, std::int64_t t, std::int64_t begin, std::int64_t end) {
    return "attention: sequence " + std::to_string(b) + ", token " + std::to_string(t) +
           ": document [" + std::to_string(begin) + ", " + std::to_string(end) + ")";
  };
  for (std::int64_t b = 0; b < d.batch; ++b) {
    const std::int32_t* const begins = doc_begin.data<std::int32_t>() + b * doc_begin.stride(0);
    const std::int32_t* const ends = doc_end.data<std::int32_t>() + b * doc_end.stride(0);
    for (std::int64_t t = 0; t < d.tokens; ++t) {
      const std::int64_t begin = begins[t], end = ends[t];
      if (begin < 0 || end > d.tokens) {
        fail(ErrorKind::kUsage, describe(b, t, begin, end) + " leaves the sequence of " +
                                    std::to_string(d.tokens) + " tokens");
      }
      if (begin > t || end <= t) {
        fail(ErrorKind::kUsage, describe(b, t, begin, end) + " does not hold its token");
      }
      const bool continues = t > 0 && ends[t - 1] > t;
      if (continues ? begins[t - 1] != begin || ends[t - 1] != end : begin != t) {
        fail(ErrorKind::kUsage, describe(b, t, begin, end) +
                                    " disagrees with that of the token before; all tokens of "
                                    "a document carry the same begin and end");
      }
    }
  }
}

/// Checks what both directions read; fills what both hand on.
template <class T, class A, class In>
AttentionArgs<T, A> common_args(const AttentionDesc& d, const In& in) {
  AttentionArgs<T, A> args;
  args.tokens = d.tokens;
  args.heads = d.heads;
  args.kv_heads = d.kv_heads;
  args.head_dim = d.head_dim;
  args.value_dim = d.value_dim;
  args.padded_dim = align_up(d.head_dim, kAttentionPad);
  args.padded_value_dim = align_up(d.value_dim, kAttentionPad);
  args.query_tile = args.key_tile = kTile;
  args.causal = d.masking == Masking::kCausal;
  args.scale = static_cast<A>(d.scale);
  args.q = heads_view<T>(in.q_BTHE);
  args.k = heads_view<T>(in.k_BTKE);
  args.v = heads_view<T>(in.v_BTKV);
  if (in.doc_end_BT) {
    args.doc_end = in.doc_end_BT.template data<std::int32_t>();
    args.doc_stride = in.doc_end_BT.stride(0);
  }
  return args;
}

void check_borders(const AttentionDesc& d, const ConstTensor& doc_begin, const ConstTensor& doc_end,
                   Device device) {
  const std::string_view op = "attention";
  K25_CHECK(bool(doc_begin) == bool(doc_end),
            "attention: doc_begin and doc_end come together or not at all");
  if (!doc_begin || d.batch * d.tokens == 0) return;
  const auto per_token = {d.batch, d.tokens};
  check_operand(op, "doc_begin", doc_begin, DType::kInt32, per_token, Density::kRows, device);
  check_operand(op, "doc_end", doc_end, DType::kInt32, per_token, Density::kRows, device);
  if (device == Device::kCpu) check_documents(doc_begin, doc_end, d);
}

template <class In>
void check_inputs(const AttentionDesc& d, const In& in) {
  const std::string_view op = "attention";
  const auto like_q = {d.batch, d.tokens, d.heads, d.head_dim};
  const auto like_k = {d.batch, d.tokens, d.kv_heads, d.head_dim};
  const auto like_v = {d.batch, d.tokens, d.kv_heads, d.value_dim};
  check_operand(op, "q", in.q_BTHE, d.dtype, like_q, Density::kRows, d.device);
  check_operand(op, "k", in.k_BTKE, d.dtype, like_k, Density::kRows, d.device);
  check_operand(op, "v", in.v_BTKV, d.dtype, like_v, Density::kRows, d.device);
  check_borders(d, in.doc_begin_BT, in.doc_end_BT, d.device);
}

/// What the bodies of parallel_for see. They capture one pointer, so that std::function allocates
/// nothing.
template <class T, class A>
struct Call {
  AttentionArgs<T, A> args;
  WorkCut cut;
  CpuIsa isa;
  void* scratch;

  A* slot(std::int64_t begin) const { return cut.slot<A>(scratch, begin); }
};

template <class T, class A>
void forward_typed(Context& ctx, const AttentionDesc& d, const AttentionForwardIn& in,
                   const AttentionForwardOut& out, Workspace workspace) {
  Call<T, A> call{common_args<T, A>(d, in), cut_of(d), ctx.isa, workspace.data};
  AttentionArgs<T, A>& args = call.args;
  args.out = heads_view<T>(out.out_BTHV);
  args.lse = out.lse_BHT.data<A>();
  args.lse_batch_stride = out.lse_BHT.stride(0);
  args.lse_head_stride = out.lse_BHT.stride(1);
  const auto* const c = &call;
  parallel_for(ctx.threads, c->cut.units, c->cut.grain, [c](std::int64_t begin, std::int64_t end) {
    K25_ISA_CALL(c->isa, attention_forward_cpu, c->args, begin, end, c->slot(begin));
  });
}

template <class T, class A>
void backward_typed(Context& ctx, const AttentionDesc& d, const AttentionBackwardIn& in,
                    const AttentionBackwardOut& out, Workspace workspace) {
  Call<T, A> call{common_args<T, A>(d, in), cut_of(d), ctx.isa, workspace.data};
  AttentionArgs<T, A>& args = call.args;
  args.lse = const_cast<A*>(in.lse_BHT.data<A>());
  args.lse_batch_stride = in.lse_BHT.stride(0);
  args.lse_head_stride = in.lse_BHT.stride(1);
  args.saved_out = heads_view<T>(in.out_BTHV);
  args.dout = heads_view<T>(in.dout_BTHV);
  args.dq = heads_view<T>(out.dq_BTHE);
  args.dk = heads_view<T>(out.dk_BTKE);
  args.dv = heads_view<T>(out.dv_BTKV);
  const auto* const c = &call;
  parallel_for(ctx.threads, c->cut.units, c->cut.grain, [c](std::int64_t begin, std::int64_t end) {
    K25_ISA_CALL(c->isa, attention_backward_cpu, c->args, begin, end, c->slot(begin));
  });
}

/// What only the GPU asks for.
void check_cuda(const AttentionDesc& d) {
  K25_CHECK(d.value_dim == d.head_dim, "attention: value_dim " + std::to_string(d.value_dim) +
                                           " on the GPU, where it must equal head_dim, " +
                                           std::to_string(d.head_dim));
  K25_CHECK(d.head_dim <= kAttentionCudaMaxHeadDim,
            "attention: head_dim " + std::to_string(d.head_dim) + " on the GPU, at most " +
                std::to_string(kAttentionCudaMaxHeadDim));
  K25_CHECK(d.tokens <= kAttentionCudaMaxTokens,
            "attention: at most 2^30 tokens a sequence on the GPU");
  // One block a tile, sequence and head at most.
  K25_CHECK(d.batch <= INT32_MAX && d.heads <= INT32_MAX &&
                (d.tokens / 64 + 1) * d.batch <= INT32_MAX / d.heads,
            "attention: batch " + std::to_string(d.batch) + " x tokens " +
                std::to_string(d.tokens) + " x heads " + std::to_string(d.heads) +
                " is more than 64 x (2^31 - 1) on the GPU; use a smaller batch");
}

}  // namespace

void attention_check_documents(const AttentionDesc& desc, const ConstTensor& host_doc_begin_BT,
                               const ConstTensor& host_doc_end_BT) {
  check_borders(desc, host_doc_begin_BT, host_doc_end_BT, Device::kCpu);
}

AttentionPlan attention_plan(const AttentionDesc& desc) {
  AttentionPlan plan;
  AttentionDesc& d = plan.desc = desc;
  K25_CHECK(d.batch >= 0 && d.tokens >= 0, "attention: batch " + std::to_string(d.batch) +
                                               " and tokens " + std::to_string(d.tokens) +
                                               " must not be negative");
  K25_CHECK(d.tokens <= INT32_MAX, "attention: at most 2^31 - 1 tokens a sequence");
  K25_CHECK(d.head_dim > 0,
            "attention: head_dim " + std::to_string(d.head_dim) + " must be positive");
  K25_CHECK(d.kv_heads > 0 && d.heads > 0 && d.heads % d.kv_heads == 0,
            "attention: heads " + std::to_string(d.heads) + " must be a multiple of kv_heads " +
                std::to_string(d.kv_heads) + ", both positive");
  check_float_dtype("attention", d.dtype, d.device);
  K25_CHECK(std::isfinite(d.scale) && d.scale >= 0,
            "attention: scale must be positive, or 0 for 1 / sqrt(head_dim)");
  if (d.value_dim == 0) d.value_dim = d.head_dim;
  K25_CHECK(d.value_dim > 0,
            "attention: value_dim " + std::to_string(d.value_dim) + " must be positive");
  if (d.scale == 0) d.scale = 1.0 / std::sqrt(static_cast<double>(d.head_dim));
  plan.query_tile = plan.key_tile = kTile;
  if (d.device == Device::kCuda) {
    check_cuda(d);
    if (d.batch * d.tokens > 0) plan.workspace_bytes = attention_workspace_cuda(d);
  } else {
    plan.workspace_bytes = d.tokens > 0 ? cut_of(d).bytes() : Bytes{};
  }
  const std::int64_t rows = d.batch * d.tokens * d.heads;
  plan.saved_bytes = Bytes{rows * d.value_dim * dtype_bytes(d.dtype) +
                           rows * dtype_bytes(accumulator_dtype(d.dtype))};
  return plan;
}

void attention_forward(Context& ctx, const AttentionPlan& plan, const AttentionForwardIn& in,
                       const AttentionForwardOut& out, Workspace workspace) {
  const AttentionDesc& d = plan.desc;
  const std::string_view op = "attention";
  check_inputs(d, in);
  check_operand(op, "out", out.out_BTHV, d.dtype, {d.batch, d.tokens, d.heads, d.value_dim},
                Density::kRows, d.device);
  check_operand(op, "lse", out.lse_BHT, accumulator_dtype(d.dtype), {d.batch, d.heads, d.tokens},
                Density::kRows, d.device);
  check_workspace(op, workspace, plan.workspace_bytes);
  if (d.batch * d.tokens == 0) return;
  if constexpr (kWithCuda) {
    if (d.device == Device::kCuda) return attention_forward_cuda(ctx, plan, in, out, workspace);
  }
  switch (d.dtype) {
    case DType::kFloat64:
      return forward_typed<double, double>(ctx, d, in, out, workspace);
    case DType::kBFloat16:
      return forward_typed<BFloat16, float>(ctx, d, in, out, workspace);
    default:
      return forward_typed<float, float>(ctx, d, in, out, workspace);
  }
}

void attention_backward(Context& ctx, const AttentionPlan& plan, const AttentionBackwardIn& in,
                        const AttentionBackwardOut& out, Workspace workspace) {
  const AttentionDesc& d = plan.desc;
  const std::string_view op = "attention";
  check_inputs(d, in);
  const auto like_q = {d.batch, d.tokens, d.heads, d.head_dim};
  const auto like_k = {d.batch, d.tokens, d.kv_heads, d.head_dim};
  const auto like_v = {d.batch, d.tokens, d.kv_heads, d.value_dim};
  const auto like_out = {d.batch, d.tokens, d.heads, d.value_dim};
  check_operand(op, "out", in.out_BTHV, d.dtype, like_out, Density::kRows, d.device);
  check_operand(op, "lse", in.lse_BHT, accumulator_dtype(d.dtype), {d.batch, d.heads, d.tokens},
                Density::kRows, d.device);
  check_operand(op, "dout", in.dout_BTHV, d.dtype, like_out, Density::kRows, d.device);
  check_operand(op, "dq", out.dq_BTHE, d.dtype, like_q, Density::kRows, d.device);
  check_operand(op, "dk", out.dk_BTKE, d.dtype, like_k, Density::kRows, d.device);
  check_operand(op, "dv", out.dv_BTKV, d.dtype, like_v, Density::kRows, d.device);
  check_workspace(op, workspace, plan.workspace_bytes);
  if (d.batch * d.tokens == 0) return;
  if constexpr (kWithCuda) {
    if (d.device == Device::kCuda) return attention_backward_cuda(ctx, plan, in, out, workspace);
  }
  switch (d.dtype) {
    case DType::kFloat64:
      return backward_typed<double, double>(ctx, d, in, out, workspace);
    case DType::kBFloat16:
      return backward_typed<BFloat16, float>(ctx, d, in, out, workspace);
    default:
      return backward_typed<float, float>(ctx, d, in, out, workspace);
  }
}

}  // namespace k25::kernels
