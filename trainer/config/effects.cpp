#include "trainer/config/effects.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "trainer/config/schema.h"

namespace k25::trainer {
namespace {

class Effects {
 public:
  explicit Effects(const ParsedConfig& parsed) : parsed_(parsed) {
    for (const Key& key : schema()) defaults_[key.info.path] = key.info.default_value;
  }

  /// Whether the user gave the key another value than its default.
  bool is_set(const std::string& key) const {
    const std::string& value = parsed_.values.at(key);
    const std::string& usual = defaults_.at(key);
    return parsed_.origins.at(key) != "default" && value != usual && value != "\"" + usual + "\"";
  }
  void say(const std::string& key, const std::string& text) {
    warnings_.push_back(
        fmt::format("{} {}: {} ({})", key, parsed_.values.at(key), text, parsed_.origins.at(key)));
  }
  void no_effect(const std::string& key, const std::string& because) {
    say(key, "has no effect because " + because);
  }
  void no_effect_of_all(const std::vector<std::string>& keys, const std::string& because) {
    for (const std::string& key : keys) {
      if (is_set(key)) no_effect(key, because);
    }
  }
  std::vector<std::string> take() { return std::move(warnings_); }

 private:
  const ParsedConfig& parsed_;
  std::map<std::string, std::string> defaults_;
  std::vector<std::string> warnings_;
};

void find_in_optim(const Config& c, Effects& effects) {
  const optim::Schedule& s = c.optim.schedule;
  const std::int64_t steps = c.train.steps;
  if (s.lr == 0.0) {
    effects.no_effect("optim.lr", "every update is multiplied by 0: no parameter will change");
  }
  if (s.warmup > steps) {
    effects.say("optim.schedule.warmup",
                fmt::format("is longer than the run of {} steps, so the peak learning rate is "
                            "never reached",
                            steps));
  }
  if (s.kind == optim::ScheduleKind::kConstant) {
    effects.no_effect_of_all({"optim.schedule.min_ratio"}, "optim.schedule.kind is constant");
  }
  if (s.kind != optim::ScheduleKind::kWsd) {
    effects.no_effect_of_all({"optim.schedule.decay"}, "optim.schedule.kind is not wsd");
  } else if (effects.is_set("optim.schedule.decay") && s.decay > steps - s.warmup) {
    effects.say("optim.schedule.decay",
                fmt::format("is longer than the {} steps after warm-up, so the decay begins right "
                            "behind it",
                            std::max<std::int64_t>(0, steps - s.warmup)));
  }
  if (c.optim.on_nan == optim::OnNan::kStop) {
    effects.no_effect_of_all({"numeric.max_consecutive_skips"}, "numeric.on_nan is stop");
  }
}

void find_in_mla(const ModelConfig& m, Effects& effects) {
  if (!m.has(MixerKind::kMla)) {
    effects.no_effect_of_all({"model.mla.kv_rank", "model.mla.q_rank", "model.mla.nope_head_dim",
                              "model.mla.rope_head_dim", "model.mla.value_head_dim",
                              "model.mla.positions", "model.mla.norm_eps"},
                             "no layer is mla");
  } else if (m.mla.rope_dim == 0) {
    effects.no_effect_of_all({"model.mla.positions"}, "model.mla.rope_head_dim is 0");
  }
}

void find_in_model(const Config& c, Effects& effects) {
  const ModelConfig& m = c.model;
  if (static_cast<std::int64_t>(m.pattern.size()) > m.layers) {
    effects.say("model.pattern",
                fmt::format("names {} layers of a model that has {}", m.pattern.size(), m.layers));
  }
  if (m.moe.first_dense_layers > m.layers) {
    effects.say("model.moe.first_dense_layers",
                fmt::format("is more than the {} layers of the model", m.layers));
  }
  if (!m.has(MixerKind::kKda)) {
    effects.no_effect_of_all(
        {"model.kda.heads", "model.kda.key_head_dim", "model.kda.value_head_dim", "model.kda.gate",
         "model.kda.lower_bound", "model.kda.gate_rank", "model.kda.beta"},
        "no layer is kda");
  } else if (m.kda.gate != kernels::KdaGate::kLowerBound) {
    effects.no_effect_of_all({"model.kda.lower_bound"}, "model.kda.gate is not lower_bound");
  }
  find_in_mla(m, effects);
  const bool gqa = m.has(MixerKind::kGqa);
  if (!gqa) effects.no_effect_of_all({"model.kv_heads"}, "no layer is gqa");
  if (!gqa && !(m.has(MixerKind::kMla) && m.mla.rotates())) {
    effects.no_effect_of_all({"model.rope_theta"}, "no layer has rotary positions");
  }
  if (!m.has(FeedForwardKind::kMoe)) {
    effects.no_effect_of_all(
        {"model.moe.experts", "model.moe.per_token", "model.moe.ffn", "model.moe.shared_experts",
         "model.moe.first_dense_layers", "model.moe.groups", "model.moe.top_groups",
         "model.moe.latent", "model.moe.scaling_factor", "model.moe.renormalize",
         "model.moe.balance", "model.moe.bias_rate"},
        "no layer is moe");
  }
}

void find_in_recompute(const Config& c, Effects& effects) {
  std::int64_t layers = 0;
  for (const LayerRange& range : c.recompute.layers) layers += range.last - range.first + 1;
  if (layers == 0) {
    effects.no_effect_of_all({"recompute.layers"},
                             fmt::format("of {} layers none is the middle", c.model.layers));
    effects.no_effect_of_all({"recompute.check"}, "recompute.layers names no layer");
  }
  if (layers == c.model.layers) {
    effects.no_effect_of_all({"recompute.cheap"}, "recompute.layers names every layer");
  }
}

void find_in_offload(const Config& c, Effects& effects) {
  const bool any =
      c.offload.optimizer == parallel::Place::kHost || c.offload.params == parallel::Place::kHost;
  if (!any) effects.no_effect_of_all({"offload.resident"}, "nothing is offloaded");
  if (c.offload.optimizer == parallel::Place::kDevice) {
    effects.no_effect_of_all({"offload.threads", "offload.nvme", "offload.early"},
                             "offload.optimizer is device");
  } else if (!c.offload.nvme.empty()) {
    effects.no_effect_of_all({"offload.early"}, "the moments are in a file (offload.nvme)");
  }
  if (any && c.offload.resident == 1.0) {
    effects.say("offload.resident", "keeps all state on the device, so nothing is offloaded");
  }
}

void find_in_output(const Config& c, Effects& effects) {
  for (const auto& [key, every] :
       {std::pair{"checkpoint.every", c.checkpoint.every}, std::pair{"eval.every", c.eval.every}}) {
    if (every > c.train.steps) {
      effects.no_effect(key, fmt::format("the run has {} steps", c.train.steps));
    }
  }
}

void find_in_debug(const Config& c, std::int64_t ranks, Effects& effects) {
  const std::string run = fmt::format("the run has {} steps", c.train.steps);
  if (c.inject.step < 0) {
    effects.no_effect_of_all({"debug.inject.tensor", "debug.inject.index", "debug.inject.value"},
                             "debug.inject.step is -1");
  } else if (c.inject.step > c.train.steps) {
    effects.no_effect("debug.inject.step", run);
  }
  if (c.kill.rank < 0) {
    effects.no_effect_of_all({"debug.kill.point", "debug.kill.step", "debug.kill.signal"},
                             "debug.kill.rank is -1");
  } else if (c.kill.rank >= ranks) {
    effects.no_effect("debug.kill.rank",
                      fmt::format("the ranks of this run are 0 to {}", ranks - 1));
  } else if (c.kill.step > c.train.steps) {
    effects.no_effect("debug.kill.step", run);
  } else if (c.kill.step == 0) {
    effects.no_effect("debug.kill.rank", "debug.kill.step is 0 and steps are counted from 1");
  }
}

void find_in_slow_read(const Config& c, std::int64_t ranks, Effects& effects) {
  const DebugSlowRead& slow = c.slow_read;
  if (slow.rank < 0) {
    effects.no_effect_of_all({"debug.slow_read.step", "debug.slow_read.seconds"},
                             "debug.slow_read.rank is -1");
  } else if (slow.rank >= ranks) {
    effects.no_effect("debug.slow_read.rank",
                      fmt::format("the ranks of this run are 0 to {}", ranks - 1));
  } else if (slow.step > c.train.steps) {
    effects.no_effect("debug.slow_read.step", fmt::format("the run has {} steps", c.train.steps));
  } else if (slow.step == 0) {
    effects.no_effect("debug.slow_read.rank",
                      "debug.slow_read.step is 0 and steps are counted from 1");
  } else if (slow.seconds == 0.0) {
    effects.no_effect("debug.slow_read.rank", "debug.slow_read.seconds is 0");
  }
}

}  // namespace

std::vector<std::string> settings_without_effect(const ParsedConfig& parsed, std::int64_t ranks) {
  const Config& c = parsed.config;
  Effects effects(parsed);
  find_in_model(c, effects);
  find_in_optim(c, effects);
  if (c.reduce.mode == parallel::ReduceMode::kOrdered) {
    effects.no_effect_of_all({"zero.reduce_after"}, "reduce.mode is ordered");
  }
  find_in_recompute(c, effects);
  find_in_offload(c, effects);
  find_in_output(c, effects);
  find_in_debug(c, ranks, effects);
  find_in_slow_read(c, ranks, effects);
  return effects.take();
}

std::vector<std::string> settings_without_effect(const ParsedConfig& parsed,
                                                 const DataFacts& facts) {
  const Config& c = parsed.config;
  Effects effects(parsed);
  if (c.data.sequence > facts.tokens) {
    effects.say("data.sequence",
                fmt::format("is longer than the whole corpus of {} tokens, so the rest of every "
                            "sample is padding",
                            facts.tokens));
  }
  if (facts.validation_tokens == 0) {
    effects.no_effect_of_all({"eval.every", "eval.batches"}, "there is no validation data");
  }
  for (const std::string& domain : facts.domains_without_training) {
    const auto weight = c.data.mixture_weights.find(domain);
    if (weight != c.data.mixture_weights.end()) continue;  // 0, or refused
    effects.say("data.train", "domain '" + domain +
                                  "' has no training documents, so nothing is "
                                  "drawn from it");
  }
  return effects.take();
}

}  // namespace k25::trainer
