#include "kernels/kda/kda_step.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <type_traits>

#include "kernels/core/buffer.h"
#include "kernels/core/operand.h"
#include "kernels/core/work_cut.h"
#include "kernels/kda/kda_cuda.h"
#include "kernels/kda/kda_operands.h"
#include "kernels/kda/kda_step_cpu.h"
#include "kernels/kda/kda_step_cuda.h"

namespace k25::kernels {
namespace {

constexpr std::int64_t kMaxSlots = 32;  // pieces of the work, each with scratch of its own
constexpr std::string_view kOp = "kda_step";

/// How the sequence x value head units are cut.
WorkCut cut_of(const KdaStepDesc& d) {
  return cut_work(
      d.sequences * d.value_heads, kMaxSlots,
      kda_step_scratch(d.key_dim, d.value_dim) * dtype_bytes(accumulator_dtype(d.dtype)));
}

void check_tokens(const KdaStepDesc& d, const char* name, const ConstTensor& t, DType dtype,
                  std::int64_t heads, std::int64_t dim) {
  check_operand(kOp, name, t, dtype, {d.sequences, d.tokens, heads, dim}, Density::kRows, d.device);
}

void check_key(const KdaStepDesc& d, const ConstTensor& k, const ConstTensor& g) {
  check_tokens(d, "k_STHK", k, d.dtype, d.heads, d.key_dim);
  check_tokens(d, "g_STMK", g, accumulator_dtype(d.dtype), d.value_heads, d.key_dim);
}

template <class In>
void check_inputs(const KdaStepDesc& d, const In& in) {
  check_key(d, in.k_STHK, in.g_STMK);
  check_tokens(d, "q_STHK", in.q_STHK, d.dtype, d.heads, d.key_dim);
  check_tokens(d, "v_STMV", in.v_STMV, d.dtype, d.value_heads, d.value_dim);
  check_operand(kOp, "beta_STM", in.beta_STM, accumulator_dtype(d.dtype),
                {d.sequences, d.tokens, d.value_heads}, Density::kRows, d.device);
}

void check_state(const KdaStepDesc& d, const ConstTensor& t) {
  check_operand(kOp, "state_SMKV", t, accumulator_dtype(d.dtype),
                {d.sequences, d.value_heads, d.key_dim, d.value_dim}, Density::kRows, d.device);
}

void check_accepted(const KdaStepDesc& d, const ConstTensor& t) {
  check_operand(kOp, "accepted_S", t, DType::kInt32, {d.sequences}, Density::kContiguous, d.device);
  if (d.device == Device::kCuda) return;  // its contents are not read back
  for (std::int64_t s = 0; s < d.sequences; ++s) {
    const std::int32_t n = t.data<std::int32_t>()[s];
    if (n >= 0 && n <= d.tokens) continue;
    fail(ErrorKind::kUsage, "kda_step: sequence " + std::to_string(s) + " accepted " +
                                std::to_string(n) + " of a window of " + std::to_string(d.tokens) +
                                " tokens");
  }
}

template <class T, class A>
struct Call {
  KdaStepArgs<T, A> args;
  WorkCut cut;
  CpuIsa isa;
  void* scratch;

  A* slot(std::int64_t begin) const { return cut.slot<A>(scratch, begin); }
};

template <class T, class A>
Call<T, A> call_of(const Context& ctx, const KdaStepDesc& d, Workspace workspace) {
  Call<T, A> call{{}, cut_of(d), ctx.isa, workspace.data};
  KdaStepArgs<T, A>& args = call.args;
  args.tokens = d.tokens;
  args.heads = d.heads;
  args.value_heads = d.value_heads;
  args.key_dim = d.key_dim;
  args.value_dim = d.value_dim;
  args.scale = static_cast<A>(d.scale);
  return call;
}

template <class T, class A, class In>
void set_inputs(const In& in, KdaStepArgs<T, A>& args) {
  args.q = kda_heads<T>(in.q_STHK);
  args.k = kda_heads<T>(in.k_STHK);
  args.v = kda_heads<T>(in.v_STMV);
  args.g = kda_heads<A>(in.g_STMK);
  args.beta = kda_heads<A>(in.beta_STM);
}

template <class T, class A>
void decode_typed(Context& ctx, const KdaStepDesc& d, const KdaDecodeIn& in,
                  const KdaDecodeOut& out, Workspace workspace) {
  Call<T, A> call = call_of<T, A>(ctx, d, workspace);
  set_inputs(in, call.args);
  call.args.out = kda_heads<T>(out.out_STMV);
  call.args.state = kda_states<A>(out.state_SMKV);
  if constexpr (kWithCuda && !std::is_same_v<T, double>) {
    if (d.device == Device::kCuda) return kda_decode_cuda(ctx, call.args, d.sequences);
  }
  const auto* const c = &call;
  parallel_for(ctx.threads, c->cut.units, c->cut.grain, [c](std::int64_t begin, std::int64_t end) {
    K25_ISA_CALL(c->isa, kda_decode_cpu, c->args, begin, end, c->slot(begin));
  });
}

template <class T, class A>
void verify_typed(Context& ctx, const KdaStepDesc& d, const KdaVerifyIn& in,
                  const KdaVerifyOut& out, Workspace workspace) {
  Call<T, A> call = call_of<T, A>(ctx, d, workspace);
  set_inputs(in, call.args);
  call.args.before = kda_states<A>(in.state_SMKV);
  call.args.out = kda_heads<T>(out.out_STMV);
  call.args.u = kda_heads<A>(out.u_STMV);
  if constexpr (kWithCuda && !std::is_same_v<T, double>) {
    if (d.device == Device::kCuda) return kda_verify_cuda(ctx, call.args, d.sequences);
  }
  const auto* const c = &call;
  parallel_for(ctx.threads, c->cut.units, c->cut.grain, [c](std::int64_t begin, std::int64_t end) {
    K25_ISA_CALL(c->isa, kda_verify_cpu, c->args, begin, end, c->slot(begin));
  });
}

template <class T, class A>
void commit_typed(Context& ctx, const KdaStepDesc& d, const KdaCommitIn& in,
                  const KdaCommitOut& out, Workspace workspace) {
  Call<T, A> call = call_of<T, A>(ctx, d, workspace);
  call.args.k = kda_heads<T>(in.k_STHK);
  call.args.g = kda_heads<A>(in.g_STMK);
  call.args.logged_u = kda_heads<A>(in.u_STMV);
  call.args.accepted = in.accepted_S.data<std::int32_t>();
  call.args.state = kda_states<A>(out.state_SMKV);
  if constexpr (kWithCuda && !std::is_same_v<T, double>) {
    if (d.device == Device::kCuda) return kda_commit_cuda(ctx, call.args, d.sequences);
  }
  const auto* const c = &call;
  parallel_for(ctx.threads, c->cut.units, c->cut.grain, [c](std::int64_t begin, std::int64_t end) {
    K25_ISA_CALL(c->isa, kda_commit_cpu, c->args, begin, end, c->slot(begin));
  });
}

bool nothing_to_do(const KdaStepDesc& d) { return d.sequences == 0 || d.tokens == 0; }

}  // namespace

KdaStepPlan kda_step_plan(const KdaStepDesc& desc) {
  KdaStepPlan plan;
  KdaStepDesc& d = plan.desc = desc;
  K25_CHECK(d.sequences >= 0 && d.tokens >= 0,
            "kda_step: sequences " + std::to_string(d.sequences) + " and tokens " +
                std::to_string(d.tokens) + " must not be negative");
  K25_CHECK(d.key_dim > 0 && d.value_dim > 0, "kda_step: key_dim " + std::to_string(d.key_dim) +
                                                  " and value_dim " + std::to_string(d.value_dim) +
                                                  " must be positive");
  K25_CHECK(d.heads > 0 && d.value_heads > 0 && d.value_heads % d.heads == 0,
            "kda_step: value_heads " + std::to_string(d.value_heads) +
                " must be a multiple of heads " + std::to_string(d.heads) + ", both positive");
  check_float_dtype(kOp, d.dtype, d.device);
  K25_CHECK(std::isfinite(d.scale) && d.scale >= 0,
            "kda_step: scale must be positive, or 0 for 1 / sqrt(key_dim)");
  if (d.scale == 0) d.scale = 1.0 / std::sqrt(static_cast<double>(d.key_dim));
  if (d.device == Device::kCuda) {
    K25_CHECK(kda_cuda_takes(d.key_dim) && kda_cuda_takes(d.value_dim),
              "kda_step: key_dim " + std::to_string(d.key_dim) + " and value_dim " +
                  std::to_string(d.value_dim) + "; on the GPU each must be 64 or 128");
    return plan;
  }
  plan.workspace_bytes = cut_of(d).bytes();
  return plan;
}

void kda_decode(Context& ctx, const KdaStepPlan& plan, const KdaDecodeIn& in,
                const KdaDecodeOut& out, Workspace workspace) {
  const KdaStepDesc& d = plan.desc;
  check_inputs(d, in);
  check_tokens(d, "out_STMV", out.out_STMV, d.dtype, d.value_heads, d.value_dim);
  check_state(d, out.state_SMKV);
  check_workspace(kOp, workspace, plan.workspace_bytes);
  if (nothing_to_do(d)) return;
  switch (d.dtype) {
    case DType::kFloat32:
      return decode_typed<float, float>(ctx, d, in, out, workspace);
    case DType::kBFloat16:
      return decode_typed<BFloat16, float>(ctx, d, in, out, workspace);
    default:
      return decode_typed<double, double>(ctx, d, in, out, workspace);
  }
}

void kda_verify(Context& ctx, const KdaStepPlan& plan, const KdaVerifyIn& in,
                const KdaVerifyOut& out, Workspace workspace) {
  const KdaStepDesc& d = plan.desc;
  check_inputs(d, in);
  check_state(d, in.state_SMKV);
  check_tokens(d, "out_STMV", out.out_STMV, d.dtype, d.value_heads, d.value_dim);
  check_tokens(d, "u_STMV", out.u_STMV, accumulator_dtype(d.dtype), d.value_heads, d.value_dim);
  check_workspace(kOp, workspace, plan.workspace_bytes);
  if (nothing_to_do(d)) return;
  switch (d.dtype) {
    case DType::kFloat32:
      return verify_typed<float, float>(ctx, d, in, out, workspace);
    case DType::kBFloat16:
      return verify_typed<BFloat16, float>(ctx, d, in, out, workspace);
    default:
      return verify_typed<double, double>(ctx, d, in, out, workspace);
  }
}

void kda_commit(Context& ctx, const KdaStepPlan& plan, const KdaCommitIn& in,
                const KdaCommitOut& out, Workspace workspace) {
  const KdaStepDesc& d = plan.desc;
  check_key(d, in.k_STHK, in.g_STMK);
  check_tokens(d, "u_STMV", in.u_STMV, accumulator_dtype(d.dtype), d.value_heads, d.value_dim);
  check_accepted(d, in.accepted_S);
  check_state(d, out.state_SMKV);
  check_workspace(kOp, workspace, plan.workspace_bytes);
  if (nothing_to_do(d)) return;
  switch (d.dtype) {
    case DType::kFloat32:
      return commit_typed<float, float>(ctx, d, in, out, workspace);
    case DType::kBFloat16:
      return commit_typed<BFloat16, float>(ctx, d, in, out, workspace);
    default:
      return commit_typed<double, double>(ctx, d, in, out, workspace);
  }
}

}  // namespace k25::kernels
