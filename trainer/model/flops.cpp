#include "trainer/model/flops.h"

#include <algorithm>

#include "kernels/core/check.h"

namespace k25::trainer {

std::int64_t checked_product(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) {
    fail(ErrorKind::kUsage, "model: it has more than 2^63 FLOPs; no machine comes near");
  }
  return product;
}

namespace {

std::int64_t checked_sum(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) {
    fail(ErrorKind::kUsage, "model: it has more than 2^63 FLOPs; no machine comes near");
  }
  return sum;
}

/// Sums and products that throw when they leave int64.
class Count {
 public:
  Count(std::int64_t n) : n_(n) {}  // NOLINT(google-explicit-constructor)
  std::int64_t n() const { return n_; }
  friend Count operator+(Count a, Count b) { return checked_sum(a.n_, b.n_); }
  friend Count operator*(Count a, Count b) { return checked_product(a.n_, b.n_); }

 private:
  std::int64_t n_;
};

Count mixer_matrices(const ModelConfig& m, MixerKind mixer) {
  const Count d = m.hidden;
  if (mixer == MixerKind::kGqa) {
    return d * (Count(2) * m.head_dim * (Count(m.heads) + m.kv_heads));
  }
  if (mixer == MixerKind::kMla) {
    const MlaConfig& a = m.mla;
    const Count heads = m.heads, rank = a.kv_rank, q_rank = a.q_rank;
    const Count queries = heads * (Count(a.nope_dim) + a.rope_dim);
    const Count of_q = a.q_rank > 0 ? q_rank * (d + queries) : d * queries;
    return of_q + d * (rank + a.rope_dim) + rank * heads * (Count(a.nope_dim) + a.value_dim) +
           heads * a.value_dim * d;
  }
  const KdaConfig& k = m.kda;
  const Count heads = k.heads, rank = k.gate_rank, key = k.key_dim, value = k.value_dim;
  return d * (heads * (Count(2) * key + value + 1) + Count(2) * rank) +
         rank * heads * (key + value) + heads * value * d;
}

Count feed_forward_matrices(const ModelConfig& m, FeedForwardKind kind) {
  const Count d = m.hidden;
  if (kind == FeedForwardKind::kSwiglu) return Count(3) * d * m.ffn;
  const MoeConfig& e = m.moe;
  const Count width = e.latent > 0 ? e.latent : m.hidden;
  const Count latent = e.latent > 0 ? Count(2) * d * width : 0;
  return d * e.experts + Count(3) * e.ffn * (width * e.per_token + d * e.shared_experts) + latent;
}

/// Of one direction of one mixer: the products that are no matrix's.
struct MixerProducts {
  Count forward = 0, backward = 0;
};

MixerProducts mixer_products(const ModelConfig& m, MixerKind mixer, std::int64_t sequence) {
  if (mixer == MixerKind::kKda) {
    const Count state = Count(m.kda.heads) * m.kda.key_dim * m.kda.value_dim;
    return {Count(6) * state, Count(12) * state};
  }
  // One product over the visible half: 2 A (T + 1) / 2.
  const Count half = Count(m.heads) * (Count(sequence) + 1);
  if (mixer == MixerKind::kMla) {
    const Count keys = half * (Count(m.mla.nope_dim) + m.mla.rope_dim),
                values = half * m.mla.value_dim;
    return {keys + values, Count(3) * keys + Count(2) * values};
  }
  const Count square = half * m.head_dim;
  return {Count(2) * square, Count(5) * square};
}

}  // namespace

bool contains_layer(const std::vector<LayerRange>& ranges, std::int64_t layer) {
  return std::any_of(ranges.begin(), ranges.end(), [&](const LayerRange& r) {
    return layer + 1 >= r.first && layer + 1 <= r.last;
  });
}

TokenFlops token_flops(const ModelConfig& m, std::int64_t sequence,
                       const std::vector<LayerRange>& recomputed, LogitsFormed logits) {
  Count matrices = 0, matrices_again = 0, forward = 0, forward_again = 0, backward = 0, model = 0;
  for (std::int64_t i = 0; i < m.layers; ++i) {
    const LayerPattern kind = m.kind(i);
    const Count layer = mixer_matrices(m, kind.mixer) + feed_forward_matrices(m, kind.feed_forward);
    const MixerProducts products = mixer_products(m, kind.mixer, sequence);
    matrices = matrices + layer;
    forward = forward + products.forward;
    backward = backward + products.backward;
    if (!contains_layer(recomputed, i)) continue;
    matrices_again = matrices_again + layer;
    forward_again = forward_again + products.forward;
  }
  const Count head = Count(m.hidden) * m.vocab;
  model = Count(6) * (matrices + head) + Count(3) * forward;
  const Count of_head = Count(logits == LogitsFormed::kTwice ? 6 : 4) * head;
  return {.model = model.n(),
          .forward_products = (Count(2) * (matrices + head)).n(),
          .backward_products = (Count(4) * matrices + of_head + Count(2) * matrices_again).n(),
          .forward_attention = forward.n(),
          .recomputed_attention = forward_again.n(),
          .backward_attention = backward.n()};
}

}  // namespace k25::trainer
