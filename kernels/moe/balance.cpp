#include "kernels/moe/balance.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>

#include "kernels/core/operand.h"
#include "kernels/moe/balance_cpu.h"
#include "kernels/moe/moe_checks.h"

namespace k25::kernels {
namespace {

constexpr const char* kOp = "moe_balance";
constexpr std::int64_t kTokenGrain = 64;

const std::int64_t* checked_starts(const MoeBalanceDesc& d, const ConstTensor& start_S) {
  check_operand(kOp, "start_S", start_S, DType::kInt64, {d.sequences + 1}, Density::kContiguous);
  const auto* start = start_S.data<std::int64_t>();
  for (std::int64_t q = 0; q < d.sequences; ++q) {
    if (start[0] == 0 && start[q] <= start[q + 1] && start[d.sequences] == d.tokens) continue;
    fail(ErrorKind::kUsage, std::string(kOp) + ": start_S puts sequence " + std::to_string(q) +
                                " at tokens " + std::to_string(start[q]) + " to " +
                                std::to_string(start[q + 1]) + "; starts must ascend from 0 to " +
                                std::to_string(d.tokens));
  }
  return start;
}

template <class T>
void fractions(const MoeBalanceDesc& d, const MoeFractionsIn& in, const MoeFractionsOut& out,
               const std::int64_t* start, std::int64_t* count) {
  const auto* index = d.tokens == 0 ? nullptr : in.index_NK.data<std::int32_t>();
  const std::int64_t stride = d.tokens == 0 ? 0 : in.index_NK.stride(0);
  for (std::int64_t q = 0; q < d.sequences; ++q) {
    std::fill_n(count, d.experts, std::int64_t{0});
    for (std::int64_t n = start[q]; n < start[q + 1]; ++n) {
      for (std::int64_t k = 0; k < d.top_k; ++k) ++count[index[n * stride + k]];
    }
    T* const f = out.fraction_QE.data<T>() + q * out.fraction_QE.stride(0);
    const std::int64_t choices = d.top_k * (start[q + 1] - start[q]);
    for (std::int64_t i = 0; i < d.experts; ++i) {
      // NOTE: 0 / 0 of an empty sequence is meant to be 0.
      f[i] = choices == 0 ? T(0)
                          : static_cast<T>(static_cast<double>(d.experts * count[i]) /
                                           static_cast<double>(choices));
    }
  }
}

/// loss or dscores (the other absent) of all sequences.
template <class T>
void run(Context& ctx, const MoeBalanceDesc& d, const ConstTensor& scores_NE,
         const ConstTensor& fraction_QE, const Tensor& loss_N, const Tensor& dscores_NE,
         const std::int64_t* start) {
  MoeBalanceArgs<T> args{
      .experts = d.experts,
      .coefficient = static_cast<T>(d.coefficient),
      .scores = scores_NE.data<T>(),
      .scores_stride = scores_NE.stride(0),
      .fraction = nullptr,
      .loss = loss_N ? loss_N.data<T>() : nullptr,
      .dscores = dscores_NE ? dscores_NE.data<T>() : nullptr,
      .dscores_stride = dscores_NE ? dscores_NE.stride(0) : 0,
  };
  for (std::int64_t q = 0; q < d.sequences; ++q) {
    args.fraction = fraction_QE.data<T>() + q * fraction_QE.stride(0);
    const std::int64_t first = start[q];
    const auto body = [&](std::int64_t begin, std::int64_t end) {
      K25_ISA_CALL(ctx.isa, moe_balance_cpu, args, first + begin, first + end);
    };
    parallel_for(ctx.threads, start[q + 1] - first, kTokenGrain, std::ref(body));
  }
}

void check_scores(const MoeBalanceDesc& d, const ConstTensor& scores_NE,
                  const ConstTensor& fraction_QE) {
  check_operand(kOp, "scores_NE", scores_NE, d.dtype, {d.tokens, d.experts}, Density::kRows);
  check_operand(kOp, "fraction_QE", fraction_QE, d.dtype, {d.sequences, d.experts}, Density::kRows);
}

}  // namespace

MoeBalancePlan moe_balance_plan(const MoeBalanceDesc& desc) {
  if (desc.tokens < 0 || desc.experts < 1 || desc.sequences < 1 || desc.top_k < 1 ||
      desc.top_k > desc.experts) {
    fail(ErrorKind::kUsage, std::string(kOp) + ": tokens " + std::to_string(desc.tokens) +
                                " must not be negative, experts " + std::to_string(desc.experts) +
                                " and sequences " + std::to_string(desc.sequences) +
                                " at least 1, top_k " + std::to_string(desc.top_k) +
                                " from 1 to experts");
  }
  if (!(std::isfinite(desc.coefficient) && desc.coefficient >= 0)) {
    fail(ErrorKind::kUsage, std::string(kOp) + ": coefficient is " +
                                std::to_string(desc.coefficient) +
                                ", it must be finite and not negative");
  }
  check_moe_routing_dtype(kOp, desc.dtype);
  check_moe_device(kOp, desc.device);
  return {.desc = desc,
          .workspace_bytes = Bytes{desc.experts * 8},
          .saved_bytes = Bytes{desc.sequences * desc.experts * dtype_bytes(desc.dtype)}};
}

void moe_fractions(Context& /*ctx*/, const MoeBalancePlan& plan, const MoeFractionsIn& in,
                   const MoeFractionsOut& out, Workspace workspace) {
  const MoeBalanceDesc& d = plan.desc;
  check_operand(kOp, "fraction_QE", out.fraction_QE, d.dtype, {d.sequences, d.experts},
                Density::kRows);
  const std::int64_t* start = checked_starts(d, in.start_S);
  check_moe_index(kOp, in.index_NK, d.tokens, d.top_k, d.experts);
  check_workspace(kOp, workspace, plan.workspace_bytes);
  auto* count = static_cast<std::int64_t*>(workspace.data);
  if (d.dtype == DType::kFloat64) {
    fractions<double>(d, in, out, start, count);
  } else {
    fractions<float>(d, in, out, start, count);
  }
}

void moe_balance_forward(Context& ctx, const MoeBalancePlan& plan, const MoeBalanceForwardIn& in,
                         const MoeBalanceForwardOut& out, Workspace /*workspace*/) {
  const MoeBalanceDesc& d = plan.desc;
  check_scores(d, in.scores_NE, in.fraction_QE);
  check_operand(kOp, "loss_N", out.loss_N, d.dtype, {d.tokens}, Density::kContiguous);
  const std::int64_t* start = checked_starts(d, in.start_S);
  if (d.tokens == 0) return;
  if (d.dtype == DType::kFloat64) {
    run<double>(ctx, d, in.scores_NE, in.fraction_QE, out.loss_N, {}, start);
  } else {
    run<float>(ctx, d, in.scores_NE, in.fraction_QE, out.loss_N, {}, start);
  }
}

void moe_balance_backward(Context& ctx, const MoeBalancePlan& plan, const MoeBalanceBackwardIn& in,
                          const MoeBalanceBackwardOut& out, Workspace /*workspace*/) {
  const MoeBalanceDesc& d = plan.desc;
  check_scores(d, in.scores_NE, in.fraction_QE);
  check_operand(kOp, "dscores_NE", out.dscores_NE, d.dtype, {d.tokens, d.experts}, Density::kRows);
  const std::int64_t* start = checked_starts(d, in.start_S);
  if (d.tokens == 0) return;
  if (d.dtype == DType::kFloat64) {
    run<double>(ctx, d, in.scores_NE, in.fraction_QE, {}, out.dscores_NE, start);
  } else {
    run<float>(ctx, d, in.scores_NE, in.fraction_QE, {}, out.dscores_NE, start);
  }
}

}  // namespace k25::kernels
