#include "trainer/model/swiglu_ffn.h"

#include <cmath>

namespace k25::trainer {
namespace {

using Part = SwigluFeedForward::Part;

parallel::ParameterSpec gate_up_parameter(const ModelConfig& m, int layer, const Part& part) {
  const std::string prefix = "layers." + std::to_string(layer) + "." + part.name + ".";
  const parallel::Init init{parallel::InitKind::kNormal, m.init_std};
  return {.name = prefix + "gate_up",
          .shape = {2 * part.ffn, m.hidden},
          .layer = layer,
          .slices = {{prefix + "gate", 0, part.ffn, init},
                     {prefix + "up", part.ffn, 2 * part.ffn, init}},
          .gradient_start = parallel::GradientStart::kWritten};
}

parallel::ParameterSpec down_parameter(const ModelConfig& m, int layer, const Part& part) {
  const std::string name = "layers." + std::to_string(layer) + "." + part.name + ".down";
  const double std = m.init_std / std::sqrt(2.0 * static_cast<double>(m.layers));
  return {.name = name,
          .shape = {m.hidden, part.ffn},
          .layer = layer,
          .slices = {{name, 0, m.hidden, {parallel::InitKind::kNormal, std}}},
          .gradient_start = parallel::GradientStart::kWritten};
}

}  // namespace

SwigluFeedForward::SwigluFeedForward(const ModelConfig& model, const RunShape& shape, int layer,
                                     const Part& part, Keep keep, UnitBuilder& unit)
    : shape_(shape),
      keep_(keep),
      gate_up_{shape.rows(), model.hidden, 2 * part.ffn, shape.compute, shape.device},
      down_{shape.rows(), part.ffn, model.hidden, shape.compute, shape.device},
      swiglu_(kernels::swiglu_plan({.rows = shape.rows(),
                                    .cols = part.ffn,
                                    .dtype = shape.compute,
                                    .device = shape.device})),
      gate_up_index_(unit.add(gate_up_parameter(model, layer, part))),
      down_index_(unit.add(down_parameter(model, layer, part))) {}

Bytes SwigluFeedForward::workspace_bytes() const {
  return larger(swiglu_.workspace_bytes,
                larger(gate_up_.workspace_bytes(), down_.workspace_bytes()));
}

void SwigluFeedForward::take_saved(Arena& saved) {
  saved_gate_up_ = saved.take(shape_.compute, {shape_.rows(), gate_up_.out});
  if (keep_ == Keep::kAll) {
    saved_activation_ = saved.take(shape_.compute, {shape_.rows(), down_.in});
  }
}

void SwigluFeedForward::measure_scratch(Arena& scratch) {
  ScratchScope scope(scratch);
  scratch.take(shape_.compute, {shape_.rows(), down_.in});
}

void SwigluFeedForward::forward(BlockRun& run, const ParameterViews& parameters,
                                const ConstTensor& x_ND, const Tensor& out_ND) {
  gate_up_.forward(run, x_ND, parameters.unit[gate_up_index_], saved_gate_up_);
  ScratchScope scope(run.scratch);
  const Tensor activation = keep_ == Keep::kAll
                                ? saved_activation_
                                : run.scratch.take(shape_.compute, {shape_.rows(), down_.in});
  kernels::swiglu_forward(run.context, swiglu_, {saved_gate_up_}, {activation}, run.workspace);
  down_.forward(run, activation, parameters.unit[down_index_], out_ND);
}

void SwigluFeedForward::backward(BlockRun& run, const ParameterViews& parameters,
                                 const ParameterViews& gradients, const ConstTensor& x_ND,
                                 const ConstTensor& d_out_ND, const Tensor& d_x_ND) {
  ScratchScope scope(run.scratch);
  const Tensor d_activation = run.scratch.take(shape_.compute, {shape_.rows(), down_.in});
  down_.backward_input(run, d_out_ND, parameters.unit[down_index_], d_activation);

  // The saved gate|up is no longer needed after this, so its gradient takes its place; an
  // activation that was not kept takes the place of its own gradient.
  const Tensor recomputed = keep_ == Keep::kAll ? Tensor{} : d_activation;
  kernels::swiglu_backward(run.context, swiglu_, {d_activation, saved_gate_up_},
                           {saved_gate_up_, recomputed}, run.workspace);
  down_.backward_weight(run, d_out_ND, keep_ == Keep::kAll ? saved_activation_ : recomputed,
                        gradients.unit[down_index_], gradients.first_use);
  gate_up_.backward_weight(run, saved_gate_up_, x_ND, gradients.unit[gate_up_index_],
                           gradients.first_use);
  gate_up_.backward_input(run, saved_gate_up_, parameters.unit[gate_up_index_], d_x_ND);
}

}  // namespace k25::trainer
