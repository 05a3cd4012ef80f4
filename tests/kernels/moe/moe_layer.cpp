#include "tests/kernels/moe/moe_layer.h"

#include "kernels/gemm/gemm.h"
#include "kernels/moe/balance.h"
#include "kernels/moe/combine.h"
#include "kernels/moe/experts.h"
#include "kernels/moe/permute.h"
#include "kernels/rmsnorm/rmsnorm.h"
#include "kernels/swiglu/swiglu.h"

namespace k25::moe_test {
namespace {

using kernels::Accumulate;
using kernels::Transpose;
using op_test::Scratch;

/// d (+)= a b, a b^T or a^T b of whole tensors.
void product(Context& ctx, const ConstTensor& a, Transpose ta, const ConstTensor& b, Transpose tb,
             Accumulate accumulate, const Tensor& d) {
  const kernels::GemmPlan plan =
      kernels::gemm_plan({.m = d.dim(0),
                          .n = d.dim(1),
                          .k = ta == Transpose::kYes ? a.dim(0) : a.dim(1),
                          .transpose_a = ta,
                          .transpose_b = tb,
                          .dtype_ab = a.dtype(),
                          .dtype_d = d.dtype(),
                          .accumulate = accumulate});
  const Scratch scratch(plan.workspace_bytes);
  kernels::gemm_forward(ctx, plan, {a, b}, {d}, scratch.workspace());
}
/// y = x w^T.
void linear(Context& ctx, const ConstTensor& x, const ConstTensor& w, const Tensor& y,
            Accumulate accumulate = Accumulate::kOverwrite) {
  product(ctx, x, Transpose::kNo, w, Transpose::kYes, accumulate, y);
}
/// dx (+)= dy w,  dw += dy^T x.
void linear_backward(Context& ctx, const ConstTensor& dy, const ConstTensor& x,
                     const ConstTensor& w, const Tensor& dx, Accumulate accumulate,
                     const Tensor& dw) {
  product(ctx, dy, Transpose::kNo, w, Transpose::kNo, accumulate, dx);
  product(ctx, dy, Transpose::kYes, x, Transpose::kNo, Accumulate::kAdd, dw);
}

kernels::MoeRouterPlan router_plan(const LayerConfig& c) {
  return kernels::moe_router_plan({.tokens = c.tokens,
                                   .experts = c.experts,
                                   .top_k = c.top_k,
                                   .groups = c.groups,
                                   .top_groups = c.top_groups,
                                   .normalize = c.normalize,
                                   .scale = c.scale,
                                   .dtype = c.dtype});
}
kernels::MoePermutePlan permute_plan(const LayerConfig& c) {
  return kernels::moe_permute_plan({.tokens = c.tokens,
                                    .experts = c.experts,
                                    .top_k = c.top_k,
                                    .hidden = c.width(),
                                    .dtype = c.dtype});
}
kernels::MoeCombinePlan combine_plan(const LayerConfig& c) {
  return kernels::moe_combine_plan(
      {.tokens = c.tokens, .top_k = c.top_k, .hidden = c.width(), .dtype = c.dtype});
}
kernels::MoeBalancePlan balance_plan(const LayerConfig& c) {
  return kernels::moe_balance_plan({.tokens = c.tokens,
                                    .experts = c.experts,
                                    .top_k = c.top_k,
                                    .coefficient = c.balance,
                                    .dtype = c.dtype});
}
kernels::MoeExpertsPlan experts_plan(const LayerConfig& c, std::int64_t rows) {
  return kernels::moe_experts_plan(
      {.experts = c.held(), .max_rows = rows, .hidden = c.width(), .ffn = c.ffn, .dtype = c.dtype});
}
kernels::RmsNormPlan norm_plan(const LayerConfig& c) {
  return kernels::rmsnorm_plan({.rows = c.tokens, .cols = c.latent, .dtype = c.dtype, .eps = 1e-6});
}
kernels::SwigluPlan shared_plan(const LayerConfig& c) {
  return kernels::swiglu_plan({.rows = c.tokens, .cols = c.shared_ffn, .dtype = c.dtype});
}

/// What the held experts compute of one round; kept for no longer.
struct Round {
  Round(const LayerConfig& c, const ConstTensor& borders)
      : offset(borders),
        rows(borders.data<std::int64_t>()[c.held()]),
        plan(experts_plan(c, rows)),
        scratch(plan.workspace_bytes),
        x(c.dtype, {rows, c.width()}),
        gate_up(c.dtype, {rows, 2 * c.ffn}),
        y(c.dtype, {rows, c.width()}) {}

  void forward(Context& ctx, const Layer& layer) const {
    kernels::moe_experts_forward(ctx, plan, {x, layer.gate_up, layer.down, offset}, {gate_up, y},
                                 scratch.workspace());
  }

  ConstTensor offset;
  std::int64_t rows;
  kernels::MoeExpertsPlan plan;
  Scratch scratch;
  GuardedTensor x, gate_up, y;
};

}  // namespace

Layer::Layer(const LayerConfig& c)
    : config(c),
      x(tensor({c.tokens, c.hidden})),
      dy(tensor({c.tokens, c.hidden})),
      router(tensor({c.experts, c.hidden})),
      bias(tensor({c.experts})),
      gate_up(tensor({c.held(), 2 * c.ffn, c.width()})),
      down(tensor({c.held(), c.width(), c.ffn})),
      shared_gate_up(tensor({2 * c.shared_ffn, c.hidden})),
      shared_down(tensor({c.hidden, c.shared_ffn})),
      latent_down(tensor({c.latent, c.hidden})),
      latent_norm(tensor({c.latent})),
      latent_up(tensor({c.hidden, c.latent})),
      y(tensor({c.tokens, c.hidden})),
      index(DType::kInt32, {c.tokens, c.top_k}),
      weight(tensor({c.tokens, c.top_k})),
      count(DType::kInt64, {c.experts}),
      d_x(tensor({c.tokens, c.hidden})),
      d_router(tensor({c.experts, c.hidden})),
      d_gate_up(tensor({c.held(), 2 * c.ffn, c.width()})),
      d_down(tensor({c.held(), c.width(), c.ffn})),
      d_shared_gate_up(tensor({2 * c.shared_ffn, c.hidden})),
      d_shared_down(tensor({c.hidden, c.shared_ffn})),
      d_latent_down(tensor({c.latent, c.hidden})),
      d_latent_norm(tensor({c.latent})),
      d_latent_up(tensor({c.hidden, c.latent})),
      scores_(tensor({c.tokens, c.experts})),
      dweight_(tensor({c.tokens, c.top_k})),
      dscores_(tensor({c.tokens, c.experts})),
      dlogits_(tensor({c.tokens, c.experts})),
      fraction_(tensor({1, c.experts})),
      start_(DType::kInt64, {2}, std::vector<double>{0, static_cast<double>(c.tokens)}),
      offset_(DType::kInt64, {c.experts + 1}),
      row_(DType::kInt32, {c.tokens, c.top_k}),
      choice_(DType::kInt32, {rows()}),
      narrow_(tensor({c.tokens, c.width()})),
      permuted_(tensor({rows(), c.width()})),
      expert_rows_(tensor({rows(), c.width()})),
      combined_(tensor({c.tokens, c.width()})),
      normed_(tensor({c.tokens, c.latent})),
      rstd_(tensor({c.tokens})),
      shared_pair_(tensor({c.tokens, 2 * c.shared_ffn})),
      shared_act_(tensor({c.tokens, c.shared_ffn})),
      d_shared_pair_(tensor({c.tokens, 2 * c.shared_ffn})),
      d_narrow_(tensor({c.tokens, c.width()})),
      d_combined_(tensor({c.tokens, c.width()})),
      d_normed_(tensor({c.tokens, c.latent})),
      d_rows_(tensor({rows(), c.width()})) {}

void Layer::route(Context& ctx) {
  linear(ctx, x, router, scores_);
  kernels::moe_router_forward(ctx, router_plan(config), {scores_, bias}, {scores_, weight, index},
                              {});
  const kernels::MoeBalancePlan plan = balance_plan(config);
  const Scratch scratch(plan.workspace_bytes);
  const GuardedTensor loss = tensor({config.tokens});
  kernels::moe_fractions(ctx, plan, {index, start_}, {fraction_}, scratch.workspace());
  kernels::moe_balance_forward(ctx, plan, {scores_, fraction_, start_}, {loss}, {});
  balance_loss = 0;
  for (const double value : loss.get()) balance_loss += value;
  kernels::moe_sort(ctx, permute_plan(config), {index}, {count, offset_, row_, choice_}, {});
}

void Layer::run_experts(Context& ctx, Exchange& exchange) {
  if (config.latent > 0) linear(ctx, x, latent_down, narrow_);
  const ConstTensor tokens = config.latent > 0 ? narrow_ : x;
  kernels::moe_permute_forward(ctx, permute_plan(config), {tokens, choice_}, {permuted_}, {});
  exchange.route(count, offset_);
  for (int r = 0; r < exchange.rounds(); ++r) {
    const Round round(config, exchange.offset(r));
    exchange.dispatch(r, permuted_, round.x);
    round.forward(ctx, *this);
    exchange.collect(r, round.y, expert_rows_);
  }
}

void Layer::run_latent_tail(Context& ctx) {
  if (config.latent == 0) {
    kernels::moe_combine_forward(ctx, combine_plan(config), {expert_rows_, weight, row_}, {y}, {});
    return;
  }
  kernels::moe_combine_forward(ctx, combine_plan(config), {expert_rows_, weight, row_}, {combined_},
                               {});
  kernels::rmsnorm_forward(ctx, norm_plan(config), {combined_, {}, latent_norm},
                           {{}, normed_, rstd_}, {});
  linear(ctx, normed_, latent_up, y);
}

void Layer::run_shared(Context& ctx) {
  if (config.shared_ffn == 0) return;
  linear(ctx, x, shared_gate_up, shared_pair_);
  kernels::swiglu_forward(ctx, shared_plan(config), {shared_pair_}, {shared_act_}, {});
  linear(ctx, shared_act_, shared_down, y, Accumulate::kAdd);
}

void Layer::forward(Context& ctx, Exchange& exchange) {
  route(ctx);
  run_experts(ctx, exchange);
  run_latent_tail(ctx);
  run_shared(ctx);
}

/// The gradient of x begins here: d_x is overwritten.
void Layer::shared_backward(Context& ctx) {
  d_x.fill(0);
  if (config.shared_ffn == 0) return;
  const GuardedTensor d_act = tensor({config.tokens, config.shared_ffn});
  linear_backward(ctx, dy, shared_act_, shared_down, d_act, Accumulate::kOverwrite, d_shared_down);
  kernels::swiglu_backward(ctx, shared_plan(config), {d_act, shared_pair_}, {d_shared_pair_, {}},
                           {});
  linear_backward(ctx, d_shared_pair_, x, shared_gate_up, d_x, Accumulate::kAdd, d_shared_gate_up);
}

void Layer::latent_tail_backward(Context& ctx) {
  if (config.latent == 0) return;
  linear_backward(ctx, dy, normed_, latent_up, d_normed_, Accumulate::kOverwrite, d_latent_up);
  const kernels::RmsNormPlan plan = norm_plan(config);
  const Scratch scratch(plan.workspace_bytes);
  kernels::rmsnorm_backward(ctx, plan, {d_normed_, combined_, latent_norm, rstd_, {}},
                            {d_combined_, d_latent_norm}, scratch.workspace());
}

void Layer::experts_backward(Context& ctx, Exchange& exchange) {
  const ConstTensor d_sum = config.latent > 0 ? d_combined_ : dy;
  kernels::moe_combine_backward(ctx, combine_plan(config),
                                {d_sum, expert_rows_, weight, row_, choice_}, {d_rows_, dweight_},
                                {});
  for (int r = 0; r < exchange.rounds(); ++r) {
    const Round round(config, exchange.offset(r));
    const GuardedTensor d_round = tensor({round.rows, config.width()});
    exchange.dispatch(r, permuted_, round.x);
    round.forward(ctx, *this);
    exchange.dispatch(r, d_rows_, d_round);
    kernels::moe_experts_backward(ctx, round.plan,
                                  {d_round, round.x, round.gate_up, gate_up, down, round.offset},
                                  {d_round, d_gate_up, d_down}, round.scratch.workspace());
    exchange.collect(r, d_round, d_rows_);
  }
  kernels::moe_permute_backward(ctx, permute_plan(config), {d_rows_, row_}, {d_narrow_}, {});
  if (config.latent > 0) {
    linear_backward(ctx, d_narrow_, x, latent_down, d_x, Accumulate::kAdd, d_latent_down);
  } else {
    for (std::int64_t i = 0; i < d_x.count(); ++i) d_x.set(i, d_x.get(i) + d_narrow_.get(i));
  }
}

void Layer::router_backward(Context& ctx) {
  kernels::moe_balance_backward(ctx, balance_plan(config), {scores_, fraction_, start_}, {dscores_},
                                {});
  kernels::moe_router_backward(ctx, router_plan(config), {dweight_, scores_, index, dscores_},
                               {dlogits_}, {});
  linear_backward(ctx, dlogits_, x, router, d_x, Accumulate::kAdd, d_router);
}

void Layer::backward(Context& ctx, Exchange& exchange) {
  for (GuardedTensor* d : {&d_router, &d_gate_up, &d_down, &d_shared_gate_up, &d_shared_down,
                           &d_latent_down, &d_latent_norm, &d_latent_up}) {
    d->fill(0);
  }
  shared_backward(ctx);
  latent_tail_backward(ctx);
  experts_backward(ctx, exchange);
  router_backward(ctx);
}

}  // namespace k25::moe_test
