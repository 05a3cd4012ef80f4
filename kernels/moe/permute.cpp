#include "kernels/moe/permute.h"

#include <algorithm>
#include <functional>
#include <string>

#include "kernels/core/operand.h"
#include "kernels/moe/moe_checks.h"
#include "kernels/moe/rows_cpu.h"

namespace k25::kernels {
namespace {

constexpr const char* kOp = "moe_permute";
constexpr const char* kSort = "moe_sort";
constexpr std::int64_t kRowGrain = 32;

}  // namespace

MoePermutePlan moe_permute_plan(const MoePermuteDesc& desc) {
  if (desc.tokens < 0 || desc.hidden < 0 || desc.experts < 1 || desc.top_k < 1) {
    fail(ErrorKind::kUsage, std::string(kOp) + ": tokens " + std::to_string(desc.tokens) +
                                " and hidden " + std::to_string(desc.hidden) +
                                " must not be negative, experts " + std::to_string(desc.experts) +
                                " and top_k " + std::to_string(desc.top_k) + " must be at least 1");
  }
  check_float_dtype(kOp, desc.dtype);
  check_moe_device(kOp, desc.device);
  check_moe_rows(kOp, desc.tokens, desc.top_k);
  const std::int64_t rows = desc.tokens * desc.top_k;
  return {.desc = desc,
          .rows = rows,
          .workspace_bytes = Bytes{0},
          .saved_bytes = Bytes{(2 * desc.experts + 1) * 8 + 2 * rows * 4}};
}

void moe_sort(Context& /*ctx*/, const MoePermutePlan& plan, const MoeSortIn& in,
              const MoeSortOut& out, Workspace /*workspace*/) {
  const MoePermuteDesc& d = plan.desc;
  check_operand(kSort, "count_E", out.count_E, DType::kInt64, {d.experts}, Density::kContiguous);
  check_operand(kSort, "offset_B", out.offset_B, DType::kInt64, {d.experts + 1},
                Density::kContiguous);
  check_operand(kSort, "row_NK", out.row_NK, DType::kInt32, {d.tokens, d.top_k}, Density::kRows);
  check_operand(kSort, "choice_R", out.choice_R, DType::kInt32, {plan.rows}, Density::kContiguous);
  check_moe_index(kSort, in.index_NK, d.tokens, d.top_k, d.experts);
  auto* count = out.count_E.data<std::int64_t>();
  auto* offset = out.offset_B.data<std::int64_t>();
  std::fill_n(count, d.experts, std::int64_t{0});
  std::fill_n(offset, d.experts + 1, std::int64_t{0});
  if (plan.rows == 0) return;

  const auto* index = in.index_NK.data<std::int32_t>();
  const std::int64_t index_stride = in.index_NK.stride(0);
  for (std::int64_t n = 0; n < d.tokens; ++n) {
    for (std::int64_t k = 0; k < d.top_k; ++k) ++offset[index[n * index_stride + k] + 1];
  }
  for (std::int64_t e = 0; e < d.experts; ++e) offset[e + 1] += offset[e];
  auto* row = out.row_NK.data<std::int32_t>();
  auto* choice = out.choice_R.data<std::int32_t>();
  for (std::int64_t n = 0; n < d.tokens; ++n) {
    for (std::int64_t k = 0; k < d.top_k; ++k) {
      const std::int32_t expert = index[n * index_stride + k];
      const std::int64_t r = offset[expert] + count[expert]++;
      row[n * out.row_NK.stride(0) + k] = static_cast<std::int32_t>(r);
      choice[r] = static_cast<std::int32_t>(n * d.top_k + k);
    }
  }
}

void moe_permute_forward(Context& ctx, const MoePermutePlan& plan, const MoePermuteForwardIn& in,
                         const MoePermuteForwardOut& out, Workspace /*workspace*/) {
  const MoePermuteDesc& d = plan.desc;
  check_operand(kOp, "x_ND", in.x_ND, d.dtype, {d.tokens, d.hidden}, Density::kRows);
  check_operand(kOp, "rows_RD", out.rows_RD, d.dtype, {plan.rows, d.hidden}, Density::kRows);
  check_moe_choice(kOp, in.choice_R, plan.rows);
  if (plan.rows == 0 || d.hidden == 0) return;
  MoeRowsArgs args{.dtype = d.dtype, .top_k = d.top_k, .cols = d.hidden};
  args.tokens_in = {in.x_ND.raw(), in.x_ND.stride(0)};
  args.rows_out = {out.rows_RD.raw(), out.rows_RD.stride(0)};
  args.choice = in.choice_R.data<std::int32_t>();
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    K25_ISA_CALL(ctx.isa, moe_gather_rows_cpu, args, begin, end);
  };
  parallel_for(ctx.threads, plan.rows, kRowGrain, std::ref(body));
}

void moe_permute_backward(Context& ctx, const MoePermutePlan& plan, const MoePermuteBackwardIn& in,
                          const MoePermuteBackwardOut& out, Workspace /*workspace*/) {
  const MoePermuteDesc& d = plan.desc;
  check_operand(kOp, "drows_RD", in.drows_RD, d.dtype, {plan.rows, d.hidden}, Density::kRows);
  check_operand(kOp, "dx_ND", out.dx_ND, d.dtype, {d.tokens, d.hidden}, Density::kRows);
  check_moe_row(kOp, in.row_NK, d.tokens, d.top_k);
  if (plan.rows == 0 || d.hidden == 0) return;
  MoeRowsArgs args{.dtype = d.dtype, .top_k = d.top_k, .cols = d.hidden};
  args.rows_in = {in.drows_RD.raw(), in.drows_RD.stride(0)};
  args.tokens_out = {out.dx_ND.raw(), out.dx_ND.stride(0)};
  args.row = in.row_NK.data<std::int32_t>();
  args.row_stride = in.row_NK.stride(0);
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    K25_ISA_CALL(ctx.isa, moe_sum_rows_cpu, args, begin, end);
  };
  parallel_for(ctx.threads, d.tokens, kRowGrain, std::ref(body));
}

}  // namespace k25::kernels
