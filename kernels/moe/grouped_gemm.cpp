#include "kernels/moe/grouped_gemm.h"

#include <algorithm>
#include <string>

#include "kernels/core/buffer.h"
#include "kernels/core/operand.h"
#include "kernels/gemm/gemm.h"
#include "kernels/moe/moe_checks.h"

namespace k25::kernels {
namespace {

constexpr const char* kOp = "grouped_gemm";
/// Small groups at a time, each with scratch of its own.
constexpr std::int64_t kSlots = 8;

/// y [rows, n] = x W^T.
GemmDesc forward_gemm(const GroupedGemmDesc& d, std::int64_t rows) {
  return {.m = rows,
          .n = d.n,
          .k = d.k,
          .transpose_b = Transpose::kYes,
          .dtype_ab = d.dtype,
          .dtype_d = d.dtype};
}
/// dx [rows, k] = dy W.
GemmDesc dx_gemm(const GroupedGemmDesc& d, std::int64_t rows) {
  return {.m = rows, .n = d.k, .k = d.n, .dtype_ab = d.dtype, .dtype_d = d.dtype};
}
/// dW [n, k] += dy^T x.
GemmDesc dweight_gemm(const GroupedGemmDesc& d, std::int64_t rows) {
  return {.m = d.n,
          .n = d.k,
          .k = rows,
          .transpose_a = Transpose::kYes,
          .dtype_ab = d.dtype,
          .dtype_d = accumulator_dtype(d.dtype),
          .accumulate = Accumulate::kAdd};
}

std::int64_t product_bytes(const GroupedGemmDesc& d, std::int64_t rows) {
  return std::max(gemm_plan(forward_gemm(d, rows)).workspace_bytes.n,
                  gemm_plan(dx_gemm(d, rows)).workspace_bytes.n);
}

/// Scratch of one of the small groups that run side by side.
std::int64_t slot_bytes(const GroupedGemmDesc& d) {
  return align_up(product_bytes(d, std::min(d.max_rows, kGroupedGemmLarge - 1)));
}

void check_rows(const GroupedGemmDesc& d, const ConstTensor& offset_B, std::int64_t rows) {
  check_operand(kOp, "offset_B", offset_B, DType::kInt64, {d.groups + 1}, Density::kContiguous);
  const auto* offset = offset_B.data<std::int64_t>();
  if (rows > d.max_rows) {
    fail(ErrorKind::kUsage, std::string(kOp) + ": " + std::to_string(rows) +
                                " rows, the plan is for at most " + std::to_string(d.max_rows));
  }
  for (std::int64_t e = 0; e < d.groups; ++e) {
    if (offset[0] == 0 && offset[e] <= offset[e + 1] && offset[e + 1] <= rows) continue;
    fail(ErrorKind::kUsage, std::string(kOp) + ": offset_B puts group " + std::to_string(e) +
                                " at rows " + std::to_string(offset[e]) + " to " +
                                std::to_string(offset[e + 1]) + "; offsets must ascend from 0 to " +
                                std::to_string(rows));
  }
  if (offset[d.groups] != rows) {
    fail(ErrorKind::kUsage, std::string(kOp) + ": offset_B ends at " +
                                std::to_string(offset[d.groups]) + ", there are " +
                                std::to_string(rows) + " rows");
  }
}

/// y or dx of all groups.
struct RowProducts {
  Context& ctx;
  const GroupedGemmDesc& desc;
  GemmDesc (*gemm)(const GroupedGemmDesc& d, std::int64_t rows);
  ConstTensor from, weight;
  Tensor to;
  const std::int64_t* offset;
  Workspace workspace;

  std::int64_t rows(std::int64_t e) const { return offset[e + 1] - offset[e]; }
  void product(Context& on, std::int64_t e, Workspace scratch) const {
    gemm_forward(on, gemm_plan(gemm(desc, rows(e))),
                 {from.slice(0, offset[e], offset[e + 1]), weight.select(0, e)},
                 {to.slice(0, offset[e], offset[e + 1])}, scratch);
  }
  /// Every kSlots-th small group, on the calling thread.
  void slot(std::int64_t s) const {
    Context alone = ctx;
    alone.threads = nullptr;
    const std::int64_t size = slot_bytes(desc);
    const Workspace scratch{static_cast<char*>(workspace.data) + s * size, Bytes{size}};
    for (std::int64_t e = s; e < desc.groups; e += kSlots) {
      if (rows(e) > 0 && rows(e) < kGroupedGemmLarge) product(alone, e, scratch);
    }
  }
  void run() const {
    const auto* const self = this;  // NOTE: one pointer, so that std::function allocates nothing
    parallel_for(ctx.threads, kSlots, 1,
                 [self](std::int64_t begin, std::int64_t) { self->slot(begin); });
    for (std::int64_t e = 0; e < desc.groups; ++e) {
      if (rows(e) >= kGroupedGemmLarge) product(ctx, e, workspace);
    }
  }
};

void check_matrix(const char* name, const ConstTensor& t, const GroupedGemmDesc& d,
                  std::int64_t rows, std::int64_t cols) {
  check_operand(kOp, name, t, d.dtype, {rows, cols}, Density::kRows);
}

std::int64_t rows_of(const ConstTensor& t) { return t.ndim() == 2 ? t.dim(0) : 0; }

}  // namespace

GroupedGemmPlan grouped_gemm_plan(const GroupedGemmDesc& desc) {
  if (desc.groups < 1 || desc.max_rows < 0 || desc.n < 0 || desc.k < 0) {
    fail(ErrorKind::kUsage, std::string(kOp) + ": groups is " + std::to_string(desc.groups) +
                                ", max_rows " + std::to_string(desc.max_rows) + ", n " +
                                std::to_string(desc.n) + ", k " + std::to_string(desc.k) +
                                "; groups must be at least 1, the others not negative");
  }
  check_float_dtype(kOp, desc.dtype);
  check_moe_device(kOp, desc.device);
  const std::int64_t whole =
      std::max(product_bytes(desc, desc.max_rows),
               gemm_plan(dweight_gemm(desc, desc.max_rows)).workspace_bytes.n);
  return {.desc = desc, .workspace_bytes = Bytes{std::max(whole, kSlots * slot_bytes(desc))}};
}

void grouped_gemm_forward(Context& ctx, const GroupedGemmPlan& plan, const GroupedGemmForwardIn& in,
                          const GroupedGemmForwardOut& out, Workspace workspace) {
  const GroupedGemmDesc& d = plan.desc;
  const std::int64_t rows = rows_of(in.x_RK);
  check_rows(d, in.offset_B, rows);
  check_matrix("x_RK", in.x_RK, d, rows, d.k);
  check_operand(kOp, "weight_ENK", in.weight_ENK, d.dtype, {d.groups, d.n, d.k}, Density::kRows);
  check_matrix("y_RN", out.y_RN, d, rows, d.n);
  check_workspace(kOp, workspace, plan.workspace_bytes);
  if (rows == 0 || d.n == 0) return;
  const RowProducts products{
      ctx,      d, forward_gemm, in.x_RK, in.weight_ENK, out.y_RN, in.offset_B.data<std::int64_t>(),
      workspace};
  products.run();
}

void grouped_gemm_backward(Context& ctx, const GroupedGemmPlan& plan,
                           const GroupedGemmBackwardIn& in, const GroupedGemmBackwardOut& out,
                           Workspace workspace) {
  const GroupedGemmDesc& d = plan.desc;
  const std::int64_t rows = rows_of(in.dy_RN);
  check_rows(d, in.offset_B, rows);
  check_matrix("dy_RN", in.dy_RN, d, rows, d.n);
  check_workspace(kOp, workspace, plan.workspace_bytes);
  const auto* offset = in.offset_B.data<std::int64_t>();
  if (out.dweight_ENK) {
    check_matrix("x_RK", in.x_RK, d, rows, d.k);
    check_operand(kOp, "dweight_ENK", out.dweight_ENK, accumulator_dtype(d.dtype),
                  {d.groups, d.n, d.k}, Density::kRows);
  }
  if (out.dx_RK) {
    check_operand(kOp, "weight_ENK", in.weight_ENK, d.dtype, {d.groups, d.n, d.k}, Density::kRows);
    check_matrix("dx_RK", out.dx_RK, d, rows, d.k);
  }
  if (rows == 0 || d.k == 0) return;
  if (out.dx_RK) {
    const RowProducts products{ctx,           d,         dx_gemm, in.dy_RN,
                               in.weight_ENK, out.dx_RK, offset,  workspace};
    products.run();
  }
  if (!out.dweight_ENK || d.n == 0) return;
  for (std::int64_t e = 0; e < d.groups; ++e) {
    const std::int64_t count = offset[e + 1] - offset[e];
    if (count == 0) continue;
    gemm_forward(
        ctx, gemm_plan(dweight_gemm(d, count)),
        {in.dy_RN.slice(0, offset[e], offset[e + 1]), in.x_RK.slice(0, offset[e], offset[e + 1])},
        {out.dweight_ENK.select(0, e)}, workspace);
  }
}

}  // namespace k25::kernels
