#include "kernels/kda/kda.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <type_traits>

#include "kernels/core/buffer.h"
#include "kernels/core/operand.h"
#include "kernels/core/work_cut.h"
#include "kernels/kda/kda_cpu.h"
#include "kernels/kda/kda_cuda.h"
#include "kernels/kda/kda_operands.h"
#include "kernels/sequences/sequence_operands.h"

namespace k25::kernels {
namespace {

static_assert(kKdaRows == kKdaChunk);
constexpr std::int64_t kMaxSlots = 16;  // pieces of the work, each with scratch of its own
constexpr std::string_view kOp = "kda";

SequenceShape shape_of(const KdaDesc& d) { return {d.batch, d.tokens, d.sequences}; }
std::int64_t sequences_of(const KdaDesc& d) { return shape_of(d).count(); }

KdaSizes sizes_of(const KdaDesc& d) {
  KdaSizes s;
  s.heads = d.heads;
  s.value_heads = d.value_heads;
  s.key_dim = d.key_dim;
  s.value_dim = d.value_dim;
  s.padded_key = align_up(d.key_dim, kKdaPad);
  s.padded_value = align_up(d.value_dim, kKdaPad);
  s.group = d.value_heads / d.heads;
  s.boundaries = d.tokens > 0 ? (d.tokens - 1) / kKdaChunk : 0;
  s.recurrent = d.form == KdaForm::kRecurrent;
  s.keeps_states = d.keep == KdaKeep::kStates;
  return s;
}

/// How the sequence x key head units are cut, with scratch for that many elements.
WorkCut cut_of(const KdaDesc& d, std::int64_t elements) {
  return cut_work(sequences_of(d) * d.heads, kMaxSlots,
                  elements * dtype_bytes(accumulator_dtype(d.dtype)));
}

// ---- checkpoints ----------------------------------------------------------------------------

std::int64_t length_of(const KdaDesc& d, const SequenceBorders& b, std::int64_t s) {
  if (d.sequences == 0) return d.tokens;
  const std::int32_t* const border = b.border_S1.data<std::int32_t>();
  return border[s + 1] - border[s];
}

void check_checkpoints(const KdaDesc& d, const KdaForwardIn& in, const KdaForwardOut& out) {
  if (d.checkpoints == 0) {
    K25_CHECK(!in.checkpoint_offset_SN && !out.checkpoint_SNMKV,
              "kda: checkpoints need desc.checkpoints, which is 0");
    return;
  }
  K25_CHECK(!in.borders.doc_begin_BT,
            "kda: checkpoints are counted in sequences; with documents there are none");
  const std::int64_t sequences = sequences_of(d);
  check_operand(kOp, "checkpoint_offset_SN", in.checkpoint_offset_SN, DType::kInt32,
                {sequences, d.checkpoints}, Density::kRows, d.device);
  check_operand(kOp, "checkpoint_SNMKV", out.checkpoint_SNMKV, accumulator_dtype(d.dtype),
                {sequences, d.checkpoints, d.value_heads, d.key_dim, d.value_dim}, Density::kRows,
                d.device);
  if (d.device == Device::kCuda) return;  // their contents are not read back
  for (std::int64_t s = 0; s < sequences; ++s) {
    const std::int32_t* const offsets =
        in.checkpoint_offset_SN.data<std::int32_t>() + s * in.checkpoint_offset_SN.stride(0);
    const std::int64_t length = length_of(d, in.borders, s);
    for (std::int64_t i = 0; i < d.checkpoints; ++i) {
      const std::int64_t at = offsets[i];
      if (at == -1 || at == length || (at >= 0 && at < length && at % kKdaChunk == 0)) continue;
      fail(ErrorKind::kUsage, "kda: sequence " + std::to_string(s) + ", checkpoint " +
                                  std::to_string(i) + ": offset " + std::to_string(at) +
                                  " is no multiple of " + std::to_string(kKdaChunk) +
                                  " within its " + std::to_string(length) +
                                  " tokens, nor their number, nor -1 for none");
    }
  }
}

// ---- operands -------------------------------------------------------------------------------

void check_state(const KdaDesc& d, const char* name, const ConstTensor& t) {
  if (!t) return;
  check_operand(kOp, name, t, accumulator_dtype(d.dtype),
                {sequences_of(d), d.value_heads, d.key_dim, d.value_dim}, Density::kRows, d.device);
}

/// q, k, v, g and beta, or their gradients.
void check_tokens(const KdaDesc& d, std::string_view prefix, const ConstTensor& q,
                  const ConstTensor& k, const ConstTensor& v, const ConstTensor& g,
                  const ConstTensor& beta) {
  const auto like_k = {d.batch, d.tokens, d.heads, d.key_dim};
  const auto like_v = {d.batch, d.tokens, d.value_heads, d.value_dim};
  const auto like_g = {d.batch, d.tokens, d.value_heads, d.key_dim};
  const auto check = [&](const char* name, const ConstTensor& t, DType dtype,
                         std::initializer_list<std::int64_t> shape, Density density) {
    char text[32] = {};
    const std::string_view plain(name);
    std::copy(prefix.begin(), prefix.end(), text);
    std::copy(plain.begin(), plain.end(), text + prefix.size());
    check_operand(kOp, text, t, dtype, shape, density, d.device);
  };
  check("q_BTHK", q, d.dtype, like_k, Density::kRows);
  check("k_BTHK", k, d.dtype, like_k, Density::kRows);
  check("v_BTMV", v, d.dtype, like_v, Density::kRows);
  check("g_BTMK", g, accumulator_dtype(d.dtype), like_g, Density::kRows);
  check("beta_BTM", beta, accumulator_dtype(d.dtype), {d.batch, d.tokens, d.value_heads},
        Density::kRows);
}

void check_saved(const KdaPlan& plan, const ConstTensor& saved) {
  check_operand(kOp, "saved", saved, DType::kUInt8, {plan.saved_bytes.n}, Density::kContiguous,
                plan.desc.device);
  K25_CHECK(reinterpret_cast<std::uintptr_t>(saved.raw()) % 64 == 0,
            "kda: saved must be 64-byte aligned");
}

// ---- calls ----------------------------------------------------------------------------------

/// What the bodies of parallel_for see. They capture one pointer, so that std::function allocates
/// nothing.
template <class T, class A>
struct Call {
  KdaArgs<T, A> args;
  WorkCut cut;
  CpuIsa isa;
  void* scratch;

  A* slot(std::int64_t begin) const { return cut.slot<A>(scratch, begin); }
};

template <class T, class A, class In>
KdaArgs<T, A> common_args(const KdaDesc& d, const In& in) {
  KdaArgs<T, A> args;
  args.sizes = sizes_of(d);
  args.scale = static_cast<A>(d.scale);
  if (d.batch * d.tokens > 0) {
    args.q = kda_heads<T>(in.q_BTHK);
    args.k = kda_heads<T>(in.k_BTHK);
    args.v = kda_heads<T>(in.v_BTMV);
    args.g = kda_heads<A>(in.g_BTMK);
    args.beta = kda_heads<A>(in.beta_BTM);
  }
  args.sequences = sequence_view(shape_of(d), in.borders);
  args.initial = kda_states<A>(in.initial_state_SMKV);
  return args;
}

template <class T, class A>
void forward_typed(Context& ctx, const KdaDesc& d, const KdaForwardIn& in, const KdaForwardOut& out,
                   Workspace workspace) {
  Call<T, A> call{common_args<T, A>(d, in), cut_of(d, kda_forward_scratch(sizes_of(d))), ctx.isa,
                  workspace.data};
  KdaArgs<T, A>& args = call.args;
  if (d.batch * d.tokens > 0) args.out = kda_heads<T>(out.out_BTMV);
  args.final = kda_states<A>(out.final_state_SMKV);
  if (d.checkpoints > 0) {
    const Tensor& c = out.checkpoint_SNMKV;
    args.checkpoint = {c.data<A>(), c.stride(0), c.stride(1), c.stride(2), c.stride(3)};
    args.checkpoint_offset = in.checkpoint_offset_SN.data<std::int32_t>();
    args.checkpoints = d.checkpoints;
    args.offset_stride = in.checkpoint_offset_SN.stride(0);
  }
  if (d.keep == KdaKeep::kStates) args.kept = static_cast<A*>(out.saved.raw());
  if constexpr (kWithCuda && !std::is_same_v<T, double>) {
    if (d.device == Device::kCuda) {
      return kda_forward_cuda(ctx, {args, sequences_of(d), static_cast<float*>(workspace.data)});
    }
  }
  const auto* const c = &call;
  parallel_for(ctx.threads, c->cut.units, c->cut.grain, [c](std::int64_t begin, std::int64_t end) {
    K25_ISA_CALL(c->isa, kda_forward_cpu, c->args, begin, end, c->slot(begin));
  });
}

/// Backward on the GPU: where forward kept no states, it runs again and leaves them in the
/// workspace.
template <class T>
void backward_on_gpu(Context& ctx, const KdaDesc& d, KdaArgs<T, float> args, Workspace workspace) {
  auto* scratch = static_cast<float*>(workspace.data);
  if (args.kept == nullptr && args.sizes.boundaries > 0) {
    args.kept = scratch;
    scratch += kda_kept_floats(args.sizes, d.batch);
    KdaArgs<T, float> again = args;
    again.out = {};
    again.final = {};
    kda_forward_cuda(ctx, {again, sequences_of(d), scratch});
  }
  kda_backward_cuda(ctx, {args, sequences_of(d), scratch});
}

template <class T, class A>
void backward_typed(Context& ctx, const KdaDesc& d, const KdaBackwardIn& in,
                    const KdaBackwardOut& out, Workspace workspace) {
  Call<T, A> call{common_args<T, A>(d, in), cut_of(d, kda_backward_scratch(sizes_of(d))), ctx.isa,
                  workspace.data};
  KdaArgs<T, A>& args = call.args;
  if (d.batch * d.tokens > 0) {
    args.dout = kda_heads<T>(in.dout_BTMV);
    args.dq = kda_heads<T>(out.dq_BTHK);
    args.dk = kda_heads<T>(out.dk_BTHK);
    args.dv = kda_heads<T>(out.dv_BTMV);
    args.dg = kda_heads<A>(out.dg_BTMK);
    args.dbeta = kda_heads<A>(out.dbeta_BTM);
  }
  args.dfinal = kda_states<A>(in.dfinal_state_SMKV);
  args.dinitial = kda_states<A>(out.dinitial_state_SMKV);
  if (d.keep == KdaKeep::kStates) {
    args.kept = const_cast<A*>(static_cast<const A*>(in.saved.raw()));  // backward only reads it
  }
  if constexpr (kWithCuda && !std::is_same_v<T, double>) {
    if (d.device == Device::kCuda) return backward_on_gpu(ctx, d, args, workspace);
  }
  const auto* const c = &call;
  parallel_for(ctx.threads, c->cut.units, c->cut.grain, [c](std::int64_t begin, std::int64_t end) {
    K25_ISA_CALL(c->isa, kda_backward_cpu, c->args, begin, end, c->slot(begin));
  });
}

void check_desc(const KdaDesc& d) {
  check_sequence_shape(kOp, shape_of(d));
  K25_CHECK(d.key_dim > 0 && d.value_dim > 0, "kda: key_dim " + std::to_string(d.key_dim) +
                                                  " and value_dim " + std::to_string(d.value_dim) +
                                                  " must be positive");
  K25_CHECK(d.heads > 0 && d.value_heads > 0 && d.value_heads % d.heads == 0,
            "kda: value_heads " + std::to_string(d.value_heads) + " must be a multiple of heads " +
                std::to_string(d.heads) + ", both positive");
  K25_CHECK(d.checkpoints >= 0,
            "kda: checkpoints " + std::to_string(d.checkpoints) + " must not be negative");
  check_float_dtype(kOp, d.dtype, d.device);
  K25_CHECK(std::isfinite(d.scale) && d.scale >= 0,
            "kda: scale must be positive, or 0 for 1 / sqrt(key_dim)");
  if (d.device == Device::kCpu) return;
  K25_CHECK(d.form == KdaForm::kChunked,
            "kda: the recurrent form runs on the CPU only; use the chunked one");
  K25_CHECK(kda_cuda_takes(d.key_dim) && kda_cuda_takes(d.value_dim),
            "kda: key_dim " + std::to_string(d.key_dim) + " and value_dim " +
                std::to_string(d.value_dim) + "; on the GPU each must be 64 or 128");
}

/// What the blocks of each direction take on the GPU, in bytes.
void plan_for_gpu(const KdaSizes& s, KdaPlan& plan) {
  constexpr auto kFloat = static_cast<std::int64_t>(sizeof(float));
  const std::int64_t sequences = sequences_of(plan.desc);
  const std::int64_t forward =
      kda_forward_blocks(s, sequences) * kda_forward_block_floats(s) * kFloat;
  const std::int64_t backward =
      kda_backward_blocks(s, sequences) * kda_backward_block_floats(s) * kFloat;
  const std::int64_t kept = kda_kept_floats(s, plan.desc.batch) * kFloat;
  plan.forward_workspace_bytes = Bytes{forward};
  plan.backward_workspace_bytes =
      Bytes{s.keeps_states ? backward : kept + std::max(forward, backward)};
}

}  // namespace

KdaPlan kda_plan(const KdaDesc& desc) {
  check_desc(desc);
  KdaPlan plan;
  KdaDesc& d = plan.desc = desc;
  if (d.scale == 0) d.scale = 1.0 / std::sqrt(static_cast<double>(d.key_dim));
  const KdaSizes s = sizes_of(d);
  plan.forward_workspace_bytes = cut_of(d, kda_forward_scratch(s)).bytes();
  plan.backward_workspace_bytes = cut_of(d, kda_backward_scratch(s)).bytes();
  if (d.device == Device::kCuda) plan_for_gpu(s, plan);
  plan.workspace_bytes =
      Bytes{std::max(plan.forward_workspace_bytes.n, plan.backward_workspace_bytes.n)};
  if (d.keep == KdaKeep::kStates) {
    plan.saved_bytes = Bytes{d.batch * s.boundaries * d.value_heads * s.padded_key *
                             s.padded_value * dtype_bytes(accumulator_dtype(d.dtype))};
  }
  return plan;
}

void kda_forward(Context& ctx, const KdaPlan& plan, const KdaForwardIn& in,
                 const KdaForwardOut& out, Workspace workspace) {
  const KdaDesc& d = plan.desc;
  check_tokens(d, "", in.q_BTHK, in.k_BTHK, in.v_BTMV, in.g_BTMK, in.beta_BTM);
  check_sequence_borders(kOp, shape_of(d), in.borders, d.device);
  check_state(d, "initial_state_SMKV", in.initial_state_SMKV);
  check_operand(kOp, "out_BTMV", out.out_BTMV, d.dtype,
                {d.batch, d.tokens, d.value_heads, d.value_dim}, Density::kRows, d.device);
  check_state(d, "final_state_SMKV", out.final_state_SMKV);
  check_checkpoints(d, in, out);
  if (out.saved) check_saved(plan, out.saved);
  check_workspace(kOp, workspace, plan.forward_workspace_bytes);
  switch (d.dtype) {
    case DType::kFloat32:
      return forward_typed<float, float>(ctx, d, in, out, workspace);
    case DType::kBFloat16:
      return forward_typed<BFloat16, float>(ctx, d, in, out, workspace);
    default:
      return forward_typed<double, double>(ctx, d, in, out, workspace);
  }
}

void kda_backward(Context& ctx, const KdaPlan& plan, const KdaBackwardIn& in,
                  const KdaBackwardOut& out, Workspace workspace) {
  const KdaDesc& d = plan.desc;
  check_tokens(d, "", in.q_BTHK, in.k_BTHK, in.v_BTMV, in.g_BTMK, in.beta_BTM);
  check_sequence_borders(kOp, shape_of(d), in.borders, d.device);
  check_state(d, "initial_state_SMKV", in.initial_state_SMKV);
  check_saved(plan, in.saved);
  check_operand(kOp, "dout_BTMV", in.dout_BTMV, d.dtype,
                {d.batch, d.tokens, d.value_heads, d.value_dim}, Density::kRows, d.device);
  check_state(d, "dfinal_state_SMKV", in.dfinal_state_SMKV);
  check_tokens(d, "d", out.dq_BTHK, out.dk_BTHK, out.dv_BTMV, out.dg_BTMK, out.dbeta_BTM);
  check_state(d, "dinitial_state_SMKV", out.dinitial_state_SMKV);
  check_workspace(kOp, workspace, plan.backward_workspace_bytes);
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
