#include "optim/adamw.h"

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

parallel::ShardUpdate update_of(const StepPlan& plan) {
  return [plan](Context& context, const parallel::UpdatePiece& piece) {
    kernels::adamw_update(
        context,
        {.grad_n = piece.gradient,
         .scalars = scalars(plan, piece.parameter),
         .old_master_n = piece.old_master,
         .old_m_n = piece.old_m,
         .old_v_n = piece.old_v},
        {.master_n = piece.master, .m_n = piece.m, .v_n = piece.v, .copy_out_n = piece.copy_out});
  };
}

}  // namespace

void apply_adamw(parallel::ZeroStore& store, const StepPlan& plan,
                 const std::optional<StepPlan>& guess) {
  if (plan.action != StepAction::kApply) return;
  const parallel::Guess was = !guess                      ? parallel::Guess::kNone
                              : same_update(*guess, plan) ? parallel::Guess::kRight
                                                          : parallel::Guess::kWrong;
  store.update(update_of(plan), was);
}

void guess_adamw(parallel::ZeroStore& store, const StepPlan& guess) {
  store.guess_update(update_of(guess));
}

}  // namespace k25::optim
