#include "kernels/attention/attention_cudnn_graphs.h"

namespace k25::kernels {
namespace {

using Strides = AttentionEngineKey::Strides;

constexpr std::int64_t kRowAxis = 2, kColumnAxis = 3;

/// Tensors of the shapes attention is made of.
class Builder {
 public:
  Builder(const AttentionEngineKey& key, CudnnGraph& graph) : key_(key), graph_(graph) {}

  /// [B, heads, T, E]
  CudnnTensor heads(CudnnOperand operand, std::int64_t heads, const Strides& strides) {
    return graph_.operand(static_cast<std::int64_t>(operand), CUDNN_DATA_BFLOAT16,
                          {key_.batch, heads, key_.tokens, key_.head_dim}, by_token(strides));
  }
  /// [B, heads, E, T] of the same memory
  CudnnTensor columns(CudnnOperand operand, std::int64_t heads, const Strides& strides) {
    return graph_.operand(static_cast<std::int64_t>(operand), CUDNN_DATA_BFLOAT16,
                          {key_.batch, heads, key_.head_dim, key_.tokens},
                          {strides[0], strides[2], 1, strides[1]});
  }
  CudnnTensor per_query(CudnnOperand operand) {
    return graph_.operand(static_cast<std::int64_t>(operand), CUDNN_DATA_FLOAT, query_shape(),
                          {key_.heads * key_.tokens, key_.tokens, 1, 1});
  }
  CudnnTensor scalar(CudnnOperand operand) {
    return graph_.scalar(static_cast<std::int64_t>(operand));
  }

  CudnnShape query_shape() const { return {key_.batch, key_.heads, key_.tokens, 1}; }
  CudnnShape heads_shape() const { return {key_.batch, key_.heads, key_.tokens, key_.head_dim}; }
  CudnnShape score_shape() const { return {key_.batch, key_.heads, key_.tokens, key_.tokens}; }
  static CudnnShape by_token(const Strides& strides) {
    return {strides[0], strides[2], strides[1], 1};
  }

  /// Scores with minus infinity where the key lies behind the query, or before its document.
  CudnnTensor hide(CudnnTensor scores) {
    const CudnnTensor hidden = scalar(CudnnOperand::kHidden);
    if (key_.document_stride > 0) {
      const CudnnTensor begin = graph_.operand(static_cast<std::int64_t>(CudnnOperand::kDocBegin),
                                               CUDNN_DATA_INT32, {key_.batch, 1, key_.tokens, 1},
                                               {key_.document_stride, key_.document_stride, 1, 1});
      const CudnnTensor column = graph_.index(scores, kColumnAxis, CUDNN_DATA_INT32);
      scores = graph_.select(scores, hidden, graph_.compare(CUDNN_POINTWISE_CMP_GE, column, begin));
    }
    const CudnnTensor row = graph_.index(scores, kRowAxis, CUDNN_DATA_FLOAT);
    const CudnnTensor column = graph_.index(scores, kColumnAxis, CUDNN_DATA_FLOAT);
    return graph_.select(scores, hidden, graph_.compare(CUDNN_POINTWISE_CMP_GE, row, column));
  }

  /// bf16, [B, H, keys, queries] of scores
  CudnnTensor turned(const CudnnTensor& scores) {
    const std::int64_t t = key_.tokens;
    const CudnnTensor y =
        graph_.value(CUDNN_DATA_BFLOAT16, score_shape(), {key_.heads * t * t, t * t, 1, t});
    graph_.reshape(scores, y);
    return y;
  }

  /// y = a b, heads of a group of queries added up.
  void grouped_product(const CudnnTensor& a, const CudnnTensor& b, const CudnnTensor& y) {
    if (key_.heads == key_.kv_heads) return graph_.matmul(a, b, y);
    const CudnnTensor each = graph_.value(CUDNN_DATA_BFLOAT16, heads_shape());
    graph_.matmul(a, b, each);
    graph_.reduce(CUDNN_REDUCE_TENSOR_ADD, each, y);
  }

 private:
  const AttentionEngineKey& key_;
  CudnnGraph& graph_;
};

}  // namespace

void describe_attention_forward(const AttentionEngineKey& key, CudnnGraph& graph) {
  Builder build(key, graph);
  const CudnnTensor q = build.heads(CudnnOperand::kQ, key.heads, key.q);
  const CudnnTensor k = build.columns(CudnnOperand::kK, key.kv_heads, key.k);
  const CudnnTensor v = build.heads(CudnnOperand::kV, key.kv_heads, key.v);
  const CudnnTensor out = build.heads(CudnnOperand::kOut, key.heads, key.out);
  const CudnnTensor lse = build.per_query(CudnnOperand::kLse);

  const CudnnTensor products = graph.value(CUDNN_DATA_FLOAT, build.score_shape());
  graph.matmul(q, k, products);
  const CudnnTensor scaled =
      graph.pointwise(CUDNN_POINTWISE_MUL, products, build.scalar(CudnnOperand::kScale));
  const CudnnTensor scores = build.hide(scaled);

  const CudnnTensor largest = graph.value(CUDNN_DATA_FLOAT, build.query_shape());
  graph.reduce(CUDNN_REDUCE_TENSOR_MAX, scores, largest);
  const CudnnTensor below = graph.pointwise(CUDNN_POINTWISE_SUB, scores, largest);
  const CudnnTensor weights = graph.pointwise(CUDNN_POINTWISE_EXP, below);
  const CudnnTensor sum = graph.value(CUDNN_DATA_FLOAT, build.query_shape());
  graph.reduce(CUDNN_REDUCE_TENSOR_ADD, weights, sum);
  const CudnnTensor log_sum = graph.pointwise(CUDNN_POINTWISE_LOG, sum);
  graph.pointwise_into(CUDNN_POINTWISE_ADD, largest, &log_sum, lse);
  const CudnnTensor p = graph.value(CUDNN_DATA_BFLOAT16, build.score_shape());
  graph.pointwise_into(CUDNN_POINTWISE_DIV, weights, &sum, p);
  graph.matmul(p, v, out);
}

void describe_attention_backward(const AttentionEngineKey& key, CudnnGraph& graph) {
  Builder build(key, graph);
  const CudnnTensor q = build.heads(CudnnOperand::kQ, key.heads, key.q);
  const CudnnTensor k = build.columns(CudnnOperand::kK, key.kv_heads, key.k);
  const CudnnTensor v = build.columns(CudnnOperand::kV, key.kv_heads, key.v);
  const CudnnTensor out = build.heads(CudnnOperand::kOut, key.heads, key.out);
  const CudnnTensor dout = build.heads(CudnnOperand::kDout, key.heads, key.dout);
  const CudnnTensor lse = build.per_query(CudnnOperand::kLse);
  const CudnnTensor dq = build.heads(CudnnOperand::kDq, key.heads, key.dq);
  const CudnnTensor dk = build.heads(CudnnOperand::kDk, key.kv_heads, key.dk);
  const CudnnTensor dv = build.heads(CudnnOperand::kDv, key.kv_heads, key.dv);

  // delta = sum_e dout out. The library wants a factor behind the sum.
  const CudnnTensor terms = graph.pointwise(CUDNN_POINTWISE_MUL, dout, out);
  const CudnnTensor sum = graph.value(CUDNN_DATA_FLOAT, build.query_shape());
  graph.reduce(CUDNN_REDUCE_TENSOR_ADD, terms, sum);
  const CudnnTensor one = build.scalar(CudnnOperand::kOne);
  const CudnnTensor delta = build.per_query(CudnnOperand::kDelta);
  graph.pointwise_into(CUDNN_POINTWISE_MUL, sum, &one, delta);

  // p = exp(scale q k - lse), dv = p^T dout
  const CudnnTensor products = graph.value(CUDNN_DATA_FLOAT, build.score_shape());
  graph.matmul(q, k, products);
  const CudnnTensor scale = build.scalar(CudnnOperand::kScale);
  const CudnnTensor scaled = graph.pointwise(CUDNN_POINTWISE_MUL, products, scale);
  const CudnnTensor below = graph.pointwise(CUDNN_POINTWISE_SUB, scaled, lse);
  const CudnnTensor p = graph.pointwise(CUDNN_POINTWISE_EXP, build.hide(below));
  build.grouped_product(build.turned(p), dout, dv);

  // ds = scale p (dout v - delta), dk = ds^T q, dq = ds k
  const CudnnTensor dp = graph.value(CUDNN_DATA_FLOAT, build.score_shape());
  graph.matmul(dout, v, dp);
  const CudnnTensor centred = graph.pointwise(CUDNN_POINTWISE_SUB, dp, delta);
  const CudnnTensor weighted = graph.pointwise(CUDNN_POINTWISE_MUL, centred, p);
  const CudnnTensor ds = graph.pointwise(CUDNN_POINTWISE_MUL, weighted, scale);
  build.grouped_product(build.turned(ds), q, dk);
  const CudnnTensor k_rows =
      graph.value(CUDNN_DATA_BFLOAT16, {key.batch, key.kv_heads, key.tokens, key.head_dim},
                  Builder::by_token(key.k));
  graph.reshape(k, k_rows);
  graph.matmul(ds, k_rows, dq);
}

}  // namespace k25::kernels
