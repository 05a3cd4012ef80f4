#include "trainer/train/changes.h"

#include <fmt/format.h>

#include <algorithm>

#include "trainer/train/load_run.h"

namespace k25::trainer {
namespace {

struct Change {
  std::string key, was, now;
};

std::string joined(const std::vector<Change>& changes) {
  std::string text;
  for (const Change& c : changes) {
    text += fmt::format("{}{} {} -> {}", text.empty() ? "" : ", ", c.key, c.was, c.now);
  }
  return text;
}

void compare(const std::string& key, const std::string& was, const std::string& now,
             std::vector<Change>& changes) {
  if (was != now) changes.push_back({key, was, now});
}

/// The first layer of another kind, so that a pattern written in other words is the same one.
void pattern_change(const ModelConfig& was, const ModelConfig& now, std::vector<Change>& layout) {
  for (std::int64_t i = 0; i < std::min(was.layers, now.layers); ++i) {
    const std::string before = layer_name(was.kind(i)), after = layer_name(now.kind(i));
    if (before == after) continue;
    layout.push_back({fmt::format("layer {} (model.pattern, model.last_layer, "
                                  "model.moe.first_dense_layers)",
                                  i + 1),
                      before, after});
    return;
  }
}

std::string value_or_absent(const std::map<std::string, std::string>& keys,
                            const std::string& key) {
  const auto found = keys.find(key);
  return found == keys.end() ? "(absent)" : found->second;
}

void number(const char* key, auto before, auto now, std::vector<Change>& changes) {
  compare(key, fmt::format("{}", before), fmt::format("{}", now), changes);
}

/// 0 is what the config calls null.
void number_or_null(const char* key, std::int64_t before, std::int64_t now,
                    std::vector<Change>& changes) {
  const auto text = [](std::int64_t n) { return n == 0 ? "null" : std::to_string(n); };
  compare(key, text(before), text(now), changes);
}

void kda_changes(const ModelConfig& was, const ModelConfig& now, std::vector<Change>& layout,
                 std::vector<Change>& constants) {
  if (!was.has(MixerKind::kKda) || !now.has(MixerKind::kKda)) return;
  const KdaConfig &a = was.kda, &b = now.kda;
  number("model.kda.heads", a.heads, b.heads, layout);
  number("model.kda.key_head_dim", a.key_dim, b.key_dim, layout);
  number("model.kda.value_head_dim", a.value_dim, b.value_dim, layout);
  number("model.kda.gate_rank", a.gate_rank, b.gate_rank, layout);
  const auto gate_name = [](const KdaConfig& k) {
    return k.gate == kernels::KdaGate::kSoftplus ? "softplus" : "lower_bound";
  };
  compare("model.kda.gate", gate_name(a), gate_name(b), constants);
  if (a.gate == b.gate && a.gate == kernels::KdaGate::kLowerBound) {
    number("model.kda.lower_bound", a.lower_bound, b.lower_bound, constants);
  }
  const auto beta_limit = [](const KdaConfig& k) {
    return k.beta == kernels::KdaBetaRange::kOne ? 1 : 2;
  };
  number("model.kda.beta", beta_limit(a), beta_limit(b), constants);
}

void mla_changes(const ModelConfig& was, const ModelConfig& now, std::vector<Change>& layout,
                 std::vector<Change>& constants) {
  if (!was.has(MixerKind::kMla) || !now.has(MixerKind::kMla)) return;
  const MlaConfig &a = was.mla, &b = now.mla;
  number("model.mla.kv_rank", a.kv_rank, b.kv_rank, layout);
  number_or_null("model.mla.q_rank", a.q_rank, b.q_rank, layout);
  number("model.mla.nope_head_dim", a.nope_dim, b.nope_dim, layout);
  number("model.mla.rope_head_dim", a.rope_dim, b.rope_dim, layout);
  number("model.mla.value_head_dim", a.value_dim, b.value_dim, layout);
  if (a.rope_dim > 0 && b.rope_dim > 0) {
    const auto positions = [](const MlaConfig& m) {
      return m.positions == MlaPositions::kRope ? "rope" : "none";
    };
    compare("model.mla.positions", positions(a), positions(b), constants);
  }
  number("model.mla.norm_eps", a.norm_eps, b.norm_eps, constants);
}

void moe_changes(const ModelConfig& was, const ModelConfig& now, std::vector<Change>& layout,
                 std::vector<Change>& constants) {
  if (!was.has(FeedForwardKind::kMoe) || !now.has(FeedForwardKind::kMoe)) return;
  const MoeConfig &a = was.moe, &b = now.moe;
  number("model.moe.experts", a.experts, b.experts, layout);
  number("model.moe.ffn", a.ffn, b.ffn, layout);
  number("model.moe.shared_experts", a.shared_experts, b.shared_experts, layout);
  number_or_null("model.moe.latent", a.latent, b.latent, layout);
  number("model.moe.per_token", a.per_token, b.per_token, constants);
  number("model.moe.groups", a.groups, b.groups, constants);
  number("model.moe.top_groups", a.top_groups, b.top_groups, constants);
  number("model.moe.scaling_factor", a.scaling_factor, b.scaling_factor, constants);
  const auto adds_up = [](const MoeConfig& m) {
    return m.renormalize == kernels::NormalizeWeights::kYes;
  };
  number("model.moe.renormalize", adds_up(a), adds_up(b), constants);
}

// What the same weights compute: how they are cut, and the numbers beside them.
struct FunctionChanges {
  std::vector<Change> layout, constants;
};

FunctionChanges function_changes(const ModelConfig& was, const ModelConfig& model) {
  FunctionChanges found;
  number("model.rope_theta", was.rope_theta, model.rope_theta, found.constants);
  number("model.norm_eps", was.norm_eps, model.norm_eps, found.constants);
  // The width of a head may follow from it.
  number("model.hidden", was.hidden, model.hidden, found.layout);
  number("model.heads", was.heads, model.heads, found.layout);
  number("model.kv_heads", was.kv_heads, model.kv_heads, found.layout);
  number("model.head_dim", was.head_dim, model.head_dim, found.layout);
  kda_changes(was, model, found.layout, found.constants);
  mla_changes(was, model, found.layout, found.constants);
  moe_changes(was, model, found.layout, found.constants);
  if (was.layers == model.layers) pattern_change(was, model, found.layout);
  return found;
}

[[noreturn]] void refuse(const CheckpointInfo& saved, const std::vector<Change>& changes,
                         const std::string& mend) {
  std::string list;
  for (const Change& c : changes) {
    list += fmt::format("{}{} is {} there and {} in the config", list.empty() ? "" : ", ", c.key,
                        c.was, c.now);
  }
  fail(ErrorKind::kCheckpoint,
       fmt::format("{}: the checkpoint's weights belong to another function: {}; {}",
                   saved.folder.string(), list, mend));
}

// These move no number of a step, or are compared elsewhere: data by its digest, the seed and
// shapes of the model as they are adopted, the machine by its fingerprint.
bool moves_numbers(const std::string& key, const std::map<std::string, std::string>& keys) {
  const auto value = [&](const char* name) {
    const auto found = keys.find(name);
    return found == keys.end() ? std::string() : found->second;
  };
  if (key == "train.steps") return value("optim.schedule.kind") != "constant";
  if (key == "mesh.replicate" || key == "mesh.shard" || key == "zero.reduce_after") {
    return value("reduce.mode") == "library";  // otherwise the slots alone fix the order of sums
  }
  for (const char* same : {"train.batch", "train.accumulation", "train.resume", "train.init_from",
                           "train.allow_data_change", "reduce.slots", "data.mixture.weights"}) {
    if (key == same) return false;
  }
  for (const char* moving : {"data.on_exhausted", "model.moe.balance", "model.moe.bias_rate"}) {
    if (key == moving) return true;
  }
  for (const char* section : {"optim.", "numeric.", "train.", "reduce."}) {
    if (key.rfind(section, 0) == 0) return true;
  }
  return false;
}

}  // namespace

std::map<std::string, std::string> keys_of(const std::string& resolved) {
  std::map<std::string, std::string> keys;
  std::vector<std::string> sections;
  for (std::size_t begin = 0; begin < resolved.size();) {
    const std::size_t end = std::min(resolved.find('\n', begin), resolved.size());
    const std::string line = resolved.substr(begin, end - begin);
    begin = end + 1;
    const std::size_t name = line.find_first_not_of(' '), colon = line.find(':');
    if (name == std::string::npos || colon == std::string::npos) continue;
    sections.resize(std::min(name / 2, sections.size()));
    sections.push_back(line.substr(name, colon - name));
    if (colon + 2 >= line.size()) continue;
    std::string path;
    for (const std::string& section : sections) path += (path.empty() ? "" : ".") + section;
    keys[path] = line.substr(colon + 2);
  }
  return keys;
}

void require_same_function(const CheckpointInfo& saved, const ModelConfig& model) {
  const ModelConfig was = stored_config(saved).config.model;
  const FunctionChanges found = function_changes(was, model);
  std::vector<Change> changes = found.constants;
  changes.insert(changes.end(), found.layout.begin(), found.layout.end());
  if (changes.empty()) return;
  const std::string other = found.layout.empty()
                                ? "start a new run.dir from the weights alone with "
                                  "train.init_from: " +
                                      saved.folder.string()
                                : "train the other model in a new run.dir";
  refuse(saved, changes, "set the checkpoint's values to go on, or " + other);
}

void require_same_layout(const CheckpointInfo& saved, const ModelConfig& model,
                         std::vector<std::string>& warnings) {
  const ModelConfig was = stored_config(saved).config.model;
  const FunctionChanges found = function_changes(was, model);
  if (!found.layout.empty()) {
    refuse(saved, found.layout,
           "with these values its weights mean something else; set the "
           "checkpoint's");
  }
  if (found.constants.empty()) return;
  warnings.push_back("differs from the checkpoint: " + joined(found.constants) +
                     " (the weights of " + saved.folder.string() +
                     " were trained with the old values)");
}

void warn_of_changes(const CheckpointInfo& saved, const ParsedConfig& now, const DataIdentity& data,
                     const std::string& fingerprint, std::vector<std::string>& warnings) {
  const std::map<std::string, std::string> before = keys_of(saved.config);
  const std::map<std::string, std::string> after = keys_of(now.resolved);
  std::vector<Change> changes;
  compare("train.batch", std::to_string(saved.state.batch), std::to_string(now.config.train.batch),
          changes);
  compare("reduce.slots", std::to_string(saved.state.slots),
          std::to_string(now.config.reduce.slots), changes);
  const bool same_corpus = saved.state.corpus_digest == data.corpus_digest;
  if (!same_corpus || saved.state.mixture.weights != data.initial.weights) {
    const char* key = "data.mixture.weights";
    compare(key, value_or_absent(before, key), value_or_absent(after, key), changes);
  }
  std::map<std::string, std::string> all = before;
  all.insert(after.begin(), after.end());
  for (const auto& [key, value] : all) {
    if (!moves_numbers(key, before) && !moves_numbers(key, after)) continue;
    compare(key, value_or_absent(before, key), value_or_absent(after, key), changes);
  }
  const auto start = after.find("train.init_from");
  if (!now.config.train.init_from.empty() &&
      value_or_absent(before, "train.init_from") != start->second) {
    warnings.push_back(fmt::format(
        "train.init_from {} has no effect, because the run goes on from {}; a new run.dir, or "
        "--resume none, starts from those weights",
        start->second, saved.folder.string()));
  }
  compare("machine", "(" + saved.state.fingerprint + ")", "(" + fingerprint + ")", changes);
  if (changes.empty()) return;
  warnings.push_back("differs from the checkpoint: " + joined(changes) +
                     " (holds from here; the bits may differ from those of the old settings)");
}

}  // namespace k25::trainer
