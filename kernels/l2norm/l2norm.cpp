#include "kernels/l2norm/l2norm.h"

#include <cmath>
#include <functional>
#include <string>

#include "kernels/core/operand.h"
#include "kernels/l2norm/l2norm_cpu.h"
#include "kernels/l2norm/l2norm_cuda.h"

namespace k25::kernels {
namespace {

constexpr std::int64_t kRowGrain = 32;
constexpr std::string_view kOp = "l2norm";

void check_rows(const L2NormDesc& d, const char* name, const ConstTensor& t) {
  check_operand(kOp, name, t, d.dtype, {d.rows, d.heads, d.cols}, Density::kRows, d.device);
}

void check_rstd(const L2NormDesc& d, const ConstTensor& t) {
  check_operand(kOp, "rstd_NH", t, accumulator_dtype(d.dtype), {d.rows, d.heads},
                Density::kContiguous, d.device);
}

template <class T, class A>
void forward_typed(Context& ctx, const L2NormDesc& d, const L2NormForwardIn& in,
                   const L2NormForwardOut& out) {
  const L2NormForwardArgs<T, A> args{d.heads,
                                     d.cols,
                                     static_cast<A>(d.eps),
                                     strided_rows<T>(in.x_NHD),
                                     strided_rows<T>(out.y_NHD),
                                     out.rstd_NH.data<A>()};
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    K25_ISA_CALL(ctx.isa, l2norm_forward_cpu, args, begin, end);
  };
  parallel_for(ctx.threads, d.rows, kRowGrain, std::ref(body));
}

template <class T, class A>
void backward_typed(Context& ctx, const L2NormDesc& d, const L2NormBackwardIn& in,
                    const L2NormBackwardOut& out) {
  const L2NormBackwardArgs<T, A> args{d.heads,
                                      d.cols,
                                      strided_rows<T>(in.dy_NHD),
                                      strided_rows<T>(in.y_NHD),
                                      in.rstd_NH.data<A>(),
                                      strided_rows<T>(out.dx_NHD)};
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    K25_ISA_CALL(ctx.isa, l2norm_backward_cpu, args, begin, end);
  };
  parallel_for(ctx.threads, d.rows, kRowGrain, std::ref(body));
}

}  // namespace

L2NormPlan l2norm_plan(const L2NormDesc& d) {
  K25_CHECK(d.rows >= 0 && d.heads > 0 && d.cols > 0,
            "l2norm: rows " + std::to_string(d.rows) + " must not be negative, heads " +
                std::to_string(d.heads) + " and cols " + std::to_string(d.cols) +
                " must be positive");
  check_float_dtype(kOp, d.dtype, d.device);
  K25_CHECK(std::isfinite(d.eps) && d.eps > 0,
            "l2norm: eps " + std::to_string(d.eps) + " must be positive and finite");
  return {.desc = d,
          .workspace_bytes = Bytes{0},
          .saved_bytes = Bytes{d.rows * d.heads * dtype_bytes(accumulator_dtype(d.dtype))}};
}

void l2norm_forward(Context& ctx, const L2NormPlan& plan, const L2NormForwardIn& in,
                    const L2NormForwardOut& out, Workspace /*workspace*/) {
  const L2NormDesc& d = plan.desc;
  check_rows(d, "x_NHD", in.x_NHD);
  check_rows(d, "y_NHD", out.y_NHD);
  check_rstd(d, out.rstd_NH);
  if (d.rows == 0) return;
  if constexpr (kWithCuda) {
    if (d.device == Device::kCuda) return l2norm_forward_cuda(ctx, plan, in, out);
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

void l2norm_backward(Context& ctx, const L2NormPlan& plan, const L2NormBackwardIn& in,
                     const L2NormBackwardOut& out, Workspace /*workspace*/) {
  const L2NormDesc& d = plan.desc;
  check_rows(d, "dy_NHD", in.dy_NHD);
  check_rows(d, "y_NHD", in.y_NHD);
  check_rstd(d, in.rstd_NH);
  check_rows(d, "dx_NHD", out.dx_NHD);
  if (d.rows == 0) return;
  if constexpr (kWithCuda) {
    if (d.device == Device::kCuda) return l2norm_backward_cuda(ctx, plan, in, out);
  }
  switch (d.dtype) {
    case DType::kFloat32:
      return backward_typed<float, float>(ctx, d, in, out);
    case DType::kBFloat16:
      return backward_typed<BFloat16, float>(ctx, d, in, out);
    default:
      return backward_typed<double, double>(ctx, d, in, out);
  }
}

}  // namespace k25::kernels
