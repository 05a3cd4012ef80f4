#include "trainer/model/gqa.h"

#include <cmath>

namespace k25::trainer {
namespace {

parallel::ParameterSpec qkv_parameter(const ModelConfig& m, int layer) {
  const std::string prefix = "layers." + std::to_string(layer) + ".attention.";
  const std::int64_t q = m.heads * m.head_dim, kv = m.kv_heads * m.head_dim;
  const parallel::Init init{parallel::InitKind::kNormal, m.init_std};
  return {.name = prefix + "qkv",
          .shape = {q + 2 * kv, m.hidden},
          .layer = layer,
          .slices = {{prefix + "q", 0, q, init},
                     {prefix + "k", q, q + kv, init},
                     {prefix + "v", q + kv, q + 2 * kv, init}},
          .gradient_start = parallel::GradientStart::kWritten};
}

parallel::ParameterSpec out_parameter(const ModelConfig& m, int layer) {
  const std::string name = "layers." + std::to_string(layer) + ".attention.out";
  const double std = m.init_std / std::sqrt(2.0 * static_cast<double>(m.layers));
  return {.name = name,
          .shape = {m.hidden, m.heads * m.head_dim},
          .layer = layer,
          .slices = {{name, 0, m.hidden, {parallel::InitKind::kNormal, std}}},
          .gradient_start = parallel::GradientStart::kWritten};
}

kernels::AttentionPlan attention_plan_for(const ModelConfig& model, const RunShape& shape,
                                          kernels::AttentionImplementation implementation) {
  return kernels::attention_plan({.batch = shape.batch,
                                  .tokens = shape.tokens,
                                  .heads = model.heads,
                                  .kv_heads = model.kv_heads,
                                  .head_dim = model.head_dim,
                                  .dtype = shape.compute,
                                  .device = shape.device,
                                  .implementation = implementation});
}

}  // namespace

kernels::RopeDesc GqaMixer::rope_desc(const ModelConfig& model, const RunShape& shape) {
  return {.rows = shape.rows(),
          .heads = model.heads + model.kv_heads,
          .head_dim = model.head_dim,
          .max_position = shape.tokens,
          .theta = model.rope_theta,
          .dtype = shape.compute,
          .device = shape.device};
}

GqaMixer::GqaMixer(const ModelConfig& model, const RunShape& shape, int layer,
                   const ConstTensor& rope_table, UnitBuilder& unit)
    : shape_(shape),
      heads_(model.heads),
      kv_heads_(model.kv_heads),
      head_dim_(model.head_dim),
      qkv_{shape.rows(), model.hidden, (model.heads + 2 * model.kv_heads) * model.head_dim,
           shape.compute, shape.device},
      out_{shape.rows(), model.heads * model.head_dim, model.hidden, shape.compute, shape.device},
      rope_(kernels::rope_plan(rope_desc(model, shape))),
      attention_(attention_plan_for(model, shape, kernels::AttentionImplementation::kAutomatic)),
      own_attention_(attention_plan_for(model, shape, kernels::AttentionImplementation::kOwn)),
      rope_table_(rope_table),
      qkv_index_(unit.add(qkv_parameter(model, layer))),
      out_index_(unit.add(out_parameter(model, layer))) {}

Bytes GqaMixer::workspace_bytes() const {
  Bytes bytes = larger(qkv_.workspace_bytes(), out_.workspace_bytes());
  bytes = larger(bytes, rope_.workspace_bytes);
  return larger(bytes, larger(attention_.workspace_bytes, own_attention_.workspace_bytes));
}

void GqaMixer::take_saved(Arena& saved) {
  const DType statistic = shape_.compute == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  saved_qkv_ = saved.take(shape_.compute, {shape_.rows(), qkv_.out});
  saved_attention_ = saved.take(shape_.compute, {shape_.rows(), out_.in});
  saved_lse_ = saved.take(statistic, {shape_.batch, heads_, shape_.tokens});
}

void GqaMixer::measure_scratch(Arena& scratch) {
  ScratchScope scope(scratch);
  scratch.take(shape_.compute, {shape_.rows(), out_.in});
  scratch.take(shape_.compute, {shape_.rows(), qkv_.out});
}

GqaMixer::Heads GqaMixer::split(const Tensor& qkv) const {
  const std::int64_t q = heads_ * head_dim_, kv = kv_heads_ * head_dim_;
  return {qkv.slice(1, 0, q).split_dim(1, heads_, head_dim_),
          qkv.slice(1, q, q + kv).split_dim(1, kv_heads_, head_dim_),
          qkv.slice(1, q + kv, q + 2 * kv).split_dim(1, kv_heads_, head_dim_)};
}

Tensor GqaMixer::by_sequence(const Tensor& rows_NHE) const {
  return rows_NHE.split_dim(0, shape_.batch, shape_.tokens);
}

const kernels::AttentionPlan& GqaMixer::attention_plan(const BlockRun& run) const {
  return run.batch.attention == kernels::AttentionImplementation::kOwn ? own_attention_
                                                                       : attention_;
}

void GqaMixer::rotate(BlockRun& run, const Tensor& qkv, Turn turn) const {
  const std::int64_t heads = heads_ + kv_heads_;
  const Tensor q_and_k = qkv.slice(1, 0, heads * head_dim_).split_dim(1, heads, head_dim_);
  const auto apply = turn == Turn::kBackward ? kernels::rope_backward : kernels::rope_forward;
  apply(run.context, rope_, {q_and_k, run.batch.position_N, rope_table_}, {q_and_k}, run.workspace);
}

void GqaMixer::forward(BlockRun& run, const ParameterViews& parameters, const ConstTensor& x_ND,
                       const Tensor& out_ND) {
  qkv_.forward(run, x_ND, parameters.unit[qkv_index_], saved_qkv_);
  const Heads heads = split(saved_qkv_);
  rotate(run, saved_qkv_, Turn::kForward);
  const Tensor attention = saved_attention_.split_dim(1, heads_, head_dim_);
  kernels::attention_forward(
      run.context, attention_plan(run),
      {by_sequence(heads.q_NHE), by_sequence(heads.k_NKE), by_sequence(heads.v_NKE),
       run.batch.doc_begin_BT, run.batch.doc_end_BT},
      {by_sequence(attention), saved_lse_}, run.workspace);
  out_.forward(run, saved_attention_, parameters.unit[out_index_], out_ND);
}

void GqaMixer::backward(BlockRun& run, const ParameterViews& parameters,
                        const ParameterViews& gradients, const ConstTensor& x_ND,
                        const ConstTensor& d_out_ND, const Tensor& d_x_ND) {
  ScratchScope scope(run.scratch);
  const Tensor d_attention = run.scratch.take(shape_.compute, {shape_.rows(), out_.in});
  const Tensor d_qkv = run.scratch.take(shape_.compute, {shape_.rows(), qkv_.out});

  out_.backward_weight(run, d_out_ND, saved_attention_, gradients.unit[out_index_],
                       gradients.first_use);
  out_.backward_input(run, d_out_ND, parameters.unit[out_index_], d_attention);

  const Heads heads = split(saved_qkv_);
  const Heads d_heads = split(d_qkv);
  kernels::attention_backward(
      run.context, attention_plan(run),
      {by_sequence(heads.q_NHE), by_sequence(heads.k_NKE), by_sequence(heads.v_NKE),
       run.batch.doc_begin_BT, run.batch.doc_end_BT,
       by_sequence(saved_attention_.split_dim(1, heads_, head_dim_)), saved_lse_,
       by_sequence(d_attention.split_dim(1, heads_, head_dim_))},
      {by_sequence(d_heads.q_NHE), by_sequence(d_heads.k_NKE), by_sequence(d_heads.v_NKE)},
      run.workspace);
  rotate(run, d_qkv, Turn::kBackward);

  qkv_.backward_weight(run, d_qkv, x_ND, gradients.unit[qkv_index_], gradients.first_use);
  qkv_.backward_input(run, d_qkv, parameters.unit[qkv_index_], d_x_ND);
}

}  // namespace k25::trainer
