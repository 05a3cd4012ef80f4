#include "trainer/plan/step_work.h"

#include <fmt/format.h>

#include <algorithm>

#include "trainer/train/memory_plan.h"

namespace k25::trainer {
namespace {

using parallel::UnitUse;

/// The calls that Model::forward and Model::backward make on the store.
std::vector<UnitUse> uses_of_micro_batch(const Model& model, std::int64_t layers, bool tied) {
  const int last = static_cast<int>(layers) + 1;
  const int head = tied ? 0 : static_cast<int>(model.units().size()) - 2;
  const auto unit = [&](int position) { return position == last ? head : position; };
  using Kind = UnitUse::Kind;
  std::vector<UnitUse> uses;
  for (int p = 0; p < last; ++p) {
    uses.push_back({Kind::kAcquire, unit(p)});
    uses.push_back({Kind::kPrefetch, unit(p + 1)});
    uses.push_back({Kind::kReleaseForward, unit(p)});
  }
  for (int p = last; p >= 1; --p) {  // the head is used once, for both directions
    uses.push_back({Kind::kAcquire, unit(p)});
    if (p > 1) uses.push_back({Kind::kPrefetch, unit(p - 1)});
    uses.push_back({Kind::kReleaseBackward, unit(p)});
  }
  return uses;
}

/// Bytes for one token that elementwise kernels of one layer read and write.
struct TokenBytes {
  std::int64_t forward = 0, backward = 0;
  std::int64_t cheap = 0;  ///< formed again with recompute.cheap
};

TokenBytes mla_bytes(const ModelConfig& m, std::int64_t size) {
  const MlaConfig& a = m.mla;
  const std::int64_t latent = (a.kv_rank + a.q_rank) * size;
  const std::int64_t own = m.heads * a.nope_dim * size, shared = a.rope_dim * size;
  // q's part and the shared key rotated in place; keys put together, or taken apart.
  const std::int64_t rotated = a.rotates() ? 2 * (m.heads + 1) * shared : 0;
  const std::int64_t keys = a.rope_dim > 0 ? 2 * own + (m.heads + 1) * shared : 0;
  return {2 * latent + rotated + keys, 3 * latent + rotated + keys, 2 * latent + keys};
}

TokenBytes mixer_bytes(const ModelConfig& m, MixerKind mixer, std::int64_t size) {
  if (mixer == MixerKind::kGqa) {  // q and k rotated in place
    const std::int64_t rotated = 2 * (m.heads + m.kv_heads) * m.head_dim * size;
    return {rotated, rotated};
  }
  if (mixer == MixerKind::kMla) return mla_bytes(m, size);
  const KdaConfig& k = m.kda;
  const std::int64_t keys = k.heads * k.key_dim, values = k.heads * k.value_dim;
  const std::int64_t channels = 2 * keys + values, decay = keys * (size + 4);  // f to an fp32 g
  // Convolution 2 C, L2 norm of q and k in place, recurrence q, k, v, g, o, gated norm 3 V.
  const std::int64_t forward =
      (2 * channels + 4 * keys + channels + values + 3 * values) * size + decay + 4 * keys;
  // Gated norm 5 V; the decay again; recurrence q, k, v, o's gradient, g and five gradients; L2
  // norm 3 of q and of k; convolution 3 C; the gate's g, f and gradient.
  const std::int64_t backward =
      (5 * values + 2 * channels + values + 6 * keys + 3 * channels) * size + decay + 8 * keys +
      keys * (2 * size + 4);
  return {forward, backward, 3 * values * size};
}

TokenBytes feed_forward_bytes(const ModelConfig& m, FeedForwardKind kind, std::int64_t size) {
  const std::int64_t d = m.hidden * size, f = m.ffn * size;
  if (kind == FeedForwardKind::kSwiglu) return {3 * f, 5 * f, f};
  const MoeConfig& e = m.moe;
  const std::int64_t width = (e.latent > 0 ? e.latent : m.hidden) * size, k = e.per_token;
  const std::int64_t inner = (k + e.shared_experts) * e.ffn * size;
  const bool latent = e.latent > 0, shared = e.shared_experts > 0, rounded = size < 4;
  // Scores in place; permute 2 k rows, SwiGLU, combine k rows to one; norm, sum.
  const std::int64_t forward = 8 * e.experts + 2 * k * width + 3 * inner + (k + 1) * width +
                               (latent ? 2 * width : 0) + (shared ? 3 * d : 0);
  // Permuted again 2 k, combine 3 k, SwiGLU, k rows back to one, norm; the scores' gradient,
  // rounded for its products; sums of the parts' gradients.
  const std::int64_t backward = 2 * k * width + 3 * k * width + 5 * inner + (k + 1) * width +
                                (latent ? 3 * width : 0) +
                                (8 + (rounded ? 4 + size : 0)) * e.experts + (shared ? 6 : 3) * d;
  return {forward, backward, e.shared_experts * e.ffn * size};
}

/// Bytes of elementwise kernels in one micro-batch: rows that each reads and writes.
void count_moved(const Config& config, StepWork& work) {
  const ModelConfig& m = config.model;
  const std::int64_t rows = config.train.micro_batch * config.data.sequence;
  const std::int64_t size = dtype_bytes(config.train.precision);
  const std::int64_t d = m.hidden * size;
  // Logits in fp32 are read; in backward they are read and their gradient is written.
  const std::int64_t logits = m.vocab * 4, logit_gradients = m.vocab * (4 + size);
  std::int64_t forward = 4 * d + logits, backward = 5 * d + logit_gradients;
  for (std::int64_t i = 0; i < m.layers; ++i) {
    const LayerPattern kind = m.kind(i);
    const TokenBytes mixer = mixer_bytes(m, kind.mixer, size);
    const TokenBytes feed_forward = feed_forward_bytes(m, kind.feed_forward, size);
    // A layer formed again: norm 2 D, norm with residual 4 D. In forward the first norm adds the
    // layer before, and the last norm the last layer.
    const std::int64_t inner = 6 * d + mixer.forward + feed_forward.forward;
    forward += inner + 2 * d;
    backward += 8 * d + mixer.backward + feed_forward.backward;  // two norms 4 D each
    if (contains_layer(config.recompute.layers, i)) {
      backward += inner;
    } else if (config.recompute.cheap) {
      backward += 4 * d + mixer.cheap + feed_forward.cheap;
    }
  }
  work.forward.moved = {rows * forward};
  work.backward.moved = {rows * backward};
}

/// What a step moves that does not grow with its tokens.
Bytes count_update(const MemoryPlan& plan, const parallel::ZeroTraffic& traffic) {
  const std::int64_t elements = plan.zero.masters.n / 4;
  // AdamW reads four numbers and writes three; the norm reads.
  const std::int64_t optimizer = elements * (7 + 1) * 4;
  // Products, which most of a gradient is, are written where it is formed. What is reduced is
  // looked at before, and the shard of the sums zeroed.
  const std::int64_t gradients =
      traffic.reductions == 0 ? 0 : elements * 4 + traffic.reduced.n + traffic.reduce_local.n;
  return {optimizer + gradients + traffic.formed.n};
}

/// Bytes at one network card when `total` bytes are gathered over `ranks` neighbours.
std::int64_t gather_at_network(std::int64_t total, std::int64_t ranks, const Cluster& cluster) {
  const std::int64_t nodes = (ranks + cluster.per_node - 1) / cluster.per_node;
  return total / nodes * (nodes - 1) / std::min(ranks, cluster.per_node);
}

void count_network(const Config& config, const parallel::ZeroOptions& options,
                   const Cluster& cluster, StepWork& work) {
  if (cluster.nodes() == 1) return;
  const std::int64_t shards = config.mesh.shard;
  const std::int64_t ranks = shards * config.mesh.replicate;
  work.gather_network = {gather_at_network(work.traffic.gathered.n, shards, cluster)};
  // The ordered sum sends every slice to its owner by itself; the library adds up within the node
  // first.
  work.reduce_network =
      options.mode == parallel::ReduceMode::kOrdered
          ? Bytes{work.traffic.reduce_wire.n / std::max<std::int64_t>(1, ranks - 1) *
                  (ranks - cluster.per_node)}
          : Bytes{gather_at_network(work.traffic.reduced.n, ranks, cluster)};
}

void count_windows(const parallel::ZeroOptions& options, StepWork& work) {
  using parallel::ReshardAfter;
  const std::int64_t n = work.micro_batches;
  const bool each = options.reshard_after != ReshardAfter::kStep;
  work.gathering_forwards = each ? n : 1;
  work.gathering_backwards = options.reshard_after == ReshardAfter::kForward ? n : 0;
  const std::int64_t slots = n / options.micro_batches_per_slot;
  work.reducing_backwards = options.mode == parallel::ReduceMode::kOrdered         ? slots
                            : options.reduce_after == parallel::ReduceAfter::kStep ? 1
                                                                                   : n;
}

struct PassTime {
  double products = 0.0, attention = 0.0, moved = 0.0;
  double total() const { return products + attention + moved; }
};

PassTime time_of(const PassWork& work, const Ceilings& c) {
  const auto seconds = [](std::int64_t amount, const std::optional<double>& rate, double unit) {
    return amount == 0 ? 0.0 : static_cast<double>(amount) / (*rate * unit);
  };
  return {seconds(work.product_flops, c.gemm_tflop, 1e12),
          seconds(work.attention_forward_flops, c.attention_forward_tflop, 1e12) +
              seconds(work.attention_backward_flops, c.attention_backward_tflop, 1e12),
          seconds(work.moved.n, c.copy_gb, 1e9)};
}

/// Seconds over the links within a node and the network between nodes, at the same time.
double transfer_seconds(Bytes wire, double link_gb, Bytes network,
                        const std::optional<double>& network_gb) {
  const double inside = static_cast<double>(wire.n) / (link_gb * 1e9);
  if (network.n == 0) return inside;
  return std::max(inside, static_cast<double>(network.n) / (*network_gb * 1e9));
}

std::string missing_ceiling(const StepWork& work, const Card& card) {
  const Ceilings& c = card.ceilings;
  std::string missing;
  const auto need = [&](const std::optional<double>& value, const char* name) {
    if (!value) missing += (missing.empty() ? "" : ", ") + std::string(name);
  };
  need(c.copy_gb, "copy");
  need(c.gemm_tflop, "matrix product");
  need(c.attention_forward_tflop, "attention forward");
  need(c.attention_backward_tflop, "attention backward");
  if (work.traffic.gather_wire.n > 0) need(c.all_gather_gb, "all-gather");
  if (work.traffic.reduce_wire.n > 0) need(c.reduce_scatter_gb, "reduce-scatter");
  if (work.gather_network.n + work.reduce_network.n > 0) need(card.network_gb, "network");
  return missing.empty() ? missing : "not known: " + missing;
}

}  // namespace

std::int64_t recomputed_layers(const Config& config) {
  std::int64_t n = 0;
  for (const LayerRange& range : config.recompute.layers) n += range.last - range.first + 1;
  return n;
}

StepWork count_step(const Config& config, const Model& model, const parallel::ZeroOptions& options,
                    const Cluster& cluster) {
  StepWork work;
  work.logits = model.logits_formed();
  work.token =
      token_flops(config.model, config.data.sequence, config.recompute.layers, work.logits);
  work.tokens = checked_product(config.train.batch, config.data.sequence);
  work.model_flops = checked_product(work.tokens, work.token.model);
  work.hardware_flops = checked_product(work.tokens, work.token.hardware());
  work.micro_batches = config.train.accumulation;
  const std::int64_t rows = config.train.micro_batch * config.data.sequence;
  const TokenFlops& t = work.token;
  work.forward = {.product_flops = checked_product(rows, t.forward_products),
                  .attention_forward_flops = checked_product(rows, t.forward_attention)};
  work.backward = {.product_flops = checked_product(rows, t.backward_products),
                   .attention_forward_flops = checked_product(rows, t.recomputed_attention),
                   .attention_backward_flops = checked_product(rows, t.backward_attention)};
  count_moved(config, work);
  work.traffic = parallel::plan_traffic(
      model.units(), config.mesh, options,
      uses_of_micro_batch(model, config.model.layers, config.model.tie_embeddings));
  work.update = count_update(plan_memory(config, model, options), work.traffic);
  count_network(config, options, cluster, work);
  count_windows(options, work);
  return work;
}

std::optional<StepTime> predict_step(const StepWork& work, const Card& card, DType precision,
                                     int prefetch, std::string& why) {
  const Ceilings& c = card.ceilings;
  if (c.precision != precision) {
    why = fmt::format("ceilings are for {}, train.precision is {}", dtype_name(c.precision),
                      dtype_name(precision));
    return std::nullopt;
  }
  if (work.traffic.device_to_host.n > 0) {
    why = "an offloaded update runs at the host's memory bandwidth, which no ceiling tells";
    return std::nullopt;
  }
  why = missing_ceiling(work, card);
  if (!why.empty()) return std::nullopt;
  const PassTime forward = time_of(work.forward, c), backward = time_of(work.backward, c);
  const auto n = static_cast<double>(work.micro_batches);
  StepTime time{.products = n * (forward.products + backward.products),
                .attention = n * (forward.attention + backward.attention),
                .moved = n * (forward.moved + backward.moved) +
                         static_cast<double>(work.update.n) / (*c.copy_gb * 1e9)};
  time.gather = transfer_seconds(work.traffic.gather_wire, c.all_gather_gb.value_or(1),
                                 work.gather_network, card.network_gb);
  time.reduce = transfer_seconds(work.traffic.reduce_wire, c.reduce_scatter_gb.value_or(1),
                                 work.reduce_network, card.network_gb);
  const double beside_gather =
      prefetch == 0 ? 0.0
                    : static_cast<double>(work.gathering_forwards) * forward.total() +
                          static_cast<double>(work.gathering_backwards) * backward.total();
  const double beside_reduce = static_cast<double>(work.reducing_backwards) * backward.total();
  time.exposed =
      std::max(0.0, time.gather - beside_gather) + std::max(0.0, time.reduce - beside_reduce);
  return time;
}

}  // namespace k25::trainer
