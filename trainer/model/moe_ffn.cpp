#include "trainer/model/moe_ffn.h"

#include <cmath>
#include <string>

#include "kernels/convert/convert.h"
#include "kernels/gemm/gemm.h"
#include "trainer/model/swiglu_ffn.h"

namespace k25::trainer {
namespace {

using parallel::InitKind;
using parallel::ParameterSpec;

std::string prefix_of(int layer) { return "layers." + std::to_string(layer) + ".moe."; }

double out_std(const ModelConfig& m) {
  return m.init_std / std::sqrt(2.0 * static_cast<double>(m.layers));
}

ParameterSpec matrix(const std::string& name, std::int64_t rows, std::int64_t cols, int layer,
                     double std) {
  return {.name = name,
          .shape = {rows, cols},
          .layer = layer,
          .slices = {{name, 0, rows, {InitKind::kNormal, std}}}};
}

ParameterSpec vector(const std::string& name, std::int64_t size, int layer, InitKind init) {
  return {.name = name,
          .shape = {size},
          .layer = layer,
          .placement = parallel::Placement::kReplicated,
          .fp32 = true,
          .decay = false,
          .slices = {{name, 0, size, {init, 0.0}}}};
}

std::string expert_name(int layer, std::int64_t expert, const char* part) {
  return prefix_of(layer) + "experts." + std::to_string(expert) + "." + part;
}

// [E 2F, W]: gate and up of one expert after those of the one before.
ParameterSpec gate_up_parameter(const ModelConfig& m, int layer, std::int64_t width) {
  const std::int64_t f = m.moe.ffn;
  ParameterSpec p =
      matrix(prefix_of(layer) + "experts.gate_up", m.moe.experts * 2 * f, width, layer, m.init_std);
  p.slices.clear();
  for (std::int64_t e = 0; e < m.moe.experts; ++e) {
    const parallel::Init init{InitKind::kNormal, m.init_std};
    p.slices.push_back({expert_name(layer, e, "gate"), 2 * e * f, (2 * e + 1) * f, init});
    p.slices.push_back({expert_name(layer, e, "up"), (2 * e + 1) * f, (2 * e + 2) * f, init});
  }
  return p;
}

// [E W, F].
ParameterSpec down_parameter(const ModelConfig& m, int layer, std::int64_t width) {
  ParameterSpec p = matrix(prefix_of(layer) + "experts.down", m.moe.experts * width, m.moe.ffn,
                           layer, out_std(m));
  p.slices.clear();
  for (std::int64_t e = 0; e < m.moe.experts; ++e) {
    p.slices.push_back({expert_name(layer, e, "down"),
                        e * width,
                        (e + 1) * width,
                        {InitKind::kNormal, out_std(m)}});
  }
  return p;
}

kernels::GemmDesc logits_desc(const Linear& router) {
  return {.m = router.rows,
          .n = router.out,
          .k = router.in,
          .transpose_b = kernels::Transpose::kYes,
          .dtype_ab = router.compute,
          .dtype_d = statistic_dtype(router.compute),
          .device = router.device};
}

kernels::MoeRouterPlan router_plan_for(const MoeConfig& moe, const RunShape& shape) {
  return kernels::moe_router_plan({.tokens = shape.rows(),
                                   .experts = moe.experts,
                                   .top_k = moe.per_token,
                                   .groups = moe.groups,
                                   .top_groups = moe.top_groups,
                                   .normalize = moe.renormalize,
                                   .scale = moe.scaling_factor,
                                   .dtype = statistic_dtype(shape.compute),
                                   .device = shape.device});
}

kernels::MoeBalancePlan balance_plan_for(const MoeConfig& moe, const RunShape& shape) {
  return kernels::moe_balance_plan({.tokens = shape.rows(),
                                    .experts = moe.experts,
                                    .top_k = moe.per_token,
                                    .sequences = shape.batch,
                                    .coefficient = moe.balance,
                                    .dtype = statistic_dtype(shape.compute),
                                    .device = shape.device});
}

kernels::MoeExpertsPlan experts_plan_for(const MoeConfig& moe, const RunShape& shape,
                                         std::int64_t width) {
  return kernels::moe_experts_plan({.experts = moe.experts,
                                    .max_rows = shape.rows() * moe.per_token,
                                    .hidden = width,
                                    .ffn = moe.ffn,
                                    .dtype = shape.compute,
                                    .device = shape.device});
}

std::int64_t width_of(const ModelConfig& m) { return m.moe.latent > 0 ? m.moe.latent : m.hidden; }

}  // namespace

MoeFeedForward::MoeFeedForward(const ModelConfig& model, const RunShape& shape, int layer,
                               Keep keep, UnitBuilder& unit, UnitBuilder& replicated)
    : shape_(shape),
      layer_(layer),
      latent_(model.moe.latent > 0),
      hidden_(model.hidden),
      width_(width_of(model)),
      ffn_(model.moe.ffn),
      experts_(model.moe.experts),
      per_token_(model.moe.per_token),
      router_{shape.rows(), hidden_, experts_, shape.compute, shape.device},
      latent_down_{shape.rows(), hidden_, width_, shape.compute, shape.device},
      latent_up_{shape.rows(), width_, hidden_, shape.compute, shape.device},
      choose_(router_plan_for(model.moe, shape)),
      balance_(balance_plan_for(model.moe, shape)),
      permute_(kernels::moe_permute_plan({.tokens = shape.rows(),
                                          .experts = experts_,
                                          .top_k = per_token_,
                                          .hidden = width_,
                                          .dtype = shape.compute,
                                          .device = shape.device})),
      compute_(experts_plan_for(model.moe, shape, width_)),
      combine_(kernels::moe_combine_plan({.tokens = shape.rows(),
                                          .top_k = per_token_,
                                          .hidden = width_,
                                          .dtype = shape.compute,
                                          .device = shape.device})),
      norm_(kernels::rmsnorm_plan({.rows = shape.rows(),
                                   .cols = width_,
                                   .dtype = shape.compute,
                                   .eps = model.norm_eps,
                                   .device = shape.device})),
      residual_(kernels::residual_plan(
          {.count = shape.rows() * hidden_, .dtype = shape.compute, .device = shape.device})) {
  const std::string prefix = prefix_of(layer);
  router_index_ = unit.add(matrix(prefix + "router", experts_, hidden_, layer, model.init_std));
  gate_up_index_ = unit.add(gate_up_parameter(model, layer, width_));
  down_index_ = unit.add(down_parameter(model, layer, width_));
  ParameterSpec bias = vector(prefix + "bias", experts_, layer, InitKind::kZeros);
  bias.frozen = true;  // it moves by load
  bias_index_ = replicated.add(bias);
  if (latent()) {
    latent_down_index_ =
        unit.add(matrix(prefix + "latent_down", width_, hidden_, layer, model.init_std));
    latent_up_index_ =
        unit.add(matrix(prefix + "latent_up", hidden_, width_, layer, out_std(model)));
    latent_gain_index_ =
        replicated.add(vector(prefix + "latent_norm", width_, layer, InitKind::kOnes));
  }
  if (model.moe.shared_experts > 0) {
    shared_ = std::make_unique<SwigluFeedForward>(
        model, shape, layer, SwigluFeedForward::Part{"moe.shared", model.moe.shared_experts * ffn_},
        keep, unit);
  }
}

Bytes MoeFeedForward::workspace_bytes() const {
  Bytes bytes =
      larger(router_.workspace_bytes(), kernels::gemm_plan(logits_desc(router_)).workspace_bytes);
  bytes = larger(bytes, larger(choose_.workspace_bytes, permute_.workspace_bytes));
  bytes = larger(bytes, larger(compute_.workspace_bytes, combine_.workspace_bytes));
  bytes = larger(bytes, larger(balance_.workspace_bytes, residual_.workspace_bytes));
  if (latent()) {
    bytes = larger(bytes, norm_.workspace_bytes);
    bytes = larger(bytes, larger(latent_down_.workspace_bytes(), latent_up_.workspace_bytes()));
  }
  return shared_ ? larger(bytes, shared_->workspace_bytes()) : bytes;
}

Tensor MoeFeedForward::take_rows(Arena& arena, std::int64_t width) const {
  return arena.take(shape_.compute, {shape_.rows(), width});
}

void MoeFeedForward::take_saved(Arena& saved) {
  const std::int64_t n = shape_.rows(), r = permute_.rows;
  const DType statistic = statistic_dtype(shape_.compute);
  routing_ = {.scores_NE = saved.take(statistic, {n, experts_}),
              .weight_NK = saved.take(statistic, {n, per_token_}),
              .index_NK = saved.take(DType::kInt32, {n, per_token_}),
              .count_E = saved.take(DType::kInt64, {experts_}),
              .offset_B = saved.take(DType::kInt64, {experts_ + 1}),
              .row_NK = saved.take(DType::kInt32, {n, per_token_}),
              .choice_R = saved.take(DType::kInt32, {r})};
  saved_gate_up_ = saved.take(shape_.compute, {r, 2 * ffn_});
  saved_y_ = saved.take(shape_.compute, {r, width_});
  if (latent()) {
    saved_z_ = take_rows(saved, width_);
    saved_c_ = take_rows(saved, width_);
    saved_c_rstd_ = saved.take(statistic, {n});
    saved_normed_ = take_rows(saved, width_);
  }
  if (shared_) shared_->take_saved(saved);
}

void MoeFeedForward::measure_scratch(Arena& scratch) {
  ScratchScope scope(scratch);
  const std::int64_t n = shape_.rows();
  const DType statistic = statistic_dtype(shape_.compute);
  if (shared_) {
    ScratchScope shared(scratch);
    take_rows(scratch, hidden_);  // forward's sum
    shared_->measure_scratch(scratch);
  }
  scratch.take(statistic, {n, per_token_});
  if (shared_) take_rows(scratch, hidden_);
  {
    ScratchScope experts(scratch);
    if (latent()) {
      take_rows(scratch, width_);
      take_rows(scratch, width_);
    }
    scratch.take(shape_.compute, {permute_.rows, width_});
  }
  take_rows(scratch, hidden_);
  scratch.take(statistic, {n, experts_});
  if (balanced()) {
    scratch.take(statistic, {shape_.batch, experts_});
    scratch.take(DType::kInt64, {shape_.batch + 1});
  }
  if (shape_.compute != statistic) take_rows(scratch, experts_);
}

// [E rows, cols] -> [E, rows, cols]
Tensor MoeFeedForward::by_expert(const Tensor& stacked) const {
  if (!stacked) return {};
  return stacked.split_dim(0, experts_, stacked.dim(0) / experts_);
}

void MoeFeedForward::route(BlockRun& run, const ParameterViews& parameters,
                           const ConstTensor& x_ND) const {
  const Routing& r = routing_;
  kernels::gemm_forward(run.context, kernels::gemm_plan(logits_desc(router_)),
                        {x_ND, parameters.unit[router_index_]}, {r.scores_NE}, run.workspace);
  kernels::moe_router_forward(run.context, choose_,
                              {r.scores_NE, parameters.replicated[bias_index_]},
                              {r.scores_NE, r.weight_NK, r.index_NK}, run.workspace);
  kernels::moe_sort(run.context, permute_, {r.index_NK},
                    {r.count_E, r.offset_B, r.row_NK, r.choice_R}, run.workspace);
}

void MoeFeedForward::add(BlockRun& run, const ConstTensor& term_ND, const Tensor& sum_ND) const {
  kernels::residual_forward(run.context, residual_, {sum_ND, term_ND}, {sum_ND}, run.workspace);
}

void MoeFeedForward::forward(BlockRun& run, const ParameterViews& parameters,
                             const ConstTensor& x_ND, const Tensor& out_ND) {
  route(run, parameters, x_ND);
  ConstTensor z = x_ND;
  if (latent()) {
    latent_down_.forward(run, x_ND, parameters.unit[latent_down_index_], saved_z_);
    z = saved_z_;
  }
  kernels::moe_permute_forward(run.context, permute_, {z, routing_.choice_R}, {saved_y_},
                               run.workspace);
  kernels::moe_experts_forward(run.context, compute_,
                               {saved_y_, by_expert(parameters.unit[gate_up_index_]),
                                by_expert(parameters.unit[down_index_]), routing_.offset_B},
                               {saved_gate_up_, saved_y_}, run.workspace);
  const Tensor c = latent() ? saved_c_ : out_ND;
  kernels::moe_combine_forward(run.context, combine_,
                               {saved_y_, routing_.weight_NK, routing_.row_NK}, {c}, run.workspace);
  if (latent()) {
    kernels::rmsnorm_forward(
        run.context, norm_,
        {.x_ND = c, .residual_ND = {}, .gain_D = parameters.replicated[latent_gain_index_]},
        {.sum_ND = {}, .y_ND = saved_normed_, .rstd_N = saved_c_rstd_}, run.workspace);
    latent_up_.forward(run, saved_normed_, parameters.unit[latent_up_index_], out_ND);
  }
  if (!shared_) return;
  ScratchScope scope(run.scratch);
  const Tensor term = take_rows(run.scratch, hidden_);
  shared_->forward(run, parameters, x_ND, term);
  add(run, term, out_ND);
}

void MoeFeedForward::count_load(const BlockRun& run) const {
  if (!run.expert_load_LE) return;
  const Tensor load = run.expert_load_LE.select(0, layer_);
  for (std::int64_t e = 0; e < experts_; ++e) {
    load.data<std::int64_t>()[e] += routing_.count_E.data<std::int64_t>()[e];
  }
}

void MoeFeedForward::backward(BlockRun& run, const ParameterViews& parameters,
                              const ParameterViews& gradients, const ConstTensor& x_ND,
                              const ConstTensor& d_out_ND, const Tensor& d_x_ND) {
  count_load(run);
  if (shared_) shared_->backward(run, parameters, gradients, x_ND, d_out_ND, d_x_ND);
  ScratchScope scope(run.scratch);
  const Tensor d_weight =
      run.scratch.take(statistic_dtype(shape_.compute), {shape_.rows(), per_token_});
  // With shared experts d_x holds a gradient already, to which the routed ones' is added.
  const Tensor routed = shared_ ? take_rows(run.scratch, hidden_) : d_x_ND;
  {
    ScratchScope experts(run.scratch);
    if (latent()) {
      const Tensor d_c = take_rows(run.scratch, width_), d_z = take_rows(run.scratch, width_);
      backward_latent_up(run, parameters, gradients, d_out_ND, d_c);
      backward_experts(run, parameters, gradients, saved_z_, d_c, d_weight, d_z);
      latent_down_.backward_weight(run, d_z, x_ND, gradients.unit[latent_down_index_]);
      latent_down_.backward_input(run, d_z, parameters.unit[latent_down_index_], routed);
    } else {
      backward_experts(run, parameters, gradients, x_ND, d_out_ND, d_weight, routed);
    }
  }
  if (shared_) add(run, routed, d_x_ND);
  const Tensor of_router = take_rows(run.scratch, hidden_);
  backward_router(run, parameters, gradients, x_ND, d_weight, of_router);
  add(run, of_router, d_x_ND);
}

void MoeFeedForward::backward_latent_up(BlockRun& run, const ParameterViews& parameters,
                                        const ParameterViews& gradients,
                                        const ConstTensor& d_out_ND, const Tensor& d_c_NW) const {
  latent_up_.backward_weight(run, d_out_ND, saved_normed_, gradients.unit[latent_up_index_]);
  // NOTE: saved_normed_ is not needed after this; the gradient takes its place.
  latent_up_.backward_input(run, d_out_ND, parameters.unit[latent_up_index_], saved_normed_);
  kernels::rmsnorm_backward(run.context, norm_,
                            {.dy_ND = saved_normed_,
                             .sum_ND = saved_c_,
                             .gain_D = parameters.replicated[latent_gain_index_],
                             .rstd_N = saved_c_rstd_,
                             .d_sum_ND = {}},
                            {.dx_ND = d_c_NW, .dgain_D = gradients.replicated[latent_gain_index_]},
                            run.workspace);
}

void MoeFeedForward::backward_experts(BlockRun& run, const ParameterViews& parameters,
                                      const ParameterViews& gradients, const ConstTensor& z_NW,
                                      const ConstTensor& d_c_NW, const Tensor& d_weight_NK,
                                      const Tensor& d_z_NW) const {
  const Routing& r = routing_;
  const Tensor rows = run.scratch.take(shape_.compute, {permute_.rows, width_});
  kernels::moe_permute_forward(run.context, permute_, {z_NW, r.choice_R}, {rows}, run.workspace);
  // The gradients of y, then of the rows, take the place of y.
  kernels::moe_combine_backward(run.context, combine_,
                                {d_c_NW, saved_y_, r.weight_NK, r.row_NK, r.choice_R},
                                {saved_y_, d_weight_NK}, run.workspace);
  kernels::moe_experts_backward(
      run.context, compute_,
      {saved_y_, rows, saved_gate_up_, by_expert(parameters.unit[gate_up_index_]),
       by_expert(parameters.unit[down_index_]), r.offset_B},
      {saved_y_, by_expert(gradients.unit[gate_up_index_]), by_expert(gradients.unit[down_index_])},
      run.workspace);
  kernels::moe_permute_backward(run.context, permute_, {saved_y_, r.row_NK}, {d_z_NW},
                                run.workspace);
}

void MoeFeedForward::balance_gradient(BlockRun& run, const Tensor& d_scores_NE) const {
  const Tensor fraction =
      run.scratch.take(statistic_dtype(shape_.compute), {shape_.batch, experts_});
  const Tensor start = run.scratch.take(DType::kInt64, {shape_.batch + 1});
  for (std::int64_t b = 0; b <= shape_.batch; ++b) {
    start.data<std::int64_t>()[b] = b * shape_.tokens;
  }
  kernels::moe_fractions(run.context, balance_, {routing_.index_NK, start}, {fraction},
                         run.workspace);
  kernels::moe_balance_backward(run.context, balance_, {routing_.scores_NE, fraction, start},
                                {d_scores_NE}, run.workspace);
}

void MoeFeedForward::backward_router(BlockRun& run, const ParameterViews& parameters,
                                     const ParameterViews& gradients, const ConstTensor& x_ND,
                                     const Tensor& d_weight_NK, const Tensor& d_x_ND) const {
  const DType statistic = statistic_dtype(shape_.compute);
  Tensor d_logits = run.scratch.take(statistic, {shape_.rows(), experts_});
  if (balanced()) balance_gradient(run, d_logits);
  kernels::moe_router_backward(run.context, choose_,
                               {.dweight_NK = d_weight_NK,
                                .scores_NE = routing_.scores_NE,
                                .index_NK = routing_.index_NK,
                                .dscores_NE = balanced() ? d_logits : Tensor{}},
                               {d_logits}, run.workspace);
  if (shape_.compute != statistic) {
    const Tensor rounded = take_rows(run.scratch, experts_);
    kernels::convert(run.context, d_logits, rounded);
    d_logits = rounded;
  }
  router_.backward_weight(run, d_logits, x_ND, gradients.unit[router_index_]);
  router_.backward_input(run, d_logits, parameters.unit[router_index_], d_x_ND);
}

}  // namespace k25::trainer
