#include "kernels/gated_rmsnorm/gated_rmsnorm.h"

#include <cmath>
#include <functional>
#include <string>

#include "kernels/core/operand.h"
#include "kernels/core/row_partials.h"
#include "kernels/gated_rmsnorm/gated_rmsnorm_cpu.h"
#include "kernels/gated_rmsnorm/gated_rmsnorm_cuda.h"

namespace k25::kernels {
namespace {

constexpr std::string_view kOp = "gated_rmsnorm";

void check_rows(const GatedRmsNormDesc& d, const char* name, const ConstTensor& t) {
  check_operand(kOp, name, t, d.dtype, {d.rows, d.heads, d.cols}, Density::kRows, d.device);
}

void check_gain(const GatedRmsNormDesc& d, const char* name, const ConstTensor& t) {
  check_operand(kOp, name, t, accumulator_dtype(d.dtype), {d.cols}, Density::kContiguous, d.device);
}

void check_rstd(const GatedRmsNormDesc& d, const ConstTensor& t) {
  check_operand(kOp, "rstd_NH", t, accumulator_dtype(d.dtype), {d.rows, d.heads},
                Density::kContiguous, d.device);
}

template <class T, class A, class In>
GatedRmsNormArgs<T, A> common_args(const GatedRmsNormDesc& d, const In& in) {
  GatedRmsNormArgs<T, A> args;
  args.heads = d.heads;
  args.cols = d.cols;
  args.eps = static_cast<A>(d.eps);
  args.x = strided_rows<T>(in.x_NHD);
  args.gate = strided_rows<T>(in.gate_NHD);
  args.gain = in.gain_D.template data<A>();
  return args;
}

template <class T, class A>
void forward_typed(Context& ctx, const GatedRmsNormDesc& d, const GatedRmsNormForwardIn& in,
                   const GatedRmsNormForwardOut& out) {
  GatedRmsNormArgs<T, A> args = common_args<T, A>(d, in);
  args.y = strided_rows<T>(out.y_NHD);
  args.rstd = out.rstd_NH.data<A>();
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    K25_ISA_CALL(ctx.isa, gated_rmsnorm_forward_cpu, args, begin, end);
  };
  parallel_for(ctx.threads, d.rows, kRowGrain, std::ref(body));
}

template <class T, class A>
void backward_typed(Context& ctx, const GatedRmsNormDesc& d, const GatedRmsNormBackwardIn& in,
                    const GatedRmsNormBackwardOut& out, Workspace workspace) {
  GatedRmsNormArgs<T, A> args = common_args<T, A>(d, in);
  args.dy = strided_rows<T>(in.dy_NHD);
  args.saved_rstd = in.rstd_NH.data<A>();
  args.dx = strided_rows<T>(out.dx_NHD);
  args.dgate = strided_rows<T>(out.dgate_NHD);
  const std::int64_t block = partial_rows(d.rows);
  A* const partials = static_cast<A*>(workspace.data);
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    K25_ISA_CALL(ctx.isa, gated_rmsnorm_backward_cpu, args, begin, end,
                 partials + begin / block * d.cols);
  };
  parallel_for(ctx.threads, d.rows, block, std::ref(body));
  if (!out.dgain_D) return;
  A* const dgain = out.dgain_D.data<A>();
  for (std::int64_t i = 0; i < d.cols; ++i) {
    A sum = 0;
    for (std::int64_t p = 0; p < partial_count(d.rows); ++p) sum += partials[p * d.cols + i];
    dgain[i] += sum;
  }
}

}  // namespace

GatedRmsNormPlan gated_rmsnorm_plan(const GatedRmsNormDesc& d) {
  K25_CHECK(d.rows >= 0 && d.heads > 0 && d.cols > 0,
            "gated_rmsnorm: rows " + std::to_string(d.rows) + " must not be negative, heads " +
                std::to_string(d.heads) + " and cols " + std::to_string(d.cols) +
                " must be positive");
  check_float_dtype(kOp, d.dtype, d.device);
  K25_CHECK(std::isfinite(d.eps) && d.eps > 0,
            "gated_rmsnorm: eps " + std::to_string(d.eps) + " must be positive and finite");
  const std::int64_t size = dtype_bytes(accumulator_dtype(d.dtype));
  const std::int64_t partials =
      d.device == Device::kCuda ? gated_rmsnorm_partials(d) : partial_count(d.rows);
  return {.desc = d,
          .workspace_bytes = Bytes{partials * d.cols * size},
          .saved_bytes = Bytes{d.rows * d.heads * size}};
}

void gated_rmsnorm_forward(Context& ctx, const GatedRmsNormPlan& plan,
                           const GatedRmsNormForwardIn& in, const GatedRmsNormForwardOut& out,
                           Workspace /*workspace*/) {
  const GatedRmsNormDesc& d = plan.desc;
  check_rows(d, "x_NHD", in.x_NHD);
  check_rows(d, "gate_NHD", in.gate_NHD);
  check_gain(d, "gain_D", in.gain_D);
  check_rows(d, "y_NHD", out.y_NHD);
  check_rstd(d, out.rstd_NH);
  if (d.rows == 0) return;
  if constexpr (kWithCuda) {
    if (d.device == Device::kCuda) return gated_rmsnorm_forward_cuda(ctx, plan, in, out);
  }
  switch (d.dtype) {
    case DType::kFloat32:
      return forward_typed<float, float>(ctx, d, in, out);
    case DType::kBFloat16:
      return forward_typed<BFloat16, float>(ctx, d, in, out);
    default:
      return forward_typed<double, double>(ctx, d, in, out);
  }
}

void gated_rmsnorm_backward(Context& ctx, const GatedRmsNormPlan& plan,
                            const GatedRmsNormBackwardIn& in, const GatedRmsNormBackwardOut& out,
                            Workspace workspace) {
  const GatedRmsNormDesc& d = plan.desc;
  check_rows(d, "dy_NHD", in.dy_NHD);
  check_rows(d, "x_NHD", in.x_NHD);
  check_rows(d, "gate_NHD", in.gate_NHD);
  check_gain(d, "gain_D", in.gain_D);
  check_rstd(d, in.rstd_NH);
  check_rows(d, "dx_NHD", out.dx_NHD);
  check_rows(d, "dgate_NHD", out.dgate_NHD);
  if (out.dgain_D) check_gain(d, "dgain_D", out.dgain_D);
  check_workspace(kOp, workspace, plan.workspace_bytes);
  if (d.rows == 0) return;
  if constexpr (kWithCuda) {
    if (d.device == Device::kCuda) {
      return gated_rmsnorm_backward_cuda(ctx, plan, in, out, workspace);
    }
  }
  switch (d.dtype) {
    case DType::kFloat32:
      return backward_typed<float, float>(ctx, d, in, out, workspace);
    case DType::kBFloat16:
      return backward_typed<BFloat16, float>(ctx, d, in, out, workspace);
    default:
      return backward_typed<double, double>(ctx, d, in, out, workspace);
  }
}

}  // namespace k25::kernels
