#include "trainer/model/flops.h"

#include "kernels/core/check.h"

namespace k25::trainer {
namespace {

std::int64_t checked_sum(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) {
    fail(ErrorKind::kUsage, "model: it has more than 2^63 FLOPs; no machine comes near");
  }
  return sum;
}

}  // namespace

std::int64_t checked_product(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) {
    fail(ErrorKind::kUsage, "model: it has more than 2^63 FLOPs; no machine comes near");
  }
  return product;
}

TokenFlops token_flops(const ModelConfig& m, std::int64_t sequence, std::int64_t recomputed,
                       LogitsFormed logits) {
  const std::int64_t attention = checked_product(m.heads, m.head_dim);
  const std::int64_t kv = checked_product(m.kv_heads, m.head_dim);
  const std::int64_t widths =
      checked_sum(checked_product(2, checked_sum(attention, kv)), checked_product(3, m.ffn));
  const std::int64_t layer = checked_product(m.hidden, widths);
  const std::int64_t layers = checked_product(m.layers, layer);
  const std::int64_t head = checked_product(m.hidden, m.vocab);
  // One product over the visible half: 2 A (T + 1) / 2.
  const std::int64_t square = checked_product(attention, sequence + 1);
  TokenFlops f;
  f.forward_products = checked_product(2, checked_sum(layers, head));
  f.backward_products =
      checked_sum(checked_product(4, layers),
                  checked_sum(checked_product(logits == LogitsFormed::kTwice ? 6 : 4, head),
                              checked_product(2, checked_product(recomputed, layer))));
  f.forward_attention = checked_product(2 * m.layers, square);
  f.recomputed_attention = checked_product(2 * recomputed, square);
  f.backward_attention = checked_product(5 * m.layers, square);
  f.model =
      checked_sum(checked_product(3, f.forward_products), checked_product(3, f.forward_attention));
  return f;
}

}  // namespace k25::trainer
