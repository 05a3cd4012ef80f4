#include "optim/adamw.h"

#include <algorithm>

#include "kernels/adamw/adamw.h"

namespace k25::optim {
namespace {

AdamWScalars scalars(const StepPlan& plan, const parallel::ParameterSpec& parameter) {
  const double lr = plan.lr * parameter.lr_scale;
  return {.grad_scale = static_cast<float>(plan.scale),
          .beta1 = static_cast<float>(plan.beta1),
          .one_minus_beta1 = static_cast<float>(1.0 - plan.beta1),
          .beta2 = static_cast<float>(plan.beta2),
          .one_minus_beta2 = static_cast<float>(1.0 - plan.beta2),
          .bias_correction1 = static_cast<float>(plan.bias_correction1),
          .bias_correction2 = static_cast<float>(plan.bias_correction2),
          .eps = static_cast<float>(plan.eps),
          .lr = static_cast<float>(lr),
          .lr_weight_decay = parameter.decay ? static_cast<float>(lr * plan.weight_decay) : 0.0F};
}

void update_unit(Context& context, parallel::ZeroStore& store, const StepPlan& plan, int unit) {
  const parallel::UnitLayout& layout = store.layout(unit);
  const Tensor master = store.master(unit), m = store.m(unit), v = store.v(unit);
  const Tensor gradient = store.shard_gradient(unit);
  const std::int64_t first = store.shard_begin(unit);
  for (std::size_t p = 0; p < layout.parameters.size(); ++p) {
    const parallel::ParameterSpec& parameter = layout.parameters[p];
    if (parameter.frozen) continue;
    const std::int64_t begin = std::max<std::int64_t>(layout.offsets[p] - first, 0);
    const std::int64_t end =
        std::min(layout.offsets[p] + parameter.numel() - first, master.numel());
    if (begin >= end) continue;
    kernels::adamw_update(
        context, {.grad_n = gradient.slice(0, begin, end), .scalars = scalars(plan, parameter)},
        {.master_n = master.slice(0, begin, end),
         .m_n = m.slice(0, begin, end),
         .v_n = v.slice(0, begin, end),
         .copy_out_n = {}});
  }
}

}  // namespace

void apply_adamw(Context& context, parallel::ZeroStore& store, const StepPlan& plan) {
  if (plan.action != StepAction::kApply) return;
  for (int unit = 0; unit < store.num_units(); ++unit) update_unit(context, store, plan, unit);
}

}  // namespace k25::optim
