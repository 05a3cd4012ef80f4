#include "kernels/moe/combine.h"

#include <functional>
#include <string>

#include "kernels/core/operand.h"
#include "kernels/moe/moe_checks.h"
#include "kernels/moe/rows_cpu.h"

namespace k25::kernels {
namespace {

constexpr const char* kOp = "moe_combine";
constexpr std::int64_t kRowGrain = 32;

}  // namespace

MoeCombinePlan moe_combine_plan(const MoeCombineDesc& desc) {
  if (desc.tokens < 0 || desc.hidden < 0 || desc.top_k < 1) {
    fail(ErrorKind::kUsage, std::string(kOp) + ": tokens " + std::to_string(desc.tokens) +
                                " and hidden " + std::to_string(desc.hidden) +
                                " must not be negative, top_k " + std::to_string(desc.top_k) +
                                " must be at least 1");
  }
  check_float_dtype(kOp, desc.dtype);
  check_moe_device(kOp, desc.device);
  check_moe_rows(kOp, desc.tokens, desc.top_k);
  return {.desc = desc, .workspace_bytes = Bytes{0}};
}

void moe_combine_forward(Context& ctx, const MoeCombinePlan& plan, const MoeCombineForwardIn& in,
                         const MoeCombineForwardOut& out, Workspace /*workspace*/) {
  const MoeCombineDesc& d = plan.desc;
  const std::int64_t rows = d.tokens * d.top_k;
  check_operand(kOp, "rows_RD", in.rows_RD, d.dtype, {rows, d.hidden}, Density::kRows);
  check_operand(kOp, "weight_NK", in.weight_NK, accumulator_dtype(d.dtype), {d.tokens, d.top_k},
                Density::kRows);
  check_operand(kOp, "y_ND", out.y_ND, d.dtype, {d.tokens, d.hidden}, Density::kRows);
  check_moe_row(kOp, in.row_NK, d.tokens, d.top_k);
  if (rows == 0 || d.hidden == 0) return;
  MoeRowsArgs args{.dtype = d.dtype, .top_k = d.top_k, .cols = d.hidden};
  args.rows_in = {in.rows_RD.raw(), in.rows_RD.stride(0)};
  args.tokens_out = {out.y_ND.raw(), out.y_ND.stride(0)};
  args.weight = {in.weight_NK.raw(), in.weight_NK.stride(0)};
  args.row = in.row_NK.data<std::int32_t>();
  args.row_stride = in.row_NK.stride(0);
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    K25_ISA_CALL(ctx.isa, moe_sum_rows_cpu, args, begin, end);
  };
  parallel_for(ctx.threads, d.tokens, kRowGrain, std::ref(body));
}

void moe_combine_backward(Context& ctx, const MoeCombinePlan& plan, const MoeCombineBackwardIn& in,
                          const MoeCombineBackwardOut& out, Workspace /*workspace*/) {
  const MoeCombineDesc& d = plan.desc;
  const std::int64_t rows = d.tokens * d.top_k;
  const DType weights = accumulator_dtype(d.dtype);
  check_operand(kOp, "dy_ND", in.dy_ND, d.dtype, {d.tokens, d.hidden}, Density::kRows);
  check_operand(kOp, "rows_RD", in.rows_RD, d.dtype, {rows, d.hidden}, Density::kRows);
  check_operand(kOp, "weight_NK", in.weight_NK, weights, {d.tokens, d.top_k}, Density::kRows);
  check_operand(kOp, "drows_RD", out.drows_RD, d.dtype, {rows, d.hidden}, Density::kRows);
  check_operand(kOp, "dweight_NK", out.dweight_NK, weights, {d.tokens, d.top_k}, Density::kRows);
  check_moe_row(kOp, in.row_NK, d.tokens, d.top_k);
  check_moe_choice(kOp, in.choice_R, rows);
  if (rows == 0) return;
  MoeRowsArgs args{.dtype = d.dtype, .top_k = d.top_k, .cols = d.hidden};
  args.tokens_in = {in.dy_ND.raw(), d.hidden == 0 ? 0 : in.dy_ND.stride(0)};
  args.rows_in = {in.rows_RD.raw(), d.hidden == 0 ? 0 : in.rows_RD.stride(0)};
  args.rows_out = {out.drows_RD.raw(), d.hidden == 0 ? 0 : out.drows_RD.stride(0)};
  args.weight = {in.weight_NK.raw(), in.weight_NK.stride(0)};
  args.dweight = {out.dweight_NK.raw(), out.dweight_NK.stride(0)};
  args.row = in.row_NK.data<std::int32_t>();
  args.row_stride = in.row_NK.stride(0);
  args.choice = in.choice_R.data<std::int32_t>();
  const auto products = [&](std::int64_t begin, std::int64_t end) {
    K25_ISA_CALL(ctx.isa, moe_row_products_cpu, args, begin, end);
  };
  parallel_for(ctx.threads, d.tokens, kRowGrain, std::ref(products));
  const auto gather = [&](std::int64_t begin, std::int64_t end) {
    K25_ISA_CALL(ctx.isa, moe_gather_rows_cpu, args, begin, end);
  };
  parallel_for(ctx.threads, rows, kRowGrain, std::ref(gather));
}

}  // namespace k25::kernels
