#include "kernels/rmsnorm/rmsnorm.h"

#include <cmath>
#include <functional>
#include <string>

#include "kernels/core/operand.h"
#include "kernels/core/row_partials.h"
#include "kernels/rmsnorm/rmsnorm_backward_shape.h"
#include "kernels/rmsnorm/rmsnorm_cpu.h"
#include "kernels/rmsnorm/rmsnorm_cuda.h"

namespace k25::kernels {
namespace {

ConstRows const_rows(const ConstTensor& t) { return {t.raw(), t.ndim() == 2 ? t.stride(0) : 0}; }
Rows mutable_rows(const Tensor& t) { return {t.raw(), t.ndim() == 2 ? t.stride(0) : 0}; }

void check_matrix(const char* name, const ConstTensor& t, const RmsNormDesc& d) {
  check_operand("rmsnorm", name, t, d.dtype, {d.rows, d.cols}, Density::kRows, d.device);
}

void check_vector(const char* name, const ConstTensor& t, const RmsNormDesc& d, std::int64_t n) {
  check_operand("rmsnorm", name, t, accumulator_dtype(d.dtype), {n}, Density::kContiguous,
                d.device);
}

template <class Acc>
void add_partials(Context& ctx, const Workspace& workspace, const RmsNormDesc& d,
                  const Tensor& dgain_D) {
  K25_ISA_CALL(ctx.isa, rmsnorm_add_partials_cpu, static_cast<const Acc*>(workspace.data),
               partial_count(d.rows), d.cols, dgain_D.data<Acc>());
}

}  // namespace

RmsNormPlan rmsnorm_plan(const RmsNormDesc& desc) {
  if (desc.rows < 0 || desc.cols < 1) {
    fail(ErrorKind::kUsage, "rmsnorm: rows is " + std::to_string(desc.rows) + " and cols " +
                                std::to_string(desc.cols) +
                                "; rows must not be negative, cols must be at least 1");
  }
  check_float_dtype("rmsnorm", desc.dtype, desc.device);
  if (!(std::isfinite(desc.eps) && desc.eps > 0)) {
    fail(ErrorKind::kUsage,
         "rmsnorm: eps is " + std::to_string(desc.eps) + ", it must be positive and finite");
  }
  const std::int64_t size = dtype_bytes(accumulator_dtype(desc.dtype));
  const std::int64_t partials = desc.device == Device::kCuda ? rmsnorm_backward_shape(desc).partials
                                                             : partial_count(desc.rows);
  return {.desc = desc,
          .workspace_bytes = Bytes{partials * desc.cols * size},
          .saved_bytes = Bytes{desc.rows * size}};
}

void rmsnorm_forward(Context& ctx, const RmsNormPlan& plan, const RmsNormForwardIn& in,
                     const RmsNormForwardOut& out, Workspace /*workspace*/) {
  const RmsNormDesc& d = plan.desc;
  check_matrix("x_ND", in.x_ND, d);
  check_vector("gain_D", in.gain_D, d, d.cols);
  check_matrix("y_ND", out.y_ND, d);
  check_vector("rstd_N", out.rstd_N, d, d.rows);
  if (in.residual_ND) {
    check_matrix("residual_ND", in.residual_ND, d);
    check_matrix("sum_ND", out.sum_ND, d);
  }
  if (d.rows == 0) return;
  if constexpr (kWithCuda) {
    if (d.device == Device::kCuda) return rmsnorm_forward_cuda(ctx, plan, in, out);
  }
  const RmsNormForwardArgs args{
      .dtype = d.dtype,
      .cols = d.cols,
      .eps = d.eps,
      .x = const_rows(in.x_ND),
      .residual = const_rows(in.residual_ND),
      .gain = in.gain_D.raw(),
      .sum = mutable_rows(out.sum_ND),
      .y = mutable_rows(out.y_ND),
      .rstd = out.rstd_N.raw(),
  };
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    K25_ISA_CALL(ctx.isa, rmsnorm_forward_cpu, args, begin, end);
  };
  parallel_for(ctx.threads, d.rows, kRowGrain, std::ref(body));
}

void rmsnorm_backward(Context& ctx, const RmsNormPlan& plan, const RmsNormBackwardIn& in,
                      const RmsNormBackwardOut& out, Workspace workspace) {
  const RmsNormDesc& d = plan.desc;
  check_matrix("dy_ND", in.dy_ND, d);
  check_matrix("sum_ND", in.sum_ND, d);
  check_vector("gain_D", in.gain_D, d, d.cols);
  check_vector("rstd_N", in.rstd_N, d, d.rows);
  if (in.d_sum_ND) check_matrix("d_sum_ND", in.d_sum_ND, d);
  check_matrix("dx_ND", out.dx_ND, d);
  if (out.dgain_D) check_vector("dgain_D", out.dgain_D, d, d.cols);
  check_workspace("rmsnorm", workspace, plan.workspace_bytes);
  if (d.rows == 0) return;
  if constexpr (kWithCuda) {
    if (d.device == Device::kCuda) return rmsnorm_backward_cuda(ctx, plan, in, out, workspace);
  }
  const RmsNormBackwardArgs args{
      .dtype = d.dtype,
      .cols = d.cols,
      .dy = const_rows(in.dy_ND),
      .sum = const_rows(in.sum_ND),
      .d_sum = const_rows(in.d_sum_ND),
      .gain = in.gain_D.raw(),
      .rstd = in.rstd_N.raw(),
      .dx = mutable_rows(out.dx_ND),
  };
  const std::int64_t block = partial_rows(d.rows);
  const std::int64_t partial_bytes = d.cols * dtype_bytes(accumulator_dtype(d.dtype));
  auto* partials = static_cast<char*>(workspace.data);
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    K25_ISA_CALL(ctx.isa, rmsnorm_backward_cpu, args, begin, end,
                 static_cast<void*>(partials + begin / block * partial_bytes));
  };
  parallel_for(ctx.threads, d.rows, block, std::ref(body));
  if (!out.dgain_D) return;
  if (d.dtype == DType::kFloat64) {
    add_partials<double>(ctx, workspace, d, out.dgain_D);
  } else {
    add_partials<float>(ctx, workspace, d, out.dgain_D);
  }
}

}  // namespace k25::kernels
