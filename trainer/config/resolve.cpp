#include "trainer/config/resolve.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "trainer/config/key_kinds.h"
#include "trainer/config/printable.h"

namespace k25::trainer {
namespace {

// Of all experts of a layer together, and their number in the model: beyond, counts of bytes would
// overflow, and the list of names would not fit.
constexpr std::int64_t kMaxExpertWidth = std::int64_t{1} << 24;
constexpr std::int64_t kMaxExperts = std::int64_t{1} << 20;

class Resolver {
 public:
  Resolver(Config& config, std::int64_t ranks, const Places& places,
           std::map<std::string, std::string>& chosen, Problems& problems)
      : c_(config), ranks_(ranks), places_(places), chosen_(chosen), problems_(problems) {}

  void run() {
    resolve_model();
    resolve_recompute();
    resolve_mesh();
    if (!problems_.empty()) return;  // the rest counts data ranks
    resolve_batch();
    if (!problems_.empty()) return;
    resolve_slots();
    resolve_rest();
  }

 private:
  // It stands where `key` does or, when that is a default, where the first of `others` does.
  void problem(const std::string& key, const std::string& text,
               const std::vector<std::string>& others = {}) {
    std::string place = place_of(key);
    for (std::size_t i = 0; place.empty() && i < others.size(); ++i) place = place_of(others[i]);
    problems_.push_back((place.empty() ? places_.file : place) + ": " + key + ": " + text);
  }
  std::string place_of(const std::string& key) const {
    const std::string& origin = places_.origins.at(key);
    return origin == "default" ? std::string() : origin;
  }
  void choose(const std::string& key, std::int64_t value) { chosen_[key] = std::to_string(value); }

  std::int64_t data_ranks() const {
    return std::int64_t{c_.mesh.replicate} * c_.mesh.shard * c_.mesh.expert;
  }

  void resolve_model() {
    ModelConfig& m = c_.model;
    if (m.kv_heads == 0) choose("model.kv_heads", m.kv_heads = m.heads);
    if (m.head_dim == 0) {
      if (m.hidden % m.heads != 0) {
        return problem("model.heads",
                       fmt::format("{} heads do not divide hidden {}; give model.head_dim or "
                                   "another number of heads",
                                   m.heads, m.hidden));
      }
      choose("model.head_dim", m.head_dim = m.hidden / m.heads);
    }
    if (m.head_dim % 2 != 0) {
      problem("model.head_dim",
              fmt::format("{} is odd; rotary positions need an even width (hidden {} / "
                          "heads {})",
                          m.head_dim, m.hidden, m.heads),
              {"model.heads"});
    }
    if (m.heads % m.kv_heads != 0) {
      problem("model.kv_heads",
              fmt::format("{} kv_heads do not divide {} heads", m.kv_heads, m.heads),
              {"model.heads"});
    }
    resolve_kda();
    if (m.has(MixerKind::kMla)) resolve_mla();
    if (m.has(FeedForwardKind::kMoe)) resolve_moe();
  }

  void resolve_kda() {
    ModelConfig& m = c_.model;
    KdaConfig& k = m.kda;
    if (k.heads == 0) choose("model.kda.heads", k.heads = m.heads);
    if (k.key_dim == 0) choose("model.kda.key_head_dim", k.key_dim = m.head_dim);
    if (k.value_dim == 0) choose("model.kda.value_head_dim", k.value_dim = k.key_dim);
    if (k.gate_rank == 0) choose("model.kda.gate_rank", k.gate_rank = k.value_dim);
  }

  void resolve_mla() {
    MlaConfig& a = c_.model.mla;
    if (a.kv_rank == 0) {
      problem("model.mla.kv_rank", "null, and model.pattern has mla layers; give a number",
              {"model.pattern", "model.last_layer"});
    }
    if (a.nope_dim == 0) choose("model.mla.nope_head_dim", a.nope_dim = c_.model.head_dim);
    if (a.value_dim == 0) choose("model.mla.value_head_dim", a.value_dim = a.nope_dim);
    if (a.rotates() && a.rope_dim % 2 != 0) {
      problem("model.mla.rope_head_dim",
              fmt::format("{} is odd; rotary positions need an even width: give {}, or "
                          "model.mla.positions: none",
                          a.rope_dim, a.rope_dim + 1));
    }
  }

  // What a router demands of its experts.
  void resolve_moe() {
    const MoeConfig& e = c_.model.moe;
    for (const auto& [key, value] :
         {std::pair{"model.moe.experts", e.experts}, std::pair{"model.moe.per_token", e.per_token},
          std::pair{"model.moe.ffn", e.ffn}}) {
      if (value == 0) {
        problem(key, "null, and model.pattern has moe layers; give a number",
                {"model.pattern", "model.last_layer"});
      }
    }
    if (e.experts == 0 || e.per_token == 0 || e.ffn == 0) return;
    if (e.experts * e.ffn > kMaxExpertWidth || e.experts * c_.model.layers > kMaxExperts) {
      return problem(
          "model.moe.experts",
          fmt::format("{} experts of width {} in {} layers; at most {} wide in a layer and {} in "
                      "the model",
                      e.experts, e.ffn, c_.model.layers, kMaxExpertWidth, kMaxExperts),
          {"model.moe.ffn", "model.layers"});
    }
    if (e.per_token > e.experts) {
      return problem("model.moe.per_token",
                     fmt::format("{} of {} experts; at most {}", e.per_token, e.experts, e.experts),
                     {"model.moe.experts"});
    }
    if (e.experts % e.groups != 0) {
      return problem("model.moe.groups",
                     fmt::format("{} groups do not divide {} experts", e.groups, e.experts),
                     {"model.moe.experts"});
    }
    const std::int64_t fewest = (e.per_token * e.groups + e.experts - 1) / e.experts;
    if (e.top_groups > e.groups || e.top_groups < fewest) {
      problem(
          "model.moe.top_groups",
          fmt::format("{} of {} groups with {} experts each cannot give a token {} experts; "
                      "from {} to {}",
                      e.top_groups, e.groups, e.experts / e.groups, e.per_token, fewest, e.groups),
          {"model.moe.groups", "model.moe.per_token"});
    }
  }

  // The middle band is layers 7 to 18 of 32, and as near to that share as another depth allows.
  void resolve_recompute() {
    RecomputeConfig& r = c_.recompute;
    const std::int64_t layers = c_.model.layers;
    if (r.band != RecomputeBand::kList) {
      const bool all = r.band == RecomputeBand::kAll;
      const LayerRange band{all ? 1 : layers * 6 / 32 + 1, all ? layers : layers * 18 / 32};
      r.layers.clear();
      if (band.first <= band.last) r.layers.push_back(band);
      chosen_["recompute.layers"] = layer_ranges_text(r.layers);
    }
    if (!r.layers.empty() && r.layers.back().last > layers) {
      problem("recompute.layers",
              fmt::format("layer {} of a model with {} layers; they count from 1",
                          r.layers.back().last, layers),
              {"model.layers"});
    }
  }

  void resolve_mesh() {
    parallel::MeshShape& mesh = c_.mesh;
    const std::int64_t others = std::int64_t{mesh.replicate} * mesh.expert * mesh.context;
    const bool shard_alone = mesh.shard != 0 && mesh.replicate == 1;
    if (mesh.shard == 0 && ranks_ % others == 0) {
      mesh.shard = static_cast<int>(ranks_ / others);
      choose("mesh.shard", mesh.shard);
    }
    if (mesh.shard == 0 || others * mesh.shard != ranks_) {
      problem(
          shard_alone ? "mesh.shard" : "mesh.replicate",
          fmt::format(
              "replicate {} x shard {} x expert {} x context {} must equal the {} ranks of this "
              "run",
              mesh.replicate, mesh.shard == 0 ? "auto" : std::to_string(mesh.shard), mesh.expert,
              mesh.context, ranks_));
    }
  }

  // Rank counts near `ranks` for which `fits` holds.
  template <class Fits>
  std::string nearest_counts(std::int64_t ranks, const Fits& fits) const {
    std::int64_t below = std::min(ranks - 1, c_.train.batch), above = ranks + 1;
    while (below > 0 && !fits(below)) --below;
    while (above <= c_.train.batch && !fits(above)) ++above;
    std::string text;
    if (below > 0) text = std::to_string(below);
    if (above <= c_.train.batch) text += (text.empty() ? "" : " and ") + std::to_string(above);
    return text;
  }

  void resolve_batch() {
    TrainConfig& t = c_.train;
    const std::int64_t w = data_ranks();
    const int given = (t.batch != 0) + (t.micro_batch != 0) + (t.accumulation != 0);
    if (given < 2) {
      return problem("train.batch",
                     "give two of train.batch, train.micro_batch and train.accumulation; the "
                     "third follows from batch = micro_batch x accumulation x data ranks",
                     {"train.micro_batch", "train.accumulation"});
    }
    const std::int64_t known =
        std::max<std::int64_t>(t.micro_batch, 1) * std::max<std::int64_t>(t.accumulation, 1);
    if (t.batch == 0) {
      if (known > kMaxBatch / w) {
        return problem("train.micro_batch",
                       fmt::format("micro_batch {} x accumulation {} x {} data ranks is beyond "
                                   "the limit of {}",
                                   t.micro_batch, t.accumulation, w, kMaxBatch));
      }
      choose("train.batch", t.batch = known * w);
    }
    const auto equation = [&] {
      return fmt::format("{} = micro_batch {} x accumulation {} x {} data ranks", t.batch,
                         t.micro_batch == 0 ? "auto" : std::to_string(t.micro_batch),
                         t.accumulation == 0 ? "auto" : std::to_string(t.accumulation), w);
    };
    const bool all_given = t.micro_batch != 0 && t.accumulation != 0;
    const auto fits = [&](std::int64_t n) {  // without the product, which may overflow
      if (t.batch % known != 0) return false;
      return all_given ? t.batch / known == n : t.batch / known % n == 0;
    };
    if (t.batch % known != 0) return refuse_batch(known, all_given);
    if (!fits(w)) {
      return problem("train.batch",
                     fmt::format("{} {}{}; legal numbers of data ranks nearby: {}", equation(),
                                 all_given ? "does not hold" : "has no integer solution",
                                 fitting_sizes(known, all_given), nearest_counts(w, fits)));
    }
    if (t.micro_batch == 0) choose("train.micro_batch", t.micro_batch = t.batch / (known * w));
    if (t.accumulation == 0) choose("train.accumulation", t.accumulation = t.batch / (known * w));
  }

  // What makes the batch triple fit the ranks: another given factor, or another batch.
  std::string fitting_sizes(std::int64_t known, bool all_given) const {
    const TrainConfig& t = c_.train;
    const std::int64_t w = data_ranks();
    std::string text;
    if (t.batch % w == 0) {
      const std::int64_t of_rank = t.batch / w;
      if (!all_given) {
        text = fmt::format("train.{} {}, or ", t.micro_batch != 0 ? "micro_batch" : "accumulation",
                           largest_divisor(of_rank, known));
      } else if (of_rank % t.micro_batch == 0) {
        text = fmt::format("train.accumulation {}, or ", of_rank / t.micro_batch);
      }
    }
    if (known <= kMaxBatch / w) text += "train.batch " + nearest_batches(known * w, all_given);
    if (text.ends_with(", or ")) text.resize(text.size() - 5);
    return text.empty() ? text : fmt::format("; for {} data ranks: {}", w, text);
  }

  // The multiples of `unit` around the batch; `unit` itself, when nothing is left to multiply.
  std::string nearest_batches(std::int64_t unit, bool all_given) const {
    const std::int64_t below = all_given ? 0 : c_.train.batch / unit * unit;
    return fmt::format("{}{}", below > 0 ? fmt::format("{} or ", below) : "", below + unit);
  }

  static std::int64_t largest_divisor(std::int64_t number, std::int64_t most) {
    std::int64_t best = 1;
    for (std::int64_t i = 1; i * i <= number; ++i) {
      if (number % i != 0) continue;
      for (const std::int64_t divisor : {i, number / i}) {
        if (divisor <= most) best = std::max(best, divisor);
      }
    }
    return best;
  }

  // No number of ranks helps here, only another size.
  void refuse_batch(std::int64_t known, bool all_given) {
    const TrainConfig& t = c_.train;
    const std::int64_t w = data_ranks();
    std::string fitting;
    if (known <= kMaxBatch / w) {
      fitting = fmt::format("; a train.batch that fits {} data ranks: {}", w,
                            nearest_batches(known * w, all_given));
    }
    const bool micro = t.micro_batch != 0 && t.batch % t.micro_batch != 0;
    problem(micro ? "train.micro_batch" : "train.accumulation",
            fmt::format("{} does not divide train.batch {} at any number of ranks{}",
                        !all_given ? std::to_string(known)
                                   : fmt::format("micro_batch {} x accumulation {} = {}",
                                                 t.micro_batch, t.accumulation, known),
                        t.batch, fitting),
            {"train.micro_batch", "train.batch"});
  }

  void resolve_slots() {
    const std::int64_t w = data_ranks();
    const std::int64_t micro_batches = c_.train.batch / c_.train.micro_batch;
    if (c_.reduce.slots == 0) choose("reduce.slots", c_.reduce.slots = w);
    if (c_.reduce.slots % w != 0 || micro_batches % c_.reduce.slots != 0) {
      problem(
          "reduce.slots",
          fmt::format(
              "{} slots must be a multiple of the {} data ranks and divide the {} micro-batches of "
              "a step (train.batch {} / train.micro_batch {})",
              c_.reduce.slots, w, micro_batches, c_.train.batch, c_.train.micro_batch));
    }
  }

  std::int64_t kda_width() const {
    const KdaConfig& k = c_.model.kda;
    const std::int64_t head = k.key_dim + k.value_dim + k.gate_rank;
    return c_.model.has(MixerKind::kKda) ? k.heads * head : 0;
  }
  std::int64_t mla_width() const {
    const MlaConfig& a = c_.model.mla;
    if (!c_.model.has(MixerKind::kMla)) return 0;
    return c_.model.heads * (2 * a.nope_dim + a.rope_dim + a.value_dim) + a.q_rank + a.kv_rank;
  }
  std::int64_t moe_width() const {
    const MoeConfig& e = c_.model.moe;
    if (!c_.model.has(FeedForwardKind::kMoe)) return 0;
    return (e.per_token + e.shared_experts) * e.ffn + e.experts;
  }

  // Beyond this the byte counts of the memory plan would overflow; no machine comes near.
  void check_size() {
    const ModelConfig& m = c_.model;
    const auto width = static_cast<double>(std::max(
        {m.hidden, m.ffn, m.vocab, m.heads * m.head_dim, kda_width(), mla_width(), moe_width()}));
    const double tokens =
        static_cast<double>(c_.train.micro_batch) * static_cast<double>(c_.data.sequence);
    if (static_cast<double>(m.layers) * width * tokens > 0x1p53) {
      problem("train.micro_batch",
              fmt::format("layers {} x width {:.0f} x micro_batch {} x sequence {} is too large "
                          "for any machine",
                          m.layers, width, c_.train.micro_batch, c_.data.sequence),
              {"train.batch"});
    }
  }

  // The router's choices are numbered by int32.
  void check_choices() {
    const double tokens =
        static_cast<double>(c_.train.micro_batch) * static_cast<double>(c_.data.sequence);
    const std::int64_t per_token = c_.model.moe.per_token;
    if (!c_.model.has(FeedForwardKind::kMoe) || tokens * static_cast<double>(per_token) < 0x1p31) {
      return;
    }
    problem("train.micro_batch",
            fmt::format("micro_batch {} x sequence {} x model.moe.per_token {} must be below 2^31",
                        c_.train.micro_batch, c_.data.sequence, per_token),
            {"train.batch", "data.sequence"});
  }

  void resolve_rest() {
    check_size();
    if (problems_.empty()) check_choices();
    std::error_code ignored;
    if (std::filesystem::is_directory(c_.data.train, ignored)) {
      problem("data.train",
              fmt::format(
                  "'{0}' is a folder; name the manifest in it: {1}", printable(c_.data.train),
                  printable((std::filesystem::path(c_.data.train) / "manifest.json").string())));
    }
    optim::Schedule& s = c_.optim.schedule;
    s.total = c_.train.steps;
    if (s.decay == 0)
      choose("optim.schedule.decay", s.decay = std::max<std::int64_t>(1, s.total / 10));
    c_.data.validation.seed = c_.run.seed;
    if (!c_.data.validation.documents.empty() && c_.data.validation.fraction > 0) {
      problem("data.validation.fraction", "give either documents or a fraction, not both");
    }
    if (c_.inject.step >= 0 && c_.inject.tensor.empty()) {
      problem("debug.inject.tensor",
              fmt::format("is needed when debug.inject.step is set (here {}); name a parameter, or "
                          "leave the step out",
                          c_.inject.step),
              {"debug.inject.step"});
    }
  }

  Config& c_;
  std::int64_t ranks_;
  const Places& places_;
  std::map<std::string, std::string>& chosen_;
  Problems& problems_;
};

}  // namespace

void resolve_config(Config& config, std::int64_t ranks, const Places& places,
                    std::map<std::string, std::string>& chosen, Problems& problems) {
  Resolver(config, ranks, places, chosen, problems).run();
}

}  // namespace k25::trainer
