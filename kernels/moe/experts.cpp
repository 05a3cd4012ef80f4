#include "kernels/moe/experts.h"

#include <algorithm>
#include <string>

#include "kernels/core/buffer.h"
#include "kernels/core/operand.h"
#include "kernels/moe/grouped_gemm.h"
#include "kernels/moe/moe_checks.h"
#include "kernels/swiglu/swiglu.h"

namespace k25::kernels {
namespace {

constexpr const char* kOp = "moe_experts";

GroupedGemmPlan up_plan(const MoeExpertsDesc& d) {
  return grouped_gemm_plan({.groups = d.experts,
                            .max_rows = d.max_rows,
                            .n = 2 * d.ffn,
                            .k = d.hidden,
                            .dtype = d.dtype});
}
GroupedGemmPlan down_plan(const MoeExpertsDesc& d) {
  return grouped_gemm_plan(
      {.groups = d.experts, .max_rows = d.max_rows, .n = d.hidden, .k = d.ffn, .dtype = d.dtype});
}

/// The workspace, piece by piece, for `rows` rows.
struct Scratch {
  Workspace products;
  Tensor act_RF, d_gate_up_RG;
  std::int64_t size;
};

Scratch scratch_of(const MoeExpertsDesc& d, std::int64_t rows, void* base) {
  const std::int64_t products =
      align_up(std::max(up_plan(d).workspace_bytes.n, down_plan(d).workspace_bytes.n));
  const std::int64_t act = align_up(d.max_rows * d.ffn * dtype_bytes(d.dtype));
  const std::int64_t gate_up = align_up(d.max_rows * 2 * d.ffn * dtype_bytes(d.dtype));
  Scratch s;
  s.size = products + act + gate_up;
  s.products = {base, Bytes{products}};
  if (base == nullptr) return s;
  char* const at = static_cast<char*>(base) + products;
  s.act_RF = Tensor(at, d.dtype, {rows, d.ffn});
  s.d_gate_up_RG = Tensor(at + act, d.dtype, {rows, 2 * d.ffn});
  return s;
}

std::int64_t checked_rows(const MoeExpertsDesc& d, const ConstTensor& x, const char* name) {
  const std::int64_t rows = x.ndim() == 2 ? x.dim(0) : 0;
  check_operand(kOp, name, x, d.dtype, {rows, d.hidden}, Density::kRows);
  if (rows > d.max_rows) {
    fail(ErrorKind::kUsage, std::string(kOp) + ": " + name + " has " + std::to_string(rows) +
                                " rows, the plan is for at most " + std::to_string(d.max_rows));
  }
  return rows;
}

}  // namespace

MoeExpertsPlan moe_experts_plan(const MoeExpertsDesc& desc) {
  if (desc.experts < 1 || desc.max_rows < 0 || desc.hidden < 1 || desc.ffn < 1) {
    fail(ErrorKind::kUsage, std::string(kOp) + ": experts is " + std::to_string(desc.experts) +
                                ", max_rows " + std::to_string(desc.max_rows) + ", hidden " +
                                std::to_string(desc.hidden) + ", ffn " + std::to_string(desc.ffn) +
                                "; max_rows must not be negative, the others at least 1");
  }
  check_float_dtype(kOp, desc.dtype);
  check_moe_device(kOp, desc.device);
  return {.desc = desc,
          .workspace_bytes = Bytes{scratch_of(desc, desc.max_rows, nullptr).size},
          .saved_bytes = Bytes{desc.max_rows * 2 * desc.ffn * dtype_bytes(desc.dtype)}};
}

void moe_experts_forward(Context& ctx, const MoeExpertsPlan& plan, const MoeExpertsForwardIn& in,
                         const MoeExpertsForwardOut& out, Workspace workspace) {
  const MoeExpertsDesc& d = plan.desc;
  const std::int64_t rows = checked_rows(d, in.x_RD, "x_RD");
  check_operand(kOp, "gate_up_RG", out.gate_up_RG, d.dtype, {rows, 2 * d.ffn}, Density::kRows);
  check_workspace(kOp, workspace, plan.workspace_bytes);
  if (rows == 0) return;
  const Scratch scratch = scratch_of(d, rows, workspace.data);
  grouped_gemm_forward(ctx, up_plan(d), {in.x_RD, in.w_gate_up_EGD, in.offset_B}, {out.gate_up_RG},
                       scratch.products);
  swiglu_forward(ctx, swiglu_plan({.rows = rows, .cols = d.ffn, .dtype = d.dtype}),
                 {out.gate_up_RG}, {scratch.act_RF}, {});
  grouped_gemm_forward(ctx, down_plan(d), {scratch.act_RF, in.w_down_EDF, in.offset_B}, {out.y_RD},
                       scratch.products);
}

void moe_experts_backward(Context& ctx, const MoeExpertsPlan& plan, const MoeExpertsBackwardIn& in,
                          const MoeExpertsBackwardOut& out, Workspace workspace) {
  const MoeExpertsDesc& d = plan.desc;
  const std::int64_t rows = checked_rows(d, in.dy_RD, "dy_RD");
  check_operand(kOp, "gate_up_RG", in.gate_up_RG, d.dtype, {rows, 2 * d.ffn}, Density::kRows);
  check_operand(kOp, "dx_RD", out.dx_RD, d.dtype, {rows, d.hidden}, Density::kRows);
  check_workspace(kOp, workspace, plan.workspace_bytes);
  if (rows == 0) return;
  const Scratch scratch = scratch_of(d, rows, workspace.data);
  const Tensor& act =
      scratch.act_RF;  // NOTE: the gradient of a, until swiglu_backward puts a there
  grouped_gemm_backward(ctx, down_plan(d), {in.dy_RD, {}, in.w_down_EDF, in.offset_B}, {act, {}},
                        scratch.products);
  swiglu_backward(ctx, swiglu_plan({.rows = rows, .cols = d.ffn, .dtype = d.dtype}),
                  {act, in.gate_up_RG}, {scratch.d_gate_up_RG, act}, {});
  if (out.dw_down_EDF) {
    grouped_gemm_backward(ctx, down_plan(d), {in.dy_RD, act, {}, in.offset_B},
                          {{}, out.dw_down_EDF}, scratch.products);
  }
  grouped_gemm_backward(ctx, up_plan(d),
                        {scratch.d_gate_up_RG, in.x_RD, in.w_gate_up_EGD, in.offset_B},
                        {out.dx_RD, out.dw_gate_up_EGD}, scratch.products);
}

}  // namespace k25::kernels
