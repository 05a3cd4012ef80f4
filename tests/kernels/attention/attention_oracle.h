#pragma once
// Attention as the formula says it, with the T x T matrix, in any scalar; and one test problem.

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/attention/attention.h"
#include "tests/kernels/op_test.h"

namespace k25::attention_test {

using kernels::AttentionDesc;
using kernels::Masking;
using op_test::GuardedTensor;
using op_test::Layout;
using Documents = std::vector<std::vector<std::int64_t>>;  ///< lengths, for each sequence

inline AttentionDesc desc_of(std::int64_t batch, std::int64_t tokens, std::int64_t heads,
                             std::int64_t kv_heads, std::int64_t head_dim,
                             DType dtype = DType::kFloat64, Masking masking = Masking::kCausal) {
  AttentionDesc d;
  d.batch = batch;
  d.tokens = tokens;
  d.heads = heads;
  d.kv_heads = kv_heads;
  d.head_dim = head_dim;
  d.dtype = dtype;
  d.masking = masking;
  return d;
}

inline std::int64_t query_tile() {
  return kernels::attention_plan(desc_of(1, 1, 1, 1, 1)).query_tile;
}

struct Naive {
  std::vector<double> out, lse, dq, dk, dv;
};

inline std::int64_t value_dim(const AttentionDesc& d) {
  return d.value_dim != 0 ? d.value_dim : d.head_dim;
}

/// Operands of one problem. Without documents each sequence is one.
struct Problem {
  AttentionDesc desc;
  Documents documents;
  GuardedTensor q, k, v, out, lse, dout, dq, dk, dv, doc_begin, doc_end;

  Problem(const AttentionDesc& d, Documents docs, Layout layout = {})
      : desc(d),
        documents(std::move(docs)),
        q(d.dtype, {d.batch, d.tokens, d.heads, d.head_dim}, layout),
        k(d.dtype, {d.batch, d.tokens, d.kv_heads, d.head_dim}, layout),
        v(d.dtype, {d.batch, d.tokens, d.kv_heads, value_dim(d)}, layout),
        out(d.dtype, {d.batch, d.tokens, d.heads, value_dim(d)}, layout),
        lse(lse_type(), {d.batch, d.heads, d.tokens}, layout),
        dout(d.dtype, {d.batch, d.tokens, d.heads, value_dim(d)}, layout),
        dq(d.dtype, {d.batch, d.tokens, d.heads, d.head_dim}, layout),
        dk(d.dtype, {d.batch, d.tokens, d.kv_heads, d.head_dim}, layout),
        dv(d.dtype, {d.batch, d.tokens, d.kv_heads, value_dim(d)}, layout),
        doc_begin(DType::kInt32, {d.batch, d.tokens}, layout),
        doc_end(DType::kInt32, {d.batch, d.tokens}, layout) {
    q.set(op_test::random_values("q", q.count(), -2, 2));
    k.set(op_test::random_values("k", k.count(), -2, 2));
    v.set(op_test::random_values("v", v.count()));
    dout.set(op_test::random_values("dout", dout.count()));
    for (std::int64_t b = 0; b < static_cast<std::int64_t>(documents.size()); ++b) {
      std::int64_t t = 0;
      for (const std::int64_t length : documents[static_cast<std::size_t>(b)]) {
        for (std::int64_t i = t; i < t + length; ++i) {
          doc_begin.set(b * d.tokens + i, static_cast<double>(t));
          doc_end.set(b * d.tokens + i, static_cast<double>(t + length));
        }
        t += length;
      }
      if (t != d.tokens) std::abort();
    }
  }

  DType lse_type() const {
    return desc.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  }
  ConstTensor begins() const { return documents.empty() ? ConstTensor() : ConstTensor(doc_begin); }
  ConstTensor ends() const { return documents.empty() ? ConstTensor() : ConstTensor(doc_end); }

  void forward(Context& ctx) {
    const auto plan = kernels::attention_plan(desc);
    const op_test::Scratch scratch(plan.workspace_bytes);
    kernels::attention_forward(ctx, plan, {q, k, v, begins(), ends()}, {out, lse},
                               scratch.workspace());
  }
  void backward(Context& ctx) {
    const auto plan = kernels::attention_plan(desc);
    const op_test::Scratch scratch(plan.workspace_bytes);
    kernels::attention_backward(ctx, plan, {q, k, v, begins(), ends(), out, lse, dout},
                                {dq, dk, dv}, scratch.workspace());
  }
  bool guards_intact() const {
    for (const GuardedTensor* t : {&q, &k, &v, &out, &lse, &dout, &dq, &dk, &dv}) {
      if (!t->guards_intact()) return false;
    }
    return true;
  }

  /// The keys query i of sequence b sees.
  std::pair<std::int64_t, std::int64_t> visible(std::int64_t b, std::int64_t i) const {
    std::int64_t first = 0, end = desc.tokens;
    if (!documents.empty()) {
      first = static_cast<std::int64_t>(doc_begin.get(b * desc.tokens + i));
      end = static_cast<std::int64_t>(doc_end.get(b * desc.tokens + i));
    }
    if (desc.masking == Masking::kCausal) end = i + 1;
    return {first, end};
  }

  /// All results in the scalar S, from the operands as stored.
  template <class S>
  Naive naive() const;
};

template <class S>
Naive Problem::naive() const {
  using std::exp;
  using std::log;
  const AttentionDesc& d = desc;
  const double scale = d.scale != 0 ? d.scale : 1 / std::sqrt(static_cast<double>(d.head_dim));
  const std::int64_t group = d.heads / d.kv_heads, dim = d.head_dim, width = value_dim(d);
  const auto size = [](const GuardedTensor& t) { return static_cast<std::size_t>(t.count()); };
  std::vector<S> o(size(out)), l(size(lse));
  std::vector<S> gq(size(q), S(0)), gk(size(k), S(0)), gv(size(v), S(0));
  const auto row = [&](std::int64_t b, std::int64_t t, std::int64_t h, std::int64_t heads) {
    return (b * d.tokens + t) * heads + h;
  };
  const auto value = [](const GuardedTensor& t, std::int64_t i) {
    return static_cast<S>(t.get(i));
  };
  const auto index = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  for (std::int64_t b = 0; b < d.batch; ++b) {
    for (std::int64_t h = 0; h < d.heads; ++h) {
      for (std::int64_t i = 0; i < d.tokens; ++i) {
        const auto [first, end] = visible(b, i);
        const std::int64_t query = row(b, i, h, d.heads);
        const std::int64_t qi = query * dim, oi = query * width;
        std::vector<S> p(index(end - first));
        double largest = -HUGE_VAL;
        for (std::int64_t j = first; j < end; ++j) {
          const std::int64_t kj = row(b, j, h / group, d.kv_heads) * dim;
          S s(0);
          for (std::int64_t e = 0; e < dim; ++e) s += value(q, qi + e) * value(k, kj + e);
          p[index(j - first)] = s * S(scale);
          largest = std::max(largest, static_cast<double>(p[index(j - first)]));
        }
        S sum(0);
        for (S& x : p) sum += x = exp(x - S(largest));
        for (S& x : p) x = x / sum;
        l[index((b * d.heads + h) * d.tokens + i)] = S(largest) + log(sum);
        S delta(0);
        for (std::int64_t e = 0; e < width; ++e) {
          S total(0);
          for (std::int64_t j = first; j < end; ++j) {
            total += p[index(j - first)] * value(v, row(b, j, h / group, d.kv_heads) * width + e);
          }
          o[index(oi + e)] = total;
          delta += value(dout, oi + e) * total;
        }
        for (std::int64_t j = first; j < end; ++j) {
          const std::int64_t key = row(b, j, h / group, d.kv_heads);
          const std::int64_t kj = key * dim, vj = key * width;
          const S pj = p[index(j - first)];
          S dp(0);
          for (std::int64_t e = 0; e < width; ++e) {
            dp += value(dout, oi + e) * value(v, vj + e);
            gv[index(vj + e)] += pj * value(dout, oi + e);
          }
          const S ds = pj * (dp - delta) * S(scale);
          for (std::int64_t e = 0; e < dim; ++e) {
            gk[index(kj + e)] += ds * value(q, qi + e);
            gq[index(qi + e)] += ds * value(k, kj + e);
          }
        }
      }
    }
  }
  const auto doubles = [](const std::vector<S>& x) {
    std::vector<double> y;
    for (const S& e : x) y.push_back(static_cast<double>(e));
    return y;
  };
  return {doubles(o), doubles(l), doubles(gq), doubles(gk), doubles(gv)};
}

}  // namespace k25::attention_test
