#include "kernels/swiglu/swiglu.h"

#include <functional>
#include <string>

#include "kernels/core/operand.h"
#include "kernels/swiglu/swiglu_cpu.h"
#include "kernels/swiglu/swiglu_cuda.h"

namespace k25::kernels {
namespace {

constexpr std::int64_t kRowGrain = 32;

}  // namespace

SwigluPlan swiglu_plan(const SwigluDesc& desc) {
  if (desc.rows < 0 || desc.cols < 0) {
    fail(ErrorKind::kUsage, "swiglu: rows " + std::to_string(desc.rows) + " and cols " +
                                std::to_string(desc.cols) + " must not be negative");
  }
  check_float_dtype("swiglu", desc.dtype, desc.device);
  return {.desc = desc, .workspace_bytes = Bytes{0}};
}

void swiglu_forward(Context& ctx, const SwigluPlan& plan, const SwigluForwardIn& in,
                    const SwigluForwardOut& out, Workspace /*workspace*/) {
  const SwigluDesc& d = plan.desc;
  check_operand("swiglu", "gate_up_NG", in.gate_up_NG, d.dtype, {d.rows, 2 * d.cols},
                Density::kRows, d.device);
  check_operand("swiglu", "out_NF", out.out_NF, d.dtype, {d.rows, d.cols}, Density::kRows,
                d.device);
  if (d.rows == 0 || d.cols == 0) return;
  if constexpr (kWithCuda) {
    if (d.device == Device::kCuda) return swiglu_forward_cuda(ctx, plan, in, out);
  }
  const SwigluForwardArgs args{
      .dtype = d.dtype,
      .cols = d.cols,
      .gate_up = {in.gate_up_NG.raw(), in.gate_up_NG.stride(0)},
      .out = {out.out_NF.raw(), out.out_NF.stride(0)},
  };
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    K25_ISA_CALL(ctx.isa, swiglu_forward_cpu, args, begin, end);
  };
  parallel_for(ctx.threads, d.rows, kRowGrain, std::ref(body));
}

void swiglu_backward(Context& ctx, const SwigluPlan& plan, const SwigluBackwardIn& in,
                     const SwigluBackwardOut& out, Workspace /*workspace*/) {
  const SwigluDesc& d = plan.desc;
  check_operand("swiglu", "dout_NF", in.dout_NF, d.dtype, {d.rows, d.cols}, Density::kRows,
                d.device);
  check_operand("swiglu", "gate_up_NG", in.gate_up_NG, d.dtype, {d.rows, 2 * d.cols},
                Density::kRows, d.device);
  check_operand("swiglu", "d_gate_up_NG", out.d_gate_up_NG, d.dtype, {d.rows, 2 * d.cols},
                Density::kRows, d.device);
  if (out.out_NF) {
    check_operand("swiglu", "out_NF", out.out_NF, d.dtype, {d.rows, d.cols}, Density::kRows,
                  d.device);
  }
  if (d.rows == 0 || d.cols == 0) return;
  if constexpr (kWithCuda) {
    if (d.device == Device::kCuda) return swiglu_backward_cuda(ctx, plan, in, out);
  }
  const SwigluBackwardArgs args{
      .dtype = d.dtype,
      .cols = d.cols,
      .dout = {in.dout_NF.raw(), in.dout_NF.stride(0)},
      .gate_up = {in.gate_up_NG.raw(), in.gate_up_NG.stride(0)},
      .d_gate_up = {out.d_gate_up_NG.raw(), out.d_gate_up_NG.stride(0)},
      .out = out.out_NF ? Rows{out.out_NF.raw(), out.out_NF.stride(0)} : Rows{},
  };
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    K25_ISA_CALL(ctx.isa, swiglu_backward_cpu, args, begin, end);
  };
  parallel_for(ctx.threads, d.rows, kRowGrain, std::ref(body));
}

}  // namespace k25::kernels
