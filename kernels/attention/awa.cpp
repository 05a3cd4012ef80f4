#include "kernels/attention/awa.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_views.h"
#include "kernels/attention/awa_cpu.h"
#include "kernels/core/buffer.h"
#include "kernels/core/operand.h"
#include "kernels/core/work_cut.h"

namespace k25::kernels {
namespace {

constexpr std::string_view kOp = "awa";
constexpr std::int64_t kMaxSlots = 32;  // pieces of the work, each with scratch of its own

AwaSizes sizes_of(const AwaDesc& d) {
  const std::int64_t rows =
      awa_table_rows(d.tokens, d.near_window, d.far_window, d.stride, d.summaries, d.query_tile);
  return {d.tokens,
          rows,
          align_up(d.head_dim, kAttentionPad),
          align_up(d.value_dim, kAttentionPad),
          d.summaries,
          d.query_tile};
}

/// How the batch x kv_heads units are cut.
WorkCut cut_of(const AwaDesc& d) {
  const AwaSizes sizes = sizes_of(d);
  const std::int64_t elements = awa_tile_elements(sizes) + awa_sum_elements(sizes);
  return cut_work(d.batch * d.kv_heads, kMaxSlots,
                  elements * dtype_bytes(accumulator_dtype(d.dtype)));
}

void check_summary_ends(const AwaDesc& d, const ConstTensor& ends) {
  for (std::int64_t b = 0; b < d.batch; ++b) {
    const std::int32_t* const row = ends.data<std::int32_t>() + b * ends.stride(0);
    for (std::int64_t s = 0; s < d.summaries; ++s) {
      const auto refuse = [&](const std::string& why) {
        fail(ErrorKind::kUsage, "awa: summary_end of sequence " + std::to_string(b) + ", slot " +
                                    std::to_string(s) + ": " + std::to_string(row[s]) + why);
      };
      if (row[s] < 0 || row[s] > d.tokens) {
        refuse(" leaves the sequence of " + std::to_string(d.tokens) +
               " tokens, whose number stands for no summary");
      }
      if (s > 0 && row[s] != d.tokens && row[s] <= row[s - 1]) {
        refuse(" does not rise above that of the slot before, " + std::to_string(row[s - 1]));
      }
    }
  }
}

void check_keys(const AwaDesc& d, const AwaKeys& in) {
  check_operand(kOp, "k", in.k_BTKE, d.dtype, {d.batch, d.tokens, d.kv_heads, d.head_dim},
                Density::kRows);
  check_operand(kOp, "v", in.v_BTKV, d.dtype, {d.batch, d.tokens, d.kv_heads, d.value_dim},
                Density::kRows);
  AttentionDesc documents;
  documents.batch = d.batch;
  documents.tokens = d.tokens;
  attention_check_documents(documents, in.doc_begin_BT, in.doc_end_BT);
  if (in.appendix_BT) {
    check_operand(kOp, "appendix", in.appendix_BT, DType::kInt32, {d.batch, d.tokens},
                  Density::kRows);
  }
  check_operand(kOp, "summary_k", in.summary_k_BSKE, d.dtype,
                {d.batch, d.summaries, d.kv_heads, d.head_dim}, Density::kRows);
  check_operand(kOp, "summary_v", in.summary_v_BSKV, d.dtype,
                {d.batch, d.summaries, d.kv_heads, d.value_dim}, Density::kRows);
  check_operand(kOp, "summary_end", in.summary_end_BS, DType::kInt32, {d.batch, d.summaries},
                Density::kRows);
  if (d.batch * d.tokens * d.summaries > 0) check_summary_ends(d, in.summary_end_BS);
}

RowsOfInt rows_of(const ConstTensor& t) {
  if (!t) return {};
  return {t.data<std::int32_t>(), t.stride(0)};
}

/// What the bodies of parallel_for see. They capture one pointer, so that std::function allocates
/// nothing.
template <class T, class A>
struct Call {
  AwaArgs<T, A> args;
  WorkCut cut;
  CpuIsa isa;
  void* scratch;

  Call(Context& ctx, const AwaDesc& d, const ConstTensor& q, const AwaKeys& in, Workspace workspace)
      : cut(cut_of(d)), isa(ctx.isa), scratch(workspace.data) {
    args.tokens = d.tokens;
    args.heads = d.heads;
    args.kv_heads = d.kv_heads;
    args.head_dim = d.head_dim;
    args.value_dim = d.value_dim;
    args.padded_dim = align_up(d.head_dim, kAttentionPad);
    args.padded_value_dim = align_up(d.value_dim, kAttentionPad);
    args.near_window = d.near_window;
    args.far_window = d.far_window;
    args.stride = d.stride;
    args.summaries = d.summaries;
    args.query_tile = d.query_tile;
    args.scale = static_cast<A>(d.scale);
    args.q = heads_view<T>(q);
    args.k = heads_view<T>(in.k_BTKE);
    args.v = heads_view<T>(in.v_BTKV);
    args.summary_k = heads_view<T>(in.summary_k_BSKE);
    args.summary_v = heads_view<T>(in.summary_v_BSKV);
    args.doc_end = rows_of(in.doc_end_BT);
    args.appendix = rows_of(in.appendix_BT);
    args.summary_end = rows_of(in.summary_end_BS);
  }
  A* slot(std::int64_t begin) const { return cut.slot<A>(scratch, begin); }
};

template <class T, class A>
void forward_typed(Context& ctx, const AwaDesc& d, const AwaForwardIn& in, const AwaForwardOut& out,
                   Workspace workspace) {
  Call<T, A> call(ctx, d, in.q_BTHE, in.keys, workspace);
  call.args.out = heads_view<T>(out.out_BTHV);
  call.args.lse = heads_view<A>(out.lse_BHT);
  call.args.score_mean = heads_view<A>(out.score_mean_BHT);
  const auto* const c = &call;
  parallel_for(ctx.threads, c->cut.units, c->cut.grain, [c](std::int64_t begin, std::int64_t end) {
    K25_ISA_CALL(c->isa, awa_forward_cpu, c->args, begin, end, c->slot(begin));
  });
}

template <class T, class A>
void backward_typed(Context& ctx, const AwaDesc& d, const AwaBackwardIn& in,
                    const AwaBackwardOut& out, Workspace workspace) {
  Call<T, A> call(ctx, d, in.q_BTHE, in.keys, workspace);
  call.args.lse = {const_cast<A*>(in.lse_BHT.data<A>()), in.lse_BHT.stride(0), in.lse_BHT.stride(1),
                   in.lse_BHT.stride(2)};
  call.args.saved_out = heads_view<T>(in.out_BTHV);
  call.args.dout = heads_view<T>(in.dout_BTHV);
  call.args.dq = heads_view<T>(out.dq_BTHE);
  call.args.dk = heads_view<T>(out.dk_BTKE);
  call.args.dv = heads_view<T>(out.dv_BTKV);
  call.args.d_summary_k = heads_view<T>(out.d_summary_k_BSKE);
  call.args.d_summary_v = heads_view<T>(out.d_summary_v_BSKV);
  const auto* const c = &call;
  parallel_for(ctx.threads, c->cut.units, c->cut.grain, [c](std::int64_t begin, std::int64_t end) {
    K25_ISA_CALL(c->isa, awa_backward_cpu, c->args, begin, end, c->slot(begin));
  });
}

}  // namespace

AwaPlan awa_plan(const AwaDesc& desc) {
  AwaPlan plan;
  AwaDesc& d = plan.desc = desc;
  if (d.value_dim == 0) d.value_dim = d.head_dim;
  const auto number = [](std::int64_t n) { return std::to_string(n); };
  K25_CHECK(d.device == Device::kCpu, "awa: runs on the CPU only");
  K25_CHECK(d.batch >= 0 && d.tokens >= 0 && d.summaries >= 0,
            "awa: batch " + number(d.batch) + ", tokens " + number(d.tokens) + " and summaries " +
                number(d.summaries) + " must not be negative");
  K25_CHECK(d.tokens <= INT32_MAX, "awa: at most 2^31 - 1 tokens a sequence");
  K25_CHECK(d.tokens > 0 || d.summaries == 0, "awa: summaries of a sequence without tokens");
  K25_CHECK(d.head_dim > 0 && d.value_dim > 0, "awa: head_dim " + number(d.head_dim) +
                                                   " and value_dim " + number(d.value_dim) +
                                                   " must be positive");
  K25_CHECK(d.kv_heads > 0 && d.heads > 0 && d.heads % d.kv_heads == 0,
            "awa: heads " + number(d.heads) + " must be a multiple of kv_heads " +
                number(d.kv_heads) + ", both positive");
  K25_CHECK(d.near_window > 0,
            "awa: near_window " + number(d.near_window) + " must be positive: a token sees itself");
  K25_CHECK(d.far_window >= d.near_window, "awa: far_window " + number(d.far_window) +
                                               " must not be less than near_window " +
                                               number(d.near_window));
  K25_CHECK(d.far_window <= INT32_MAX, "awa: far_window at most 2^31 - 1 tokens");
  K25_CHECK(d.stride > 0 && d.stride <= INT32_MAX,
            "awa: stride " + number(d.stride) + " must lie in 1 to 2^31 - 1");
  K25_CHECK(d.query_tile > 0, "awa: query_tile " + number(d.query_tile) + " must be positive");
  check_float_dtype(kOp, d.dtype, d.device);
  K25_CHECK(std::isfinite(d.scale) && d.scale >= 0,
            "awa: scale must be positive, or 0 for 1 / sqrt(head_dim)");
  if (d.scale == 0) d.scale = 1.0 / std::sqrt(static_cast<double>(d.head_dim));
  d.query_tile = std::min(d.query_tile, std::max<std::int64_t>(1, d.tokens));

  const std::int64_t rows = d.batch * d.tokens * d.heads;
  const std::int64_t element = dtype_bytes(accumulator_dtype(d.dtype));
  if (d.batch * d.tokens > 0) {
    plan.workspace_bytes = cut_of(d).bytes();
    plan.tile_bytes = Bytes{awa_tile_elements(sizes_of(d)) * element};
  }
  plan.saved_bytes = Bytes{rows * d.value_dim * dtype_bytes(d.dtype) + rows * element};
  return plan;
}

void awa_forward(Context& ctx, const AwaPlan& plan, const AwaForwardIn& in,
                 const AwaForwardOut& out, Workspace workspace) {
  const AwaDesc& d = plan.desc;
  const DType sums = accumulator_dtype(d.dtype);
  check_operand(kOp, "q", in.q_BTHE, d.dtype, {d.batch, d.tokens, d.heads, d.head_dim},
                Density::kRows);
  check_keys(d, in.keys);
  check_operand(kOp, "out", out.out_BTHV, d.dtype, {d.batch, d.tokens, d.heads, d.value_dim},
                Density::kRows);
  check_operand(kOp, "lse", out.lse_BHT, sums, {d.batch, d.heads, d.tokens}, Density::kRows);
  if (out.score_mean_BHT) {
    check_operand(kOp, "score_mean", out.score_mean_BHT, sums, {d.batch, d.heads, d.tokens},
                  Density::kRows);
  }
  check_workspace(kOp, workspace, plan.workspace_bytes);
  if (d.batch * d.tokens == 0) return;
  switch (d.dtype) {
    case DType::kFloat64:
      return forward_typed<double, double>(ctx, d, in, out, workspace);
    case DType::kBFloat16:
      return forward_typed<BFloat16, float>(ctx, d, in, out, workspace);
    default:
      return forward_typed<float, float>(ctx, d, in, out, workspace);
  }
}

void awa_backward(Context& ctx, const AwaPlan& plan, const AwaBackwardIn& in,
                  const AwaBackwardOut& out, Workspace workspace) {
  const AwaDesc& d = plan.desc;
  const auto like_q = {d.batch, d.tokens, d.heads, d.head_dim};
  const auto like_out = {d.batch, d.tokens, d.heads, d.value_dim};
  check_operand(kOp, "q", in.q_BTHE, d.dtype, like_q, Density::kRows);
  check_keys(d, in.keys);
  check_operand(kOp, "out", in.out_BTHV, d.dtype, like_out, Density::kRows);
  check_operand(kOp, "lse", in.lse_BHT, accumulator_dtype(d.dtype), {d.batch, d.heads, d.tokens},
                Density::kRows);
  check_operand(kOp, "dout", in.dout_BTHV, d.dtype, like_out, Density::kRows);
  check_operand(kOp, "dq", out.dq_BTHE, d.dtype, like_q, Density::kRows);
  check_operand(kOp, "dk", out.dk_BTKE, d.dtype, {d.batch, d.tokens, d.kv_heads, d.head_dim},
                Density::kRows);
  check_operand(kOp, "dv", out.dv_BTKV, d.dtype, {d.batch, d.tokens, d.kv_heads, d.value_dim},
                Density::kRows);
  check_operand(kOp, "d_summary_k", out.d_summary_k_BSKE, d.dtype,
                {d.batch, d.summaries, d.kv_heads, d.head_dim}, Density::kRows);
  check_operand(kOp, "d_summary_v", out.d_summary_v_BSKV, d.dtype,
                {d.batch, d.summaries, d.kv_heads, d.value_dim}, Density::kRows);
  check_workspace(kOp, workspace, plan.workspace_bytes);
  if (d.batch * d.tokens == 0) return;
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
