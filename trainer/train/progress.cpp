#include "trainer/train/progress.h"

#include <algorithm>

#include "trainer/model/flops.h"

namespace k25::trainer {

double flops_per_token(const ModelConfig& m, std::int64_t sequence) {
  return static_cast<double>(token_flops(m, sequence, {}, LogitsFormed::kOnce).model);
}

StepRecord Progress::record(const Input& in) {
  const optim::StepPlan& plan = in.result.plan;
  const bool empty = plan.action == optim::StepAction::kSkipEmpty;
  const bool applied = plan.action == optim::StepAction::kApply;
  mean_seconds_ =
      mean_seconds_ == 0.0 ? in.step_seconds : 0.9 * mean_seconds_ + 0.1 * in.step_seconds;
  StepRecord r{.step = in.state.step, .steps = in.config.train.steps};
  if (!empty && in.result.stats.loss_finite) {
    r.loss = plan.loss;
    r.loss_max = in.result.stats.loss_max;
  }
  if (applied) r.gradient_norm = plan.gradient_norm;
  r.lr = plan.lr;
  const auto label_tokens = static_cast<double>(in.result.stats.label_tokens);
  r.tokens_per_second = label_tokens / in.step_seconds;
  const double ranks = in.config.mesh.size();
  r.tflops = flops_per_token(in.config.model, in.config.data.sequence) *
             static_cast<double>(in.config.train.batch * in.config.data.sequence) /
             in.step_seconds / ranks * 1e-12;
  r.step_ms = 1e3 * in.step_seconds;
  r.data_ms = 1e3 * in.result.data_seconds;
  r.wait_ms = 1e3 * in.result.wait_seconds;
  r.save_ms = 1e3 * in.save_seconds;
  if (in.config.offload.optimizer == parallel::Place::kHost) {
    const parallel::OffloadTimes& o = in.result.offload;
    r.offload_ms = {1e3 * o.copy, 1e3 * o.compute, 1e3 * o.exposed};
  }
  r.memory_gib = static_cast<double>(in.memory.n) / (1 << 30);
  r.label_tokens = in.result.stats.label_tokens;
  r.total_tokens = in.state.label_tokens;
  r.skipped = in.state.policy.skipped;
  r.nan = in.state.policy.skipped;
  r.empty = in.state.policy.empty;
  r.skipped_now =
      plan.action == optim::StepAction::kSkipNonFinite || plan.action == optim::StepAction::kStop;
  r.empty_now = empty;
  std::vector<std::int64_t> per_domain(in.corpus.info().domains.size(), 0);
  for (const data::SampleRef& sample : in.result.samples) {
    ++per_domain[static_cast<std::size_t>(sample.domain)];
    r.samples.push_back(sample.number);
  }
  double windows = 0.0;
  for (std::size_t d = 0; d < per_domain.size(); ++d) {
    r.domain_samples.emplace_back(in.corpus.info().domains[d], per_domain[d]);
    windows += static_cast<double>(in.sampler.windows_per_epoch(static_cast<std::int32_t>(d)));
  }
  r.epoch = static_cast<double>(in.state.mixture.next_sample) / std::max(windows, 1.0);
  r.eta_seconds = mean_seconds_ * static_cast<double>(in.config.train.steps - in.state.step);
  r.hardware = in.hardware;
  return r;
}

}  // namespace k25::trainer
