#include "kernels/conv1d/conv1d.h"

#include <string>

#include "kernels/conv1d/conv1d_cpu.h"
#include "kernels/conv1d/conv1d_cuda.h"
#include "kernels/core/operand.h"
#include "kernels/sequences/sequence_operands.h"

namespace k25::kernels {
namespace {

constexpr std::string_view kOp = "conv1d";

SequenceShape shape_of(const Conv1dDesc& d) { return {d.batch, d.tokens, d.sequences}; }

std::int64_t blocks_of(const Conv1dDesc& d) {
  return (d.channels + kConv1dChannels - 1) / kConv1dChannels;
}

void check_tokens(const Conv1dDesc& d, const char* name, const ConstTensor& t) {
  check_operand(kOp, name, t, d.dtype, {d.batch, d.tokens, d.channels}, Density::kRows, d.device);
}

void check_weight(const Conv1dDesc& d, const char* name, const ConstTensor& t) {
  check_operand(kOp, name, t, accumulator_dtype(d.dtype), {d.channels, kConv1dWidth},
                Density::kContiguous, d.device);
}

void check_state(const Conv1dDesc& d, const char* name, const ConstTensor& t) {
  if (!t) return;
  check_operand(kOp, name, t, d.dtype, {shape_of(d).count(), kConv1dWidth - 1, d.channels},
                Density::kRows, d.device);
}

template <class T, class A, class In>
Conv1dArgs<T, A> common_args(const Conv1dDesc& d, const In& in) {
  Conv1dArgs<T, A> args;
  args.channels = d.channels;
  args.count = shape_of(d).count();
  args.sequences = sequence_view(shape_of(d), in.borders);
  args.x = strided_rows<T>(in.x_BTD);
  args.initial = strided_rows<T>(in.initial_state_S3D);
  args.weight = in.weight_DW.template data<A>();
  return args;
}

template <class T, class A>
struct Call {
  Conv1dArgs<T, A> args;
  CpuIsa isa;
};

template <class T, class A>
void forward_typed(Context& ctx, const Conv1dDesc& d, const Conv1dForwardIn& in,
                   const Conv1dForwardOut& out) {
  Call<T, A> call{common_args<T, A>(d, in), ctx.isa};
  call.args.y = strided_rows<T>(out.y_BTD);
  call.args.final = strided_rows<T>(out.final_state_S3D);
  const auto* const c = &call;
  parallel_for(ctx.threads, c->args.count * blocks_of(d), 1,
               [c](std::int64_t begin, std::int64_t end) {
                 K25_ISA_CALL(c->isa, conv1d_forward_cpu, c->args, begin, end);
               });
}

template <class T, class A>
void backward_typed(Context& ctx, const Conv1dDesc& d, const Conv1dBackwardIn& in,
                    const Conv1dBackwardOut& out) {
  Call<T, A> call{common_args<T, A>(d, in), ctx.isa};
  call.args.dy = strided_rows<T>(in.dy_BTD);
  call.args.dfinal = strided_rows<T>(in.dfinal_state_S3D);
  call.args.dx = strided_rows<T>(out.dx_BTD);
  call.args.dinitial = strided_rows<T>(out.dinitial_state_S3D);
  if (out.dweight_DW) call.args.dweight = out.dweight_DW.data<A>();
  const auto* const c = &call;
  parallel_for(ctx.threads, blocks_of(d), 1, [c](std::int64_t begin, std::int64_t end) {
    K25_ISA_CALL(c->isa, conv1d_backward_cpu, c->args, begin, end);
  });
}

}  // namespace

Conv1dPlan conv1d_plan(const Conv1dDesc& d) {
  check_sequence_shape(kOp, shape_of(d));
  K25_CHECK(d.channels > 0, "conv1d: channels " + std::to_string(d.channels) + " must be positive");
  check_float_dtype(kOp, d.dtype, d.device);
  if (d.device == Device::kCpu) return {.desc = d, .workspace_bytes = Bytes{0}};
  return {.desc = d,
          .workspace_bytes = Bytes{conv1d_partials(d) * d.channels * kConv1dWidth *
                                   dtype_bytes(accumulator_dtype(d.dtype))}};
}

void conv1d_forward(Context& ctx, const Conv1dPlan& plan, const Conv1dForwardIn& in,
                    const Conv1dForwardOut& out, Workspace /*workspace*/) {
  const Conv1dDesc& d = plan.desc;
  check_tokens(d, "x_BTD", in.x_BTD);
  check_weight(d, "weight_DW", in.weight_DW);
  check_sequence_borders(kOp, shape_of(d), in.borders, d.device);
  check_state(d, "initial_state_S3D", in.initial_state_S3D);
  check_tokens(d, "y_BTD", out.y_BTD);
  check_state(d, "final_state_S3D", out.final_state_S3D);
  if constexpr (kWithCuda) {
    if (d.device == Device::kCuda) return conv1d_forward_cuda(ctx, plan, in, out);
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

void conv1d_backward(Context& ctx, const Conv1dPlan& plan, const Conv1dBackwardIn& in,
                     const Conv1dBackwardOut& out, Workspace workspace) {
  const Conv1dDesc& d = plan.desc;
  check_tokens(d, "dy_BTD", in.dy_BTD);
  check_tokens(d, "x_BTD", in.x_BTD);
  check_weight(d, "weight_DW", in.weight_DW);
  check_sequence_borders(kOp, shape_of(d), in.borders, d.device);
  check_state(d, "initial_state_S3D", in.initial_state_S3D);
  check_state(d, "dfinal_state_S3D", in.dfinal_state_S3D);
  check_tokens(d, "dx_BTD", out.dx_BTD);
  if (out.dweight_DW) check_weight(d, "dweight_DW", out.dweight_DW);
  check_state(d, "dinitial_state_S3D", out.dinitial_state_S3D);
  check_workspace(kOp, workspace, plan.workspace_bytes);
  if constexpr (kWithCuda) {
    if (d.device == Device::kCuda) return conv1d_backward_cuda(ctx, plan, in, out, workspace);
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
