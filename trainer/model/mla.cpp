#include "trainer/model/mla.h"

#include <cmath>
#include <string>

namespace k25::trainer {
namespace {

using parallel::Init;
using parallel::InitKind;
using parallel::ParameterSpec;

std::string prefix_of(int layer) { return "layers." + std::to_string(layer) + ".mla."; }

/// Used once in each direction, so that its product may write the gradient.
ParameterSpec matrix(const std::string& name, std::int64_t rows, std::int64_t cols, int layer,
                     double std) {
  return {.name = name,
          .shape = {rows, cols},
          .layer = layer,
          .slices = {{name, 0, rows, {InitKind::kNormal, std}}},
          .gradient_start = parallel::GradientStart::kWritten};
}

ParameterSpec gain(const std::string& name, std::int64_t width, int layer) {
  return {.name = name,
          .shape = {width},
          .layer = layer,
          .placement = parallel::Placement::kReplicated,
          .fp32 = true,
          .decay = false,
          .slices = {{name, 0, width, {InitKind::kOnes, 0.0}}}};
}

kernels::AttentionPlan attention_plan_for(const ModelConfig& m, const RunShape& shape) {
  return kernels::attention_plan({.batch = shape.batch,
                                  .tokens = shape.tokens,
                                  .heads = m.heads,
                                  .kv_heads = m.heads,
                                  .head_dim = m.mla.nope_dim + m.mla.rope_dim,
                                  .value_dim = m.mla.value_dim,
                                  .dtype = shape.compute,
                                  .device = shape.device});
}

}  // namespace

kernels::RopeDesc MlaMixer::rope_desc(const ModelConfig& model, const RunShape& shape,
                                      std::int64_t heads) {
  return {.rows = shape.rows(),
          .heads = heads,
          .head_dim = model.mla.rope_dim,
          .max_position = shape.tokens,
          .theta = model.rope_theta,
          .dtype = shape.compute,
          .device = shape.device};
}

Linear MlaMixer::linear(std::int64_t in, std::int64_t out) const {
  return {shape_.rows(), in, out, shape_.compute, shape_.device};
}

MlaMixer::Latent MlaMixer::latent(std::int64_t begin, std::int64_t rank, std::int64_t out,
                                  double eps) const {
  return {.begin = begin,
          .up = linear(rank, out),
          .norm = kernels::rmsnorm_plan({.rows = shape_.rows(),
                                         .cols = rank,
                                         .dtype = shape_.compute,
                                         .eps = eps,
                                         .device = shape_.device}),
          .rstd = {}};
}

MlaMixer::MlaMixer(const ModelConfig& model, const RunShape& shape, int layer, Keep keep,
                   const ConstTensor& rope_table, UnitBuilder& unit, UnitBuilder& replicated)
    : shape_(shape),
      keep_(keep),
      heads_(model.heads),
      nope_dim_(model.mla.nope_dim),
      rope_dim_(model.mla.rope_dim),
      value_dim_(model.mla.value_dim),
      key_dim_(nope_dim_ + rope_dim_),
      rotates_(model.mla.rotates()),
      attention_(attention_plan_for(model, shape)),
      rope_table_(rope_table) {
  const MlaConfig& m = model.mla;
  const std::int64_t queries = heads_ * key_dim_, first = m.q_rank > 0 ? m.q_rank : queries;
  if (m.q_rank > 0) q_ = latent(0, m.q_rank, queries, m.norm_eps);
  kv_ = latent(first, m.kv_rank, heads_ * (nope_dim_ + value_dim_), m.norm_eps);
  in_ = linear(model.hidden, first + m.kv_rank + rope_dim_);
  out_ = linear(heads_ * value_dim_, model.hidden);
  if (rotates_) {
    rope_q_ = kernels::rope_plan(rope_desc(model, shape, heads_));
    rope_k_ = kernels::rope_plan(rope_desc(model, shape, 1));
  }
  if (rope_dim_ > 0) {
    keys_ = kernels::latent_keys_plan({.rows = shape.rows(),
                                       .heads = heads_,
                                       .own_dim = nope_dim_,
                                       .shared_dim = rope_dim_,
                                       .dtype = shape.compute,
                                       .device = shape.device});
  }
  add_parameters(model, layer, unit, replicated);
}

void MlaMixer::add_parameters(const ModelConfig& model, int layer, UnitBuilder& unit,
                              UnitBuilder& replicated) {
  const std::string prefix = prefix_of(layer);
  const double std = model.init_std, layers = static_cast<double>(model.layers);
  ParameterSpec in = matrix(prefix + "in", in_.out, in_.in, layer, std);
  const Init init = in.slices[0].init;
  in.slices = {{prefix + (low_rank_q() ? "q_a" : "q"), 0, kv_.begin, init},
               {prefix + "kv_a", kv_.begin, in_.out, init}};
  in_index_ = unit.add(in);
  if (low_rank_q()) {
    q_.up_index = unit.add(matrix(prefix + "q_b", q_.up.out, q_.up.in, layer, std));
    q_.gain_index = replicated.add(gain(prefix + "q_norm", q_.up.in, layer));
  }
  kv_.up_index = unit.add(matrix(prefix + "kv_b", kv_.up.out, kv_.up.in, layer, std));
  kv_.gain_index = replicated.add(gain(prefix + "kv_norm", kv_.up.in, layer));
  out_index_ =
      unit.add(matrix(prefix + "out", out_.out, out_.in, layer, std / std::sqrt(2.0 * layers)));
}

Bytes MlaMixer::workspace_bytes() const {
  Bytes bytes = larger(in_.workspace_bytes(), out_.workspace_bytes());
  bytes = larger(bytes, larger(kv_.up.workspace_bytes(), kv_.norm.workspace_bytes));
  if (low_rank_q()) {
    bytes = larger(bytes, larger(q_.up.workspace_bytes(), q_.norm.workspace_bytes));
  }
  bytes = larger(bytes, larger(rope_q_.workspace_bytes, rope_k_.workspace_bytes));
  return larger(bytes, larger(keys_.workspace_bytes, attention_.workspace_bytes));
}

void MlaMixer::take_saved(Arena& saved) {
  const std::int64_t n = shape_.rows();
  const DType compute = shape_.compute, statistic = statistic_dtype(compute);
  saved_in_ = saved.take(compute, {n, in_.out});
  if (low_rank_q()) {
    saved_q_ = saved.take(compute, {n, q_.up.out});
    q_.rstd = saved.take(statistic, {n});
  }
  saved_kv_ = saved.take(compute, {n, kv_.up.out});
  kv_.rstd = saved.take(statistic, {n});
  saved_attention_ = saved.take(compute, {n, out_.in});
  saved_lse_ = saved.take(statistic, {shape_.batch, heads_, shape_.tokens});
  if (keep_ == Keep::kAll) saved_cheap_ = take_cheap(saved);
}

MlaMixer::Cheap MlaMixer::take_cheap(Arena& arena) const {
  const std::int64_t n = shape_.rows();
  Cheap cheap;
  if (low_rank_q()) cheap.q_normed = arena.take(shape_.compute, {n, q_.up.in});
  cheap.kv_normed = arena.take(shape_.compute, {n, kv_.up.in});
  if (rope_dim_ > 0) cheap.keys = arena.take(shape_.compute, {n, heads_, key_dim_});
  return cheap;
}

MlaMixer::Gradients MlaMixer::take_gradients(Arena& scratch) const {
  const std::int64_t n = shape_.rows();
  Gradients d;
  d.attention = scratch.take(shape_.compute, {n, out_.in});
  d.in = scratch.take(shape_.compute, {n, in_.out});
  if (low_rank_q()) d.q = scratch.take(shape_.compute, {n, q_.up.out});
  d.kv = scratch.take(shape_.compute, {n, kv_.up.out});
  if (rope_dim_ > 0) d.keys = scratch.take(shape_.compute, {n, heads_, key_dim_});
  return d;
}

void MlaMixer::measure_scratch(Arena& scratch) {
  ScratchScope scope(scratch);
  if (keep_ != Keep::kAll) take_cheap(scratch);
  take_gradients(scratch);
}

Tensor MlaMixer::by_sequence(const Tensor& rows_NHE) const {
  return rows_NHE.split_dim(0, shape_.batch, shape_.tokens);
}

Tensor MlaMixer::queries(const Tensor& q, const Tensor& in) const {
  const Tensor rows = low_rank_q() ? q : in.slice(1, 0, heads_ * key_dim_);
  return rows.split_dim(1, heads_, key_dim_);
}

Tensor MlaMixer::own_keys(const Tensor& kv) const {
  return kv.split_dim(1, heads_, nope_dim_ + value_dim_).slice(2, 0, nope_dim_);
}

Tensor MlaMixer::values(const Tensor& kv) const {
  const std::int64_t width = nope_dim_ + value_dim_;
  return kv.split_dim(1, heads_, width).slice(2, nope_dim_, width);
}

Tensor MlaMixer::shared_key(const Tensor& in) const {
  return in.slice(1, in_.out - rope_dim_, in_.out);
}

Tensor MlaMixer::whole_keys(const Tensor& keys, const Tensor& kv) const {
  return rope_dim_ > 0 ? keys : own_keys(kv);
}

Tensor MlaMixer::attention_rows(const Tensor& rows) const {
  return by_sequence(rows.split_dim(1, heads_, value_dim_));
}

void MlaMixer::rotate(BlockRun& run, const Tensor& q, const Tensor& in, Turn turn) const {
  if (!rotates_) return;
  const auto apply = turn == Turn::kBackward ? kernels::rope_backward : kernels::rope_forward;
  const Tensor of_q = queries(q, in).slice(2, nope_dim_, key_dim_);
  const Tensor of_k = shared_key(in).split_dim(1, 1, rope_dim_);
  apply(run.context, rope_q_, {of_q, run.batch.position_N, rope_table_}, {of_q}, run.workspace);
  apply(run.context, rope_k_, {of_k, run.batch.position_N, rope_table_}, {of_k}, run.workspace);
}

void MlaMixer::form_normed(BlockRun& run, const ParameterViews& parameters, const Latent& latent,
                           const Tensor& normed) const {
  const Tensor rows = saved_in_.slice(1, latent.begin, latent.begin + latent.up.in);
  kernels::rmsnorm_forward(
      run.context, latent.norm,
      {.x_ND = rows, .residual_ND = {}, .gain_D = parameters.replicated[latent.gain_index]},
      {.sum_ND = {}, .y_ND = normed, .rstd_N = latent.rstd}, run.workspace);
}

void MlaMixer::form_keys(BlockRun& run, const Tensor& keys) const {
  if (rope_dim_ == 0) return;
  kernels::latent_keys_forward(run.context, keys_, {own_keys(saved_kv_), shared_key(saved_in_)},
                               {keys}, run.workspace);
}

void MlaMixer::forward(BlockRun& run, const ParameterViews& parameters, const ConstTensor& x_ND,
                       const Tensor& out_ND) {
  ScratchScope scope(run.scratch);
  const Cheap cheap = keep_ == Keep::kAll ? saved_cheap_ : take_cheap(run.scratch);
  in_.forward(run, x_ND, parameters.unit[in_index_], saved_in_);
  if (low_rank_q()) {
    form_normed(run, parameters, q_, cheap.q_normed);
    q_.up.forward(run, cheap.q_normed, parameters.unit[q_.up_index], saved_q_);
  }
  form_normed(run, parameters, kv_, cheap.kv_normed);
  kv_.up.forward(run, cheap.kv_normed, parameters.unit[kv_.up_index], saved_kv_);
  rotate(run, saved_q_, saved_in_, Turn::kForward);
  form_keys(run, cheap.keys);
  kernels::attention_forward(
      run.context, attention_,
      {by_sequence(queries(saved_q_, saved_in_)), by_sequence(whole_keys(cheap.keys, saved_kv_)),
       by_sequence(values(saved_kv_)), run.batch.doc_begin_BT, run.batch.doc_end_BT},
      {attention_rows(saved_attention_), saved_lse_}, run.workspace);
  out_.forward(run, saved_attention_, parameters.unit[out_index_], out_ND);
}

void MlaMixer::backward(BlockRun& run, const ParameterViews& parameters,
                        const ParameterViews& gradients, const ConstTensor& x_ND,
                        const ConstTensor& d_out_ND, const Tensor& d_x_ND) {
  ScratchScope scope(run.scratch);
  Cheap cheap = saved_cheap_;
  if (keep_ != Keep::kAll) {
    cheap = take_cheap(run.scratch);
    if (low_rank_q()) form_normed(run, parameters, q_, cheap.q_normed);
    form_normed(run, parameters, kv_, cheap.kv_normed);
    form_keys(run, cheap.keys);
  }
  const Gradients d = take_gradients(run.scratch);

  out_.backward_weight(run, d_out_ND, saved_attention_, gradients.unit[out_index_],
                       gradients.first_use);
  out_.backward_input(run, d_out_ND, parameters.unit[out_index_], d.attention);
  backward_attention(run, cheap, d);
  rotate(run, d.q, d.in, Turn::kBackward);
  backward_latent(run, parameters, gradients, kv_, cheap.kv_normed, d.kv, d.in);
  if (low_rank_q()) backward_latent(run, parameters, gradients, q_, cheap.q_normed, d.q, d.in);
  in_.backward_weight(run, d.in, x_ND, gradients.unit[in_index_], gradients.first_use);
  in_.backward_input(run, d.in, parameters.unit[in_index_], d_x_ND);
}

// Down to the projections; what is rotated is still that.
void MlaMixer::backward_attention(BlockRun& run, const Cheap& cheap, const Gradients& d) const {
  kernels::attention_backward(
      run.context, attention_,
      {by_sequence(queries(saved_q_, saved_in_)), by_sequence(whole_keys(cheap.keys, saved_kv_)),
       by_sequence(values(saved_kv_)), run.batch.doc_begin_BT, run.batch.doc_end_BT,
       attention_rows(saved_attention_), saved_lse_, attention_rows(d.attention)},
      {by_sequence(queries(d.q, d.in)), by_sequence(whole_keys(d.keys, d.kv)),
       by_sequence(values(d.kv))},
      run.workspace);
  if (rope_dim_ == 0) return;
  kernels::latent_keys_backward(run.context, keys_, {d.keys}, {own_keys(d.kv), shared_key(d.in)},
                                run.workspace);
}

void MlaMixer::backward_latent(BlockRun& run, const ParameterViews& parameters,
                               const ParameterViews& gradients, const Latent& latent,
                               const Tensor& normed, const Tensor& d_up, const Tensor& d_in) const {
  const std::int64_t begin = latent.begin, end = begin + latent.up.in;
  const Tensor d_rows = d_in.slice(1, begin, end);
  latent.up.backward_weight(run, d_up, normed, gradients.unit[latent.up_index],
                            gradients.first_use);
  latent.up.backward_input(run, d_up, parameters.unit[latent.up_index], d_rows);
  kernels::rmsnorm_backward(run.context, latent.norm,
                            {.dy_ND = d_rows,
                             .sum_ND = saved_in_.slice(1, begin, end),
                             .gain_D = parameters.replicated[latent.gain_index],
                             .rstd_N = latent.rstd,
                             .d_sum_ND = {}},
                            {.dx_ND = d_rows, .dgain_D = gradients.replicated[latent.gain_index]},
                            run.workspace);
}

}  // namespace k25::trainer
