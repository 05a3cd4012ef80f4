#include "trainer/model/kda.h"

#include <cmath>
#include <string>

namespace k25::trainer {
namespace {

using parallel::InitKind;
using parallel::ParameterSpec;

std::string prefix_of(int layer) { return "layers." + std::to_string(layer) + ".kda."; }

/// Slices that tile dimension 0 in order.
std::vector<parallel::Slice> tile(
    const std::string& prefix,
    std::initializer_list<std::pair<const char*, std::int64_t>> rows_by_name,
    const parallel::Init& init) {
  std::vector<parallel::Slice> slices;
  std::int64_t begin = 0;
  for (const auto& [name, rows] : rows_by_name) {
    slices.push_back({prefix + name, begin, begin + rows, init});
    begin += rows;
  }
  return slices;
}

ParameterSpec matrix(const std::string& name, std::int64_t rows, std::int64_t cols, int layer,
                     double std) {
  return {.name = name,
          .shape = {rows, cols},
          .layer = layer,
          .slices = {{name, 0, rows, {InitKind::kNormal, std}}}};
}

ParameterSpec in_parameter(const ModelConfig& m, int layer) {
  const KdaConfig& k = m.kda;
  const std::string prefix = prefix_of(layer);
  ParameterSpec p = matrix(prefix + "in", 0, m.hidden, layer, m.init_std);
  p.slices = tile(prefix,
                  {{"q", k.heads * k.key_dim},
                   {"k", k.heads * k.key_dim},
                   {"v", k.heads * k.value_dim},
                   {"f_a", k.gate_rank},
                   {"g_a", k.gate_rank},
                   {"b", k.heads}},
                  {InitKind::kNormal, m.init_std});
  p.shape[0] = p.slices.back().row_end;
  return p;
}

ParameterSpec conv_parameter(const ModelConfig& m, int layer) {
  const KdaConfig& k = m.kda;
  const std::string prefix = prefix_of(layer);
  const auto slices = tile(prefix,
                           {{"q_conv", k.heads * k.key_dim},
                            {"k_conv", k.heads * k.key_dim},
                            {"v_conv", k.heads * k.value_dim}},
                           {InitKind::kNormal, m.init_std});
  return {.name = prefix + "conv",
          .shape = {slices.back().row_end, kernels::kConv1dWidth},
          .layer = layer,
          .placement = parallel::Placement::kReplicated,
          .fp32 = true,
          .slices = slices};
}

/// On the keep list and without weight decay.
ParameterSpec kept(const std::string& name, const std::vector<std::int64_t>& shape, int layer,
                   InitKind init) {
  return {.name = name,
          .shape = shape,
          .layer = layer,
          .placement = parallel::Placement::kReplicated,
          .fp32 = true,
          .decay = false,
          .slices = {{name, 0, shape[0], {init, 0.0}}}};
}

// With a lower bound the decay begins at exp(0) = 1 times the projection.
InitKind a_log_init(const KdaConfig& k) {
  return k.gate == kernels::KdaGate::kSoftplus ? InitKind::kLogDecay : InitKind::kZeros;
}

kernels::KdaPlan kda_plan_for(const KdaConfig& k, const RunShape& shape) {
  return kernels::kda_plan({.batch = shape.batch,
                            .tokens = shape.tokens,
                            .heads = k.heads,
                            .value_heads = k.heads,
                            .key_dim = k.key_dim,
                            .value_dim = k.value_dim,
                            .keep = kernels::KdaKeep::kStates,
                            .dtype = shape.compute,
                            .device = shape.device});
}

kernels::Conv1dPlan conv_plan_for(const RunShape& shape, std::int64_t channels) {
  return kernels::conv1d_plan({.batch = shape.batch,
                               .tokens = shape.tokens,
                               .channels = channels,
                               .dtype = shape.compute,
                               .device = shape.device});
}

}  // namespace

Linear KdaMixer::linear(std::int64_t in, std::int64_t out) const {
  return {shape_.rows(), in, out, shape_.compute, shape_.device};
}

KdaMixer::KdaMixer(const ModelConfig& model, const RunShape& shape, int layer, Keep keep,
                   UnitBuilder& unit, UnitBuilder& replicated)
    : shape_(shape),
      keep_(keep),
      heads_(model.kda.heads),
      key_dim_(model.kda.key_dim),
      value_dim_(model.kda.value_dim),
      rank_(model.kda.gate_rank),
      channels_(heads_ * (2 * key_dim_ + value_dim_)),
      in_(linear(model.hidden, channels_ + 2 * rank_ + heads_)),
      forget_(linear(rank_, heads_ * key_dim_)),
      gate_(linear(rank_, heads_ * value_dim_)),
      out_(linear(heads_ * value_dim_, model.hidden)),
      conv_(conv_plan_for(shape, channels_)),
      l2norm_(kernels::l2norm_plan({.rows = shape.rows(),
                                    .heads = heads_,
                                    .cols = key_dim_,
                                    .dtype = shape.compute,
                                    .device = shape.device})),
      decay_(kernels::kda_gate_plan({.rows = shape.rows(),
                                     .heads = heads_,
                                     .cols = key_dim_,
                                     .gate = model.kda.gate,
                                     .lower_bound = model.kda.lower_bound,
                                     .dtype = shape.compute,
                                     .device = shape.device})),
      beta_(kernels::kda_beta_plan({.rows = shape.rows(),
                                    .heads = heads_,
                                    .range = model.kda.beta,
                                    .dtype = shape.compute,
                                    .device = shape.device})),
      kda_(kda_plan_for(model.kda, shape)),
      norm_(kernels::gated_rmsnorm_plan({.rows = shape.rows(),
                                         .heads = heads_,
                                         .cols = value_dim_,
                                         .dtype = shape.compute,
                                         .eps = model.norm_eps,
                                         .device = shape.device})) {
  const std::string prefix = prefix_of(layer);
  const double out_std = model.init_std / std::sqrt(2.0 * static_cast<double>(model.layers));
  in_index_ = unit.add(in_parameter(model, layer));
  forget_index_ = unit.add(matrix(prefix + "f_b", forget_.out, rank_, layer, model.init_std));
  gate_index_ = unit.add(matrix(prefix + "g_b", gate_.out, rank_, layer, model.init_std));
  out_index_ = unit.add(matrix(prefix + "out", model.hidden, out_.in, layer, out_std));
  conv_index_ = replicated.add(conv_parameter(model, layer));
  a_log_index_ = replicated.add(kept(prefix + "a_log", {heads_}, layer, a_log_init(model.kda)));
  dt_bias_index_ =
      replicated.add(kept(prefix + "dt_bias", {heads_, key_dim_}, layer, InitKind::kTimeStep));
  gain_index_ = replicated.add(kept(prefix + "out_norm", {value_dim_}, layer, InitKind::kOnes));
}

Bytes KdaMixer::workspace_bytes() const {
  Bytes bytes = larger(larger(in_.workspace_bytes(), out_.workspace_bytes()),
                       larger(forget_.workspace_bytes(), gate_.workspace_bytes()));
  bytes = larger(bytes, larger(conv_.workspace_bytes, l2norm_.workspace_bytes));
  bytes = larger(bytes, larger(decay_.workspace_bytes, beta_.workspace_bytes));
  return larger(bytes, larger(kda_.workspace_bytes, norm_.workspace_bytes));
}

void KdaMixer::take_saved(Arena& saved) {
  const std::int64_t n = shape_.rows();
  const DType compute = shape_.compute, statistic = statistic_dtype(compute);
  saved_in_ = saved.take(compute, {n, in_.out});
  saved_qkv_ = saved.take(compute, {n, channels_});
  saved_rstd_ = saved.take(statistic, {2, n, heads_});
  saved_f_ = saved.take(compute, {n, forget_.out});
  saved_gate_ = saved.take(compute, {n, gate_.out});
  saved_o_ = saved.take(compute, {n, out_.in});
  saved_o_rstd_ = saved.take(statistic, {n, heads_});
  saved_states_ = saved.take(DType::kUInt8, {kda_.saved_bytes.n});
  if (keep_ == Keep::kAll) saved_y_ = saved.take(compute, {n, out_.in});
}

void KdaMixer::measure_scratch(Arena& scratch) {
  ScratchScope scope(scratch);
  scratch.take(shape_.compute, {shape_.rows(), in_.out});
  scratch.take(shape_.compute, {shape_.rows(), out_.in});
  {
    ScratchScope output(scratch);
    if (keep_ != Keep::kAll) scratch.take(shape_.compute, {shape_.rows(), out_.in});
  }
  take_decay(scratch);
  take_decay(scratch);
  scratch.take(shape_.compute, {shape_.rows(), channels_});
}

KdaMixer::Heads KdaMixer::split(const Tensor& qkv_NC) const {
  const std::int64_t keys = heads_ * key_dim_;
  return {qkv_NC.slice(1, 0, keys).split_dim(1, heads_, key_dim_),
          qkv_NC.slice(1, keys, 2 * keys).split_dim(1, heads_, key_dim_),
          qkv_NC.slice(1, 2 * keys, channels_).split_dim(1, heads_, value_dim_)};
}

Tensor KdaMixer::by_sequence(const Tensor& rows) const {
  return rows.split_dim(0, shape_.batch, shape_.tokens);
}

Tensor KdaMixer::columns(const Tensor& in_NP, std::int64_t begin, std::int64_t count) const {
  return in_NP.slice(1, begin, begin + count);
}

kernels::SequenceBorders KdaMixer::borders(const BlockRun& run) const {
  return {
      .border_S1 = {}, .doc_begin_BT = run.batch.doc_begin_BT, .doc_end_BT = run.batch.doc_end_BT};
}

KdaMixer::Decay KdaMixer::take_decay(Arena& scratch) const {
  const DType statistic = statistic_dtype(shape_.compute);
  return {scratch.take(statistic, {shape_.rows(), heads_, key_dim_}),
          scratch.take(statistic, {shape_.rows(), heads_})};
}

void KdaMixer::form_decay(BlockRun& run, const ParameterViews& parameters,
                          const Decay& decay) const {
  kernels::kda_gate_forward(
      run.context, decay_,
      {saved_f_.split_dim(1, heads_, key_dim_), parameters.replicated[a_log_index_],
       parameters.replicated[dt_bias_index_]},
      {decay.g_NHK}, run.workspace);
  kernels::kda_beta_forward(run.context, beta_, {beta_raw(saved_in_)}, {decay.beta_NH},
                            run.workspace);
}

void KdaMixer::form_output(BlockRun& run, const ParameterViews& parameters,
                           const Tensor& y_NHV) const {
  kernels::gated_rmsnorm_forward(
      run.context, norm_,
      {saved_o_.split_dim(1, heads_, value_dim_), saved_gate_.split_dim(1, heads_, value_dim_),
       parameters.replicated[gain_index_]},
      {y_NHV, saved_o_rstd_}, run.workspace);
}

void KdaMixer::forward(BlockRun& run, const ParameterViews& parameters, const ConstTensor& x_ND,
                       const Tensor& out_ND) {
  in_.forward(run, x_ND, parameters.unit[in_index_], saved_in_);
  kernels::conv1d_forward(run.context, conv_,
                          {.x_BTD = by_sequence(columns(saved_in_, 0, channels_)),
                           .weight_DW = parameters.replicated[conv_index_],
                           .borders = borders(run),
                           .initial_state_S3D = {}},
                          {.y_BTD = by_sequence(saved_qkv_), .final_state_S3D = {}}, run.workspace);
  const Heads heads = split(saved_qkv_);
  kernels::l2norm_forward(run.context, l2norm_, {heads.q_NHK},
                          {heads.q_NHK, saved_rstd_.select(0, 0)}, run.workspace);
  kernels::l2norm_forward(run.context, l2norm_, {heads.k_NHK},
                          {heads.k_NHK, saved_rstd_.select(0, 1)}, run.workspace);
  forget_.forward(run, forget_low(saved_in_), parameters.unit[forget_index_], saved_f_);
  gate_.forward(run, output_low(saved_in_), parameters.unit[gate_index_], saved_gate_);

  ScratchScope scope(run.scratch);
  const Decay decay = take_decay(run.scratch);
  form_decay(run, parameters, decay);
  kernels::kda_forward(run.context, kda_,
                       {.q_BTHK = by_sequence(heads.q_NHK),
                        .k_BTHK = by_sequence(heads.k_NHK),
                        .v_BTMV = by_sequence(heads.v_NHV),
                        .g_BTMK = by_sequence(decay.g_NHK),
                        .beta_BTM = by_sequence(decay.beta_NH),
                        .borders = borders(run),
                        .initial_state_SMKV = {},
                        .checkpoint_offset_SN = {}},
                       {.out_BTMV = by_sequence(saved_o_.split_dim(1, heads_, value_dim_)),
                        .final_state_SMKV = {},
                        .checkpoint_SNMKV = {},
                        .saved = saved_states_},
                       run.workspace);
  const Tensor y =
      keep_ == Keep::kAll ? saved_y_ : run.scratch.take(shape_.compute, {shape_.rows(), out_.in});
  form_output(run, parameters, y.split_dim(1, heads_, value_dim_));
  out_.forward(run, y, parameters.unit[out_index_], out_ND);
}

void KdaMixer::backward(BlockRun& run, const ParameterViews& parameters,
                        const ParameterViews& gradients, const ConstTensor& x_ND,
                        const ConstTensor& d_out_ND, const Tensor& d_x_ND) {
  ScratchScope scope(run.scratch);
  const Tensor d_in = run.scratch.take(shape_.compute, {shape_.rows(), in_.out});
  const Tensor d_o = run.scratch.take(shape_.compute, {shape_.rows(), out_.in});
  backward_output(run, parameters, gradients, d_out_ND, d_o, d_in);
  backward_heads(run, parameters, gradients, d_o, d_in);
  in_.backward_weight(run, d_in, x_ND, gradients.unit[in_index_]);
  in_.backward_input(run, d_in, parameters.unit[in_index_], d_x_ND);
}

// Through Wo, norm and output gate. The gradient of the gate takes its place.
void KdaMixer::backward_output(BlockRun& run, const ParameterViews& parameters,
                               const ParameterViews& gradients, const ConstTensor& d_out_ND,
                               const Tensor& d_o, const Tensor& d_in) const {
  {
    ScratchScope scope(run.scratch);
    Tensor y = saved_y_;
    if (keep_ != Keep::kAll) {
      y = run.scratch.take(shape_.compute, {shape_.rows(), out_.in});
      form_output(run, parameters, y.split_dim(1, heads_, value_dim_));
    }
    out_.backward_weight(run, d_out_ND, y, gradients.unit[out_index_]);
  }
  out_.backward_input(run, d_out_ND, parameters.unit[out_index_], d_o);
  const Tensor d_heads = d_o.split_dim(1, heads_, value_dim_);
  const Tensor gate = saved_gate_.split_dim(1, heads_, value_dim_);
  kernels::gated_rmsnorm_backward(run.context, norm_,
                                  {d_heads, saved_o_.split_dim(1, heads_, value_dim_), gate,
                                   parameters.replicated[gain_index_], saved_o_rstd_},
                                  {d_heads, gate, gradients.replicated[gain_index_]},
                                  run.workspace);
  gate_.backward_weight(run, saved_gate_, output_low(saved_in_), gradients.unit[gate_index_]);
  gate_.backward_input(run, saved_gate_, parameters.unit[gate_index_], output_low(d_in));
}

// Through the recurrence, its decay and the convolution. The gradient of f takes its place.
void KdaMixer::backward_heads(BlockRun& run, const ParameterViews& parameters,
                              const ParameterViews& gradients, const Tensor& d_o,
                              const Tensor& d_in) const {
  const Decay decay = take_decay(run.scratch), d_decay = take_decay(run.scratch);
  const Tensor d_qkv = run.scratch.take(shape_.compute, {shape_.rows(), channels_});
  const Heads heads = split(saved_qkv_), d_heads = split(d_qkv);
  form_decay(run, parameters, decay);
  kernels::kda_backward(run.context, kda_,
                        {.q_BTHK = by_sequence(heads.q_NHK),
                         .k_BTHK = by_sequence(heads.k_NHK),
                         .v_BTMV = by_sequence(heads.v_NHV),
                         .g_BTMK = by_sequence(decay.g_NHK),
                         .beta_BTM = by_sequence(decay.beta_NH),
                         .borders = borders(run),
                         .initial_state_SMKV = {},
                         .saved = saved_states_,
                         .dout_BTMV = by_sequence(d_o.split_dim(1, heads_, value_dim_)),
                         .dfinal_state_SMKV = {}},
                        {.dq_BTHK = by_sequence(d_heads.q_NHK),
                         .dk_BTHK = by_sequence(d_heads.k_NHK),
                         .dv_BTMV = by_sequence(d_heads.v_NHV),
                         .dg_BTMK = by_sequence(d_decay.g_NHK),
                         .dbeta_BTM = by_sequence(d_decay.beta_NH),
                         .dinitial_state_SMKV = {}},
                        run.workspace);
  kernels::l2norm_backward(run.context, l2norm_,
                           {d_heads.q_NHK, heads.q_NHK, saved_rstd_.select(0, 0)}, {d_heads.q_NHK},
                           run.workspace);
  kernels::l2norm_backward(run.context, l2norm_,
                           {d_heads.k_NHK, heads.k_NHK, saved_rstd_.select(0, 1)}, {d_heads.k_NHK},
                           run.workspace);
  kernels::conv1d_backward(run.context, conv_,
                           {.dy_BTD = by_sequence(d_qkv),
                            .x_BTD = by_sequence(columns(saved_in_, 0, channels_)),
                            .weight_DW = parameters.replicated[conv_index_],
                            .borders = borders(run),
                            .initial_state_S3D = {},
                            .dfinal_state_S3D = {}},
                           {.dx_BTD = by_sequence(columns(d_in, 0, channels_)),
                            .dweight_DW = gradients.replicated[conv_index_],
                            .dinitial_state_S3D = {}},
                           run.workspace);
  kernels::kda_beta_backward(run.context, beta_, {d_decay.beta_NH, beta_raw(saved_in_)},
                             {beta_raw(d_in)}, run.workspace);
  const Tensor f = saved_f_.split_dim(1, heads_, key_dim_);
  kernels::kda_gate_backward(
      run.context, decay_,
      {d_decay.g_NHK, f, parameters.replicated[a_log_index_],
       parameters.replicated[dt_bias_index_]},
      {f, gradients.replicated[a_log_index_], gradients.replicated[dt_bias_index_]}, run.workspace);
  forget_.backward_weight(run, saved_f_, forget_low(saved_in_), gradients.unit[forget_index_]);
  forget_.backward_input(run, saved_f_, parameters.unit[forget_index_], forget_low(d_in));
}

}  // namespace k25::trainer
