#include "trainer/model/layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/core/check.h"
#include "kernels/core/host_access.h"
#include "trainer/model/gqa.h"
#include "trainer/model/kda.h"
#include "trainer/model/mla.h"
#include "trainer/model/moe_ffn.h"
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

void norm_rows(BlockRun& run, const kernels::RmsNormPlan& plan, const StreamRows& rows,
               const ConstTensor& gain_D, const Tensor& y_ND, const Tensor& rstd_N) {
  kernels::rmsnorm_forward(
      run.context, plan, {.x_ND = rows.x_ND, .residual_ND = rows.update_ND, .gain_D = gain_D},
      {.sum_ND = rows.update_ND ? rows.sum_ND : Tensor{}, .y_ND = y_ND, .rstd_N = rstd_N},
      run.workspace);
}

Layer::Layer(const ModelConfig& model, const RunShape& shape, int index, Keep keep, Check check,
             const RopeTables& rope_tables, UnitBuilder& unit, UnitBuilder& replicated)
    : shape_(shape),
      index_(index),
      keep_(keep),
      check_(check),
      hidden_(model.hidden),
      norm_(kernels::rmsnorm_plan({.rows = shape.rows(),
                                   .cols = model.hidden,
                                   .dtype = shape.compute,
                                   .eps = model.norm_eps,
                                   .device = shape.device})),
      residual_(kernels::residual_plan(
          {.count = shape.rows() * model.hidden, .dtype = shape.compute, .device = shape.device})) {
  const LayerPattern kind = model.kind(index);
  const Keep inner = keep == Keep::kCostly ? Keep::kCostly : Keep::kAll;
  switch (kind.mixer) {
    case MixerKind::kGqa:
      mixer_ = std::make_unique<GqaMixer>(model, shape, index, rope_tables.gqa, unit);
      break;
    case MixerKind::kKda:
      mixer_ = std::make_unique<KdaMixer>(model, shape, index, inner, unit, replicated);
      break;
    case MixerKind::kMla:
      mixer_ =
          std::make_unique<MlaMixer>(model, shape, index, inner, rope_tables.mla, unit, replicated);
      break;
  }
  switch (kind.feed_forward) {
    case FeedForwardKind::kSwiglu:
      feed_forward_ = std::make_unique<SwigluFeedForward>(
          model, shape, index, SwigluFeedForward::Part{"ffn", model.ffn}, inner, unit);
      break;
    case FeedForwardKind::kMoe: {
      auto moe = std::make_unique<MoeFeedForward>(model, shape, index, inner, unit, replicated);
      correction_bias_index_ = moe->bias_index();
      feed_forward_ = std::move(moe);
      break;
    }
  }
  const std::string prefix = "layers." + std::to_string(index) + ".";
  norm1_index_ = replicated.add(gain_parameter(prefix + "mixer_norm", model.hidden, index));
  norm2_index_ = replicated.add(gain_parameter(prefix + "ffn_norm", model.hidden, index));
}

Bytes Layer::workspace_bytes() const {
  return larger(larger(norm_.workspace_bytes, residual_.workspace_bytes),
                larger(mixer_->workspace_bytes(), feed_forward_->workspace_bytes()));
}

Tensor Layer::take_rows(Arena& arena) const {
  return arena.take(shape_.compute, {shape_.rows(), hidden_});
}

void Layer::take_inner(Arena& inner, Arena& scratch) {
  const DType statistic = shape_.compute == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  const std::int64_t n = shape_.rows();
  const bool norms_again = keep_ == Keep::kCostly;  // both in one place: they are needed in turn
  inner_.y1 = take_rows(norms_again ? scratch : inner);
  inner_.rstd1 = inner.take(statistic, {n});
  mixer_->take_saved(inner);
  inner_.sum = take_rows(inner);
  inner_.y2 = norms_again ? inner_.y1 : take_rows(inner);
  inner_.rstd2 = inner.take(statistic, {n});
  feed_forward_->take_saved(inner);
}

void Layer::measure(Arena& saved, Arena& scratch) {
  take_rows(saved);
  ScratchScope scope(scratch);
  take_inner(keep_ == Keep::kInput ? scratch : saved, scratch);
  take_rows(scratch);
  if (check_ == Check::kYes) take_rows(scratch);
  mixer_->measure_scratch(scratch);
  feed_forward_->measure_scratch(scratch);
}

StreamRows Layer::forward(BlockRun& run, const ParameterViews& parameters, const StreamRows& h,
                          const Tensor& update_ND) {
  out_ = take_rows(run.saved);
  ScratchScope scope(run.scratch);
  take_inner(keep_ == Keep::kInput ? run.scratch : run.saved, run.scratch);
  if (keep_ == Keep::kInput) inner_.sum = out_;  // it outlives the scratch
  run_inner(run, parameters, h, update_ND);
  return {inner_.sum, update_ND, out_};
}

void Layer::run_inner(BlockRun& run, const ParameterViews& parameters, const StreamRows& h,
                      const Tensor& update_ND) {
  const ConstTensor gain1 = parameters.replicated[norm1_index_];
  const ConstTensor gain2 = parameters.replicated[norm2_index_];
  norm_rows(run, norm_, h, gain1, inner_.y1, inner_.rstd1);
  mixer_->forward(run, parameters, inner_.y1, update_ND);
  norm_rows(run, norm_, {h.rows(), update_ND, inner_.sum}, gain2, inner_.y2, inner_.rstd2);
  feed_forward_->forward(run, parameters, inner_.y2, update_ND);
}

void Layer::run_again(BlockRun& run, const ParameterViews& parameters, const ConstTensor& h_ND) {
  ScratchScope scope(run.scratch);
  const Tensor update = take_rows(run.scratch);
  run_inner(run, parameters, {h_ND, {}, {}}, update);
  if (check_ == Check::kYes) compare_output(run, update);
}

void Layer::compare_output(BlockRun& run, const Tensor& update_ND) const {
  const Tensor again = take_rows(run.scratch);
  kernels::residual_forward(run.context, residual_, {inner_.sum, update_ND}, {again},
                            run.workspace);
  const auto size = static_cast<std::size_t>(again.bytes().n);
  std::vector<std::byte> want(size), got(size);
  read_to_host(run.context, out_, want.data());
  read_to_host(run.context, again, got.data());
  const auto differing = std::mismatch(want.begin(), want.end(), got.begin()).first;
  if (differing == want.end()) return;
  const std::int64_t element = (differing - want.begin()) / bytes_of(Elems{1}, shape_.compute).n;
  fail(ErrorKind::kInternal,
       fmt::format("recompute.check: layer {} (of recompute.layers): its output differs from "
                   "forward's, first at row {}, column {}",
                   index_ + 1, element / hidden_, element % hidden_));
}

void Layer::norm_again(BlockRun& run, const ConstTensor& x_ND, const ConstTensor& gain_D,
                       const Tensor& y_ND, const Tensor& rstd_N) const {
  if (keep_ == Keep::kCostly) norm_rows(run, norm_, {x_ND, {}, {}}, gain_D, y_ND, rstd_N);
}

void Layer::backward(BlockRun& run, const ParameterViews& parameters,
                     const ParameterViews& gradients, const ConstTensor& h_ND, const Tensor& d_ND) {
  ScratchScope scope(run.scratch);
  if (keep_ == Keep::kInput) {
    take_inner(run.scratch, run.scratch);
    run_again(run, parameters, h_ND);
  } else if (keep_ == Keep::kCostly) {
    inner_.y1 = inner_.y2 = take_rows(run.scratch);
  }
  const Tensor d_y = take_rows(run.scratch);
  const ConstTensor gain1 = parameters.replicated[norm1_index_];
  const ConstTensor gain2 = parameters.replicated[norm2_index_];

  norm_again(run, inner_.sum, gain2, inner_.y2, inner_.rstd2);
  feed_forward_->backward(run, parameters, gradients, inner_.y2, d_ND, d_y);
  kernels::rmsnorm_backward(run.context, norm_,
                            {.dy_ND = d_y,
                             .sum_ND = inner_.sum,
                             .gain_D = gain2,
                             .rstd_N = inner_.rstd2,
                             .d_sum_ND = d_ND},
                            {.dx_ND = d_ND, .dgain_D = gradients.replicated[norm2_index_]},
                            run.workspace);
  norm_again(run, h_ND, gain1, inner_.y1, inner_.rstd1);
  mixer_->backward(run, parameters, gradients, inner_.y1, d_ND, d_y);
  kernels::rmsnorm_backward(
      run.context, norm_,
      {.dy_ND = d_y, .sum_ND = h_ND, .gain_D = gain1, .rstd_N = inner_.rstd1, .d_sum_ND = d_ND},
      {.dx_ND = d_ND, .dgain_D = gradients.replicated[norm1_index_]}, run.workspace);
}

}  // namespace k25::trainer
