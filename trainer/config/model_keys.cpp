#include "trainer/config/model_keys.h"

#include <algorithm>
#include <utility>

#include "trainer/config/key_kinds.h"

namespace k25::trainer {
namespace {

constexpr const char* kKnownKinds = "known mixers: gqa, kda, mla; known feed-forwards: swiglu, moe";

constexpr std::pair<const char*, MixerKind> kMixers[] = {
    {"gqa", MixerKind::kGqa}, {"kda", MixerKind::kKda}, {"mla", MixerKind::kMla}};

constexpr std::pair<const char*, FeedForwardKind> kFeedForwards[] = {
    {"swiglu", FeedForwardKind::kSwiglu}, {"moe", FeedForwardKind::kMoe}};

template <class Table>
const auto* find_name(const Table& table, const std::string& name) {
  return std::find_if(std::begin(table), std::end(table),
                      [&](const auto& entry) { return name == entry.first; });
}
template <class Table, class Kind>
const char* name_of(const Table& table, Kind kind) {
  return std::find_if(std::begin(table), std::end(table),
                      [&](const auto& entry) { return kind == entry.second; })
      ->first;
}

/// Whether `name` is MIXER/FEED-FORWARD.
bool read_kind(const std::string& name, LayerPattern& kind) {
  const std::size_t slash = name.find('/');
  if (slash == std::string::npos) return false;
  const std::string mixer = name.substr(0, slash), feed_forward = name.substr(slash + 1);
  const auto* const known = find_name(kMixers, mixer);
  const auto* const behind = find_name(kFeedForwards, feed_forward);
  if (known == std::end(kMixers) || behind == std::end(kFeedForwards)) return false;
  kind = {known->second, behind->second};
  return true;
}

Mismatch read_pattern(const YamlNode& node, Config& c, std::string& canonical) {
  const std::string expected =
      fmt::format("a list of MIXER/FEED-FORWARD, such as [gqa/swiglu]; {}", kKnownKinds);
  std::vector<std::string> names;
  Mismatch mismatch = text_list_mismatch(node, names, expected);
  if (!mismatch.expected.empty()) return mismatch;
  if (names.empty()) return expected;
  c.model.pattern.clear();
  for (std::size_t i = 0; i < names.size(); ++i) {
    LayerPattern kind;
    if (!read_kind(names[i], kind)) return {expected, fmt::format("[{}]", i), node.items[i]};
    c.model.pattern.push_back(kind);
  }
  canonical = yaml_list(names);
  return "";
}

Mismatch read_last_layer(const YamlNode& node, Config& c, std::string& canonical) {
  c.model.last_layer.reset();
  canonical = "null";
  if (is_word(node, "null")) return "";
  std::string name;
  LayerPattern kind;
  if (!read_text(node, name).empty() || !read_kind(name, kind)) {
    return fmt::format("MIXER/FEED-FORWARD, such as gqa/moe, or null; {}", kKnownKinds);
  }
  c.model.last_layer = kind;
  canonical = yaml_text(name);
  return "";
}

}  // namespace

std::string layer_name(const LayerPattern& kind) {
  return fmt::format("{}/{}", name_of(kMixers, kind.mixer),
                     name_of(kFeedForwards, kind.feed_forward));
}

std::vector<Key> model_keys() {
  return {
      text("model.preset", "null", "named sizes; keys given here win over it",
           [](Config& c) -> auto& { return c.model.preset; }),
      integer(
          "model.layers", kRequired, "number of layers",
          [](Config& c) -> auto& { return c.model.layers; }, 1, 10000),
      integer(
          "model.hidden", kRequired, "width of the residual stream",
          [](Config& c) -> auto& { return c.model.hidden; }, 1, 1 << 20),
      integer(
          "model.heads", kRequired, "query heads", [](Config& c) -> auto& { return c.model.heads; },
          1, 65536),
      integer_or(
          "model.kv_heads", "null", "key/value heads; null: as many as heads",
          [](Config& c) -> auto& { return c.model.kv_heads; }, 0, 1, 65536),
      integer_or(
          "model.head_dim", "null", "width of a head; null: hidden / heads",
          [](Config& c) -> auto& { return c.model.head_dim; }, 0, 1, 65536),
      integer(
          "model.ffn", kRequired, "inner width of the feed-forward",
          [](Config& c) -> auto& { return c.model.ffn; }, 1, 1 << 24),
      integer(
          "model.vocab", kRequired, "vocabulary; at least the corpus's",
          [](Config& c) -> auto& { return c.model.vocab; }, 1, 1 << 30),
      {.info = {"model.pattern", "list of MIXER/FEED-FORWARD", "[gqa/swiglu]",
                "layer kinds, repeated over the layers"},
       .read = read_pattern},
      {.info = {"model.last_layer", "MIXER/FEED-FORWARD | null", "null",
                "of the last layer, whatever the pattern says"},
       .read = read_last_layer},
      boolean("model.tie_embeddings", "false", "the head uses the embedding's table",
              [](Config& c) -> auto& { return c.model.tie_embeddings; }),
      number("model.rope_theta", "10000", "base of the rotary position frequencies",
             [](Config& c) -> auto& { return c.model.rope_theta; },
             {1.0, 1e300, Bound::kExclusive}),
      number("model.norm_eps", "1e-06", "epsilon inside RMSNorm",
             [](Config& c) -> auto& { return c.model.norm_eps; }, {1e-30, 1.0}),
      number("model.init_std", "0.02", "standard deviation of initial weights",
             [](Config& c) -> auto& { return c.model.init_std; }, {0.0, 10.0}),
  };
}

std::vector<Key> kda_keys() {
  using kernels::KdaBetaRange;
  using kernels::KdaGate;
  return {
      integer_or(
          "model.kda.heads", "null", "heads of kda layers; null: model.heads",
          [](Config& c) -> auto& { return c.model.kda.heads; }, 0, 1, 65536),
      integer_or(
          "model.kda.key_head_dim", "null",
          "width of a head's queries and keys; null: model.head_dim",
          [](Config& c) -> auto& { return c.model.kda.key_dim; }, 0, 1, 65536),
      integer_or(
          "model.kda.value_head_dim", "null", "width of a head's values; null: key_head_dim",
          [](Config& c) -> auto& { return c.model.kda.value_dim; }, 0, 1, 65536),
      choice("model.kda.conv_width", "4", "tokens of the convolution of q, k and v", {"4"},
             [](Config&, std::size_t) {}),
      choice("model.kda.gate", "softplus",
             "log decay of a channel: -exp(A) softplus(f), or lower_bound sigmoid(exp(A) f)",
             {"softplus", "lower_bound"},
             [](Config& c, std::size_t i) {
               c.model.kda.gate = i == 0 ? KdaGate::kSoftplus : KdaGate::kLowerBound;
             }),
      number("model.kda.lower_bound", "-5", "of the log decay, with gate: lower_bound",
             [](Config& c) -> auto& { return c.model.kda.lower_bound; },
             {-5.0, 0.0, Bound::kInclusive, Bound::kExclusive}),
      integer_or(
          "model.kda.gate_rank", "null",
          "rank of the projections of decay and output gate; null: value_head_dim",
          [](Config& c) -> auto& { return c.model.kda.gate_rank; }, 0, 1, 65536),
      choice("model.kda.beta", "1",
             "a token writes with a strength below this; 2 gives negative eigenvalues", {"1", "2"},
             [](Config& c, std::size_t i) {
               c.model.kda.beta = i == 0 ? KdaBetaRange::kOne : KdaBetaRange::kTwo;
             }),
  };
}

std::vector<Key> mla_keys() {
  return {
      integer_or(
          "model.mla.kv_rank", "null",
          "width of the row that keys and values of all heads come from, in mla layers",
          [](Config& c) -> auto& { return c.model.mla.kv_rank; }, 0, 1, 65536),
      integer_or(
          "model.mla.q_rank", "null",
          "width of the row that queries come from; null: they are projected at once",
          [](Config& c) -> auto& { return c.model.mla.q_rank; }, 0, 1, 65536),
      integer_or(
          "model.mla.nope_head_dim", "null",
          "width of a head's own part of queries and keys; null: model.head_dim",
          [](Config& c) -> auto& { return c.model.mla.nope_dim; }, 0, 1, 65536),
      integer(
          "model.mla.rope_head_dim", "0",
          "width of their further part, whose key all heads share; 0: none",
          [](Config& c) -> auto& { return c.model.mla.rope_dim; }, 0, 65536),
      integer_or(
          "model.mla.value_head_dim", "null", "width of a head's values; null: nope_head_dim",
          [](Config& c) -> auto& { return c.model.mla.value_dim; }, 0, 1, 65536),
      choice("model.mla.positions", "rope",
             "of the further part: rotary, or none as in Kimi Linear", {"rope", "none"},
             [](Config& c, std::size_t i) {
               c.model.mla.positions = i == 0 ? MlaPositions::kRope : MlaPositions::kNone;
             }),
      number("model.mla.norm_eps", "1e-06", "epsilon inside the norms of those rows",
             [](Config& c) -> auto& { return c.model.mla.norm_eps; }, {1e-30, 1.0}),
  };
}

std::vector<Key> moe_keys() {
  using kernels::NormalizeWeights;
  return {
      integer_or(
          "model.moe.experts", "null", "routed experts of a moe layer",
          [](Config& c) -> auto& { return c.model.moe.experts; }, 0, 1, 65536),
      integer_or(
          "model.moe.per_token", "null", "experts that a token goes to",
          [](Config& c) -> auto& { return c.model.moe.per_token; }, 0, 1, 1024),
      integer_or(
          "model.moe.ffn", "null", "inner width of an expert",
          [](Config& c) -> auto& { return c.model.moe.ffn; }, 0, 1, 1 << 20),
      integer(
          "model.moe.shared_experts", "0", "experts of that width that all tokens go to",
          [](Config& c) -> auto& { return c.model.moe.shared_experts; }, 0, 64),
      integer(
          "model.moe.first_dense_layers", "0",
          "first layers, whose feed-forward is swiglu whatever the pattern says",
          [](Config& c) -> auto& { return c.model.moe.first_dense_layers; }, 0, 10000),
      integer(
          "model.moe.groups", "1", "groups of neighbouring experts",
          [](Config& c) -> auto& { return c.model.moe.groups; }, 1, 64),
      integer(
          "model.moe.top_groups", "1", "groups that a token may choose from",
          [](Config& c) -> auto& { return c.model.moe.top_groups; }, 1, 64),
      integer_or(
          "model.moe.latent", "null",
          "width that routed experts work in, between a projection down and one up; null: hidden",
          [](Config& c) -> auto& { return c.model.moe.latent; }, 0, 1, 1 << 20),
      number("model.moe.scaling_factor", "1", "times the weights of the chosen experts",
             [](Config& c) -> auto& { return c.model.moe.scaling_factor; }, {1e-6, 1e6}),
      boolean_to("model.moe.renormalize", "true", "weights of a token's experts add up to one",
                 [](Config& c, bool yes) {
                   c.model.moe.renormalize = yes ? NormalizeWeights::kYes : NormalizeWeights::kNo;
                 }),
      number("model.moe.balance", "0",
             "coefficient of the loss on uneven load within a sequence (kernels/moe/balance.h); 0: "
             "none",
             [](Config& c) -> auto& { return c.model.moe.balance; }, {0.0, 1e3}),
      number("model.moe.bias_rate", "0.001",
             "by which each step moves the correction bias towards even load; 0: not at all",
             [](Config& c) -> auto& { return c.model.moe.bias_rate; }, {0.0, 1.0}),
  };
}

}  // namespace k25::trainer
