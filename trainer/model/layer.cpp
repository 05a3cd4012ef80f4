#include "trainer/model/layer.h"

#include "trainer/model/gqa.h"
#include "trainer/model/swiglu_ffn.h"

namespace k25::trainer {
namespace {

parallel::ParameterSpec gain_parameter(const std::string& name, std::int64_t hidden, int layer) {
  return {.name = name,
          .shape = {hidden},
          .layer = layer,
          .placement = parallel::Placement::kReplicated,
          .fp32 = true,
          .decay = false,
          .slices = {{name, 0, hidden, {parallel::InitKind::kOnes, 0.0}}}};
}

}  // namespace

Layer::Layer(const ModelConfig& model, const RunShape& shape, int index,
             const ConstTensor& rope_table, UnitBuilder& unit, UnitBuilder& replicated)
    : shape_(shape),
      hidden_(model.hidden),
      norm_(kernels::rmsnorm_plan({.rows = shape.rows(),
                                   .cols = model.hidden,
                                   .dtype = shape.compute,
                                   .eps = model.norm_eps,
                                   .device = shape.device})),
      residual_(kernels::residual_plan(
          {.count = shape.rows() * model.hidden, .dtype = shape.compute, .device = shape.device})) {
  const LayerPattern pattern = model.pattern[index % model.pattern.size()];
  switch (pattern.mixer) {
    case MixerKind::kGqa:
      mixer_ = std::make_unique<GqaMixer>(model, shape, index, rope_table, unit);
      break;
  }
  switch (pattern.feed_forward) {
    case FeedForwardKind::kSwiglu:
      feed_forward_ = std::make_unique<SwigluFeedForward>(model, shape, index, unit);
      break;
  }
  const std::string prefix = "layers." + std::to_string(index) + ".";
  norm1_index_ = replicated.add(gain_parameter(prefix + "mixer_norm", model.hidden, index));
  norm2_index_ = replicated.add(gain_parameter(prefix + "ffn_norm", model.hidden, index));
}

Bytes Layer::workspace_bytes() const {
  return larger(larger(norm_.workspace_bytes, residual_.workspace_bytes),
                larger(mixer_->workspace_bytes(), feed_forward_->workspace_bytes()));
}

void Layer::take_saved(Arena& saved) {
  const DType statistic = shape_.compute == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  const std::int64_t n = shape_.rows();
  saved_.y1 = saved.take(shape_.compute, {n, hidden_});
  saved_.rstd1 = saved.take(statistic, {n});
  mixer_->take_saved(saved);
  saved_.sum = saved.take(shape_.compute, {n, hidden_});
  saved_.y2 = saved.take(shape_.compute, {n, hidden_});
  saved_.rstd2 = saved.take(statistic, {n});
  feed_forward_->take_saved(saved);
  saved_.out = saved.take(shape_.compute, {n, hidden_});
}

void Layer::measure(Arena& saved, Arena& scratch) {
  take_saved(saved);
  ScratchScope scope(scratch);
  scratch.take(shape_.compute, {shape_.rows(), hidden_});
  mixer_->measure_scratch(scratch);
  feed_forward_->measure_scratch(scratch);
}

Tensor Layer::forward(BlockRun& run, const ParameterViews& parameters, const ConstTensor& h_ND) {
  take_saved(run.saved);
  ScratchScope scope(run.scratch);
  const Tensor update = run.scratch.take(shape_.compute, {shape_.rows(), hidden_});
  const ConstTensor gain1 = parameters.replicated[norm1_index_];
  const ConstTensor gain2 = parameters.replicated[norm2_index_];

  kernels::rmsnorm_forward(run.context, norm_, {.x_ND = h_ND, .residual_ND = {}, .gain_D = gain1},
                           {.sum_ND = {}, .y_ND = saved_.y1, .rstd_N = saved_.rstd1},
                           run.workspace);
  mixer_->forward(run, parameters, saved_.y1, update);
  kernels::rmsnorm_forward(
      run.context, norm_, {.x_ND = h_ND, .residual_ND = update, .gain_D = gain2},
      {.sum_ND = saved_.sum, .y_ND = saved_.y2, .rstd_N = saved_.rstd2}, run.workspace);
  feed_forward_->forward(run, parameters, saved_.y2, update);
  kernels::residual_forward(run.context, residual_, {saved_.sum, update}, {saved_.out},
                            run.workspace);
  return saved_.out;
}

void Layer::backward(BlockRun& run, const ParameterViews& parameters,
                     const ParameterViews& gradients, const ConstTensor& h_ND, const Tensor& d_ND) {
  ScratchScope scope(run.scratch);
  const Tensor d_y = run.scratch.take(shape_.compute, {shape_.rows(), hidden_});
  const ConstTensor gain1 = parameters.replicated[norm1_index_];
  const ConstTensor gain2 = parameters.replicated[norm2_index_];

  feed_forward_->backward(run, parameters, gradients, saved_.y2, d_ND, d_y);
  kernels::rmsnorm_backward(run.context, norm_,
                            {.dy_ND = d_y,
                             .sum_ND = saved_.sum,
                             .gain_D = gain2,
                             .rstd_N = saved_.rstd2,
                             .d_sum_ND = d_ND},
                            {.dx_ND = d_ND, .dgain_D = gradients.replicated[norm2_index_]},
                            run.workspace);
  mixer_->backward(run, parameters, gradients, saved_.y1, d_ND, d_y);
  kernels::rmsnorm_backward(
      run.context, norm_,
      {.dy_ND = d_y, .sum_ND = h_ND, .gain_D = gain1, .rstd_N = saved_.rstd1, .d_sum_ND = d_ND},
      {.dx_ND = d_ND, .dgain_D = gradients.replicated[norm1_index_]}, run.workspace);
}

}  // namespace k25::trainer
