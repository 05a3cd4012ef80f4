#include "kernels/kda_gate/kda_gate.h"

#include <cmath>
#include <functional>
#include <string>

#include "kernels/core/operand.h"
#include "kernels/core/row_partials.h"
#include "kernels/kda_gate/kda_gate_cpu.h"
#include "kernels/kda_gate/kda_gate_cuda.h"

namespace k25::kernels {
namespace {

constexpr std::string_view kOp = "kda_gate";
constexpr std::string_view kBetaOp = "kda_beta";

std::int64_t partial_size(const KdaGateDesc& d) { return d.heads * (d.cols + 1); }

void check_rows(const KdaGateDesc& d, const char* name, const ConstTensor& t, DType dtype) {
  check_operand(kOp, name, t, dtype, {d.rows, d.heads, d.cols}, Density::kRows, d.device);
}

void check_a_log(const KdaGateDesc& d, const char* name, const ConstTensor& t) {
  check_operand(kOp, name, t, accumulator_dtype(d.dtype), {d.heads}, Density::kContiguous,
                d.device);
}

void check_dt_bias(const KdaGateDesc& d, const char* name, const ConstTensor& t) {
  check_operand(kOp, name, t, accumulator_dtype(d.dtype), {d.heads, d.cols}, Density::kContiguous,
                d.device);
}

template <class In>
void check_inputs(const KdaGateDesc& d, const In& in) {
  check_rows(d, "f_NMK", in.f_NMK, d.dtype);
  if (in.a_log_M || d.gate == KdaGate::kSoftplus) check_a_log(d, "a_log_M", in.a_log_M);
  check_dt_bias(d, "dt_bias_MK", in.dt_bias_MK);
}

template <class T, class A, class In>
KdaGateArgs<T, A> common_args(const KdaGateDesc& d, const In& in) {
  KdaGateArgs<T, A> args;
  args.heads = d.heads;
  args.cols = d.cols;
  args.bounded = d.gate == KdaGate::kLowerBound;
  args.lower_bound = static_cast<A>(d.lower_bound);
  args.f = strided_rows<T>(in.f_NMK);
  if (in.a_log_M) args.a_log = in.a_log_M.template data<A>();
  args.dt_bias = in.dt_bias_MK.template data<A>();
  return args;
}

template <class T, class A>
void forward_typed(Context& ctx, const KdaGateDesc& d, const KdaGateForwardIn& in,
                   const KdaGateForwardOut& out) {
  KdaGateArgs<T, A> args = common_args<T, A>(d, in);
  args.g = strided_rows<A>(out.g_NMK);
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    K25_ISA_CALL(ctx.isa, kda_gate_forward_cpu, args, begin, end);
  };
  parallel_for(ctx.threads, d.rows, kRowGrain, std::ref(body));
}

/// to [n] += the partial sums at `offset`.
template <class A>
void add_partials(const KdaGateDesc& d, const A* partials, std::int64_t offset, std::int64_t n,
                  A* to) {
  for (std::int64_t i = 0; i < n; ++i) {
    A sum = 0;
    for (std::int64_t p = 0; p < partial_count(d.rows); ++p) {
      sum += partials[p * partial_size(d) + offset + i];
    }
    to[i] += sum;
  }
}

template <class T, class A>
void backward_typed(Context& ctx, const KdaGateDesc& d, const KdaGateBackwardIn& in,
                    const KdaGateBackwardOut& out, Workspace workspace) {
  KdaGateArgs<T, A> args = common_args<T, A>(d, in);
  args.dg = strided_rows<A>(in.dg_NMK);
  args.df = strided_rows<T>(out.df_NMK);
  const std::int64_t block = partial_rows(d.rows);
  A* const partials = static_cast<A*>(workspace.data);
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    K25_ISA_CALL(ctx.isa, kda_gate_backward_cpu, args, begin, end,
                 partials + begin / block * partial_size(d));
  };
  parallel_for(ctx.threads, d.rows, block, std::ref(body));
  const std::int64_t channels = d.heads * d.cols;
  if (out.ddt_bias_MK) add_partials(d, partials, 0, channels, out.ddt_bias_MK.data<A>());
  if (out.da_log_M) add_partials(d, partials, channels, d.heads, out.da_log_M.data<A>());
}

void check_beta(const KdaBetaDesc& d, const char* name, const ConstTensor& t, DType dtype) {
  check_operand(kBetaOp, name, t, dtype, {d.rows, d.heads}, Density::kRows, d.device);
}

template <class T>
StridedRows<const T> matrix_of(const ConstTensor& t) {
  return {t.data<T>(), t.stride(0), 0};
}
template <class T>
StridedRows<T> matrix_of(const Tensor& t) {
  return {t.data<T>(), t.stride(0), 0};
}

template <class T, class A>
KdaBetaArgs<T, A> beta_args(const KdaBetaDesc& d, const ConstTensor& b) {
  KdaBetaArgs<T, A> args;
  args.heads = d.heads;
  args.top = d.range == KdaBetaRange::kTwo ? A(2) : A(1);
  args.b = matrix_of<T>(b);
  return args;
}

template <class T, class A>
void beta_forward_typed(Context& ctx, const KdaBetaDesc& d, const KdaBetaForwardIn& in,
                        const KdaBetaForwardOut& out) {
  KdaBetaArgs<T, A> args = beta_args<T, A>(d, in.b_NM);
  args.beta = matrix_of<A>(out.beta_NM);
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    K25_ISA_CALL(ctx.isa, kda_beta_forward_cpu, args, begin, end);
  };
  parallel_for(ctx.threads, d.rows, kRowGrain, std::ref(body));
}

template <class T, class A>
void beta_backward_typed(Context& ctx, const KdaBetaDesc& d, const KdaBetaBackwardIn& in,
                         const KdaBetaBackwardOut& out) {
  KdaBetaArgs<T, A> args = beta_args<T, A>(d, in.b_NM);
  args.dbeta = matrix_of<A>(in.dbeta_NM);
  args.db = matrix_of<T>(out.db_NM);
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    K25_ISA_CALL(ctx.isa, kda_beta_backward_cpu, args, begin, end);
  };
  parallel_for(ctx.threads, d.rows, kRowGrain, std::ref(body));
}

}  // namespace

KdaGatePlan kda_gate_plan(const KdaGateDesc& d) {
  K25_CHECK(d.rows >= 0 && d.heads > 0 && d.cols > 0,
            "kda_gate: rows " + std::to_string(d.rows) + " must not be negative, heads " +
                std::to_string(d.heads) + " and cols " + std::to_string(d.cols) +
                " must be positive");
  check_float_dtype(kOp, d.dtype, d.device);
  K25_CHECK(
      d.gate == KdaGate::kSoftplus || (std::isfinite(d.lower_bound) && d.lower_bound < 0),
      "kda_gate: lower_bound " + std::to_string(d.lower_bound) + " must be negative and finite");
  const std::int64_t elements = d.device == Device::kCuda ? kda_gate_partials(d).floats(d)
                                                          : partial_count(d.rows) * partial_size(d);
  return {.desc = d, .workspace_bytes = Bytes{elements * dtype_bytes(accumulator_dtype(d.dtype))}};
}

void kda_gate_forward(Context& ctx, const KdaGatePlan& plan, const KdaGateForwardIn& in,
                      const KdaGateForwardOut& out, Workspace /*workspace*/) {
  const KdaGateDesc& d = plan.desc;
  check_inputs(d, in);
  check_rows(d, "g_NMK", out.g_NMK, accumulator_dtype(d.dtype));
  if (d.rows == 0) return;
  if constexpr (kWithCuda) {
    if (d.device == Device::kCuda) return kda_gate_forward_cuda(ctx, plan, in, out);
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

void kda_gate_backward(Context& ctx, const KdaGatePlan& plan, const KdaGateBackwardIn& in,
                       const KdaGateBackwardOut& out, Workspace workspace) {
  const KdaGateDesc& d = plan.desc;
  check_rows(d, "dg_NMK", in.dg_NMK, accumulator_dtype(d.dtype));
  check_inputs(d, in);
  check_rows(d, "df_NMK", out.df_NMK, d.dtype);
  if (out.da_log_M) check_a_log(d, "da_log_M", out.da_log_M);
  if (out.ddt_bias_MK) check_dt_bias(d, "ddt_bias_MK", out.ddt_bias_MK);
  check_workspace(kOp, workspace, plan.workspace_bytes);
  if (d.rows == 0) return;
  if constexpr (kWithCuda) {
    if (d.device == Device::kCuda) return kda_gate_backward_cuda(ctx, plan, in, out, workspace);
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

KdaBetaPlan kda_beta_plan(const KdaBetaDesc& d) {
  K25_CHECK(d.rows >= 0 && d.heads > 0, "kda_beta: rows " + std::to_string(d.rows) +
                                            " must not be negative, heads " +
                                            std::to_string(d.heads) + " must be positive");
  check_float_dtype(kBetaOp, d.dtype, d.device);
  return {.desc = d, .workspace_bytes = Bytes{0}};
}

void kda_beta_forward(Context& ctx, const KdaBetaPlan& plan, const KdaBetaForwardIn& in,
                      const KdaBetaForwardOut& out, Workspace /*workspace*/) {
  const KdaBetaDesc& d = plan.desc;
  check_beta(d, "b_NM", in.b_NM, d.dtype);
  check_beta(d, "beta_NM", out.beta_NM, accumulator_dtype(d.dtype));
  if (d.rows == 0) return;
  if constexpr (kWithCuda) {
    if (d.device == Device::kCuda) return kda_beta_forward_cuda(ctx, plan, in, out);
  }
  switch (d.dtype) {
    case DType::kFloat32:
      return beta_forward_typed<float, float>(ctx, d, in, out);
    case DType::kBFloat16:
      return beta_forward_typed<BFloat16, float>(ctx, d, in, out);
    default:
      return beta_forward_typed<double, double>(ctx, d, in, out);
  }
}

void kda_beta_backward(Context& ctx, const KdaBetaPlan& plan, const KdaBetaBackwardIn& in,
                       const KdaBetaBackwardOut& out, Workspace /*workspace*/) {
  const KdaBetaDesc& d = plan.desc;
  check_beta(d, "dbeta_NM", in.dbeta_NM, accumulator_dtype(d.dtype));
  check_beta(d, "b_NM", in.b_NM, d.dtype);
  check_beta(d, "db_NM", out.db_NM, d.dtype);
  if (d.rows == 0) return;
  if constexpr (kWithCuda) {
    if (d.device == Device::kCuda) return kda_beta_backward_cuda(ctx, plan, in, out);
  }
  switch (d.dtype) {
    case DType::kFloat32:
      return beta_backward_typed<float, float>(ctx, d, in, out);
    case DType::kBFloat16:
      return beta_backward_typed<BFloat16, float>(ctx, d, in, out);
    default:
      return beta_backward_typed<double, double>(ctx, d, in, out);
  }
}

}  // namespace k25::kernels
