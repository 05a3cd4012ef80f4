#pragma once
// Asymmetric window attention as the definition says it: every query asks every key whether it is
// visible. In any scalar; and one test problem.

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/attention/awa.h"
#include "tests/kernels/op_test.h"

namespace k25::awa_test {

using kernels::AwaDesc;
using op_test::GuardedTensor;
using op_test::Layout;
using Rows = std::vector<std::vector<std::int64_t>>;  ///< a row for each sequence

struct Naive {
  std::vector<double> out, lse, score_mean, dq, dk, dv, d_summary_k, d_summary_v;
};

/// Operands of one problem. `documents`: lengths; none: each sequence is one. `summary_ends`: none:
/// there are no summaries. `appendix`: marks; none: nothing is hidden.
struct Problem {
  AwaDesc desc;
  Rows documents, summary_ends, appendices;
  GuardedTensor q, k, v, out, lse, score_mean, dout, dq, dk, dv;
  GuardedTensor summary_k, summary_v, d_summary_k, d_summary_v;
  GuardedTensor doc_begin, doc_end, appendix, summary_end;

  explicit Problem(const AwaDesc& wanted, Rows docs = {}, Rows ends = {}, Rows marks = {},
                   Layout layout = {})
      : desc(kernels::awa_plan(wanted).desc),
        documents(std::move(docs)),
        summary_ends(std::move(ends)),
        appendices(std::move(marks)),
        q(of_heads(desc.heads, desc.head_dim, layout)),
        k(of_heads(desc.kv_heads, desc.head_dim, layout)),
        v(of_heads(desc.kv_heads, desc.value_dim, layout)),
        out(of_heads(desc.heads, desc.value_dim, layout)),
        lse(sum_type(), {desc.batch, desc.heads, desc.tokens}, layout),
        score_mean(sum_type(), {desc.batch, desc.heads, desc.tokens}, layout),
        dout(of_heads(desc.heads, desc.value_dim, layout)),
        dq(of_heads(desc.heads, desc.head_dim, layout)),
        dk(of_heads(desc.kv_heads, desc.head_dim, layout)),
        dv(of_heads(desc.kv_heads, desc.value_dim, layout)),
        summary_k(of_summaries(desc.head_dim, layout)),
        summary_v(of_summaries(desc.value_dim, layout)),
        d_summary_k(of_summaries(desc.head_dim, layout)),
        d_summary_v(of_summaries(desc.value_dim, layout)),
        doc_begin(DType::kInt32, {desc.batch, desc.tokens}, layout),
        doc_end(DType::kInt32, {desc.batch, desc.tokens}, layout),
        appendix(DType::kInt32, {desc.batch, desc.tokens}, layout),
        summary_end(DType::kInt32, {desc.batch, desc.summaries}, layout) {
    q.set(op_test::random_values("q", q.count(), -2, 2));
    k.set(op_test::random_values("k", k.count(), -2, 2));
    v.set(op_test::random_values("v", v.count()));
    dout.set(op_test::random_values("dout", dout.count()));
    summary_k.set(op_test::random_values("summary_k", summary_k.count(), -2, 2));
    summary_v.set(op_test::random_values("summary_v", summary_v.count()));
    for (std::size_t b = 0; b < documents.size(); ++b) set_documents(b);
    set_rows(appendices, desc.tokens, appendix);
    set_rows(summary_ends, desc.summaries, summary_end);
  }

  kernels::AwaKeys keys() const {
    kernels::AwaKeys in;
    in.k_BTKE = k;
    in.v_BTKV = v;
    if (!documents.empty()) in.doc_begin_BT = doc_begin, in.doc_end_BT = doc_end;
    if (!appendices.empty()) in.appendix_BT = appendix;
    if (desc.summaries > 0) {
      in.summary_k_BSKE = summary_k;
      in.summary_v_BSKV = summary_v;
      in.summary_end_BS = summary_end;
    }
    return in;
  }
  void forward(Context& ctx) {
    const auto plan = kernels::awa_plan(desc);
    const op_test::Scratch scratch(plan.workspace_bytes);
    kernels::awa_forward(ctx, plan, {q, keys()}, {out, lse, score_mean}, scratch.workspace());
  }
  void backward(Context& ctx) {
    const auto plan = kernels::awa_plan(desc);
    const op_test::Scratch scratch(plan.workspace_bytes);
    kernels::awa_backward(ctx, plan, {q, keys(), out, lse, dout},
                          {dq, dk, dv, d_summary_k, d_summary_v}, scratch.workspace());
  }
  std::vector<const GuardedTensor*> results() const {
    return {&out, &lse, &score_mean, &dq, &dk, &dv, &d_summary_k, &d_summary_v};
  }

  /// Whether query i of sequence b sees key j, and summary s.
  bool sees_key(std::int64_t b, std::int64_t i, std::int64_t j) const {
    const std::int64_t distance = i - j, begin = begin_of(b, i);
    if (distance < 0 || j < begin || distance >= desc.far_window) return false;
    if (distance >= desc.near_window && (j - begin) % desc.stride != 0) return false;
    if (appendices.empty()) return true;
    const double mark = appendix.get(b * desc.tokens + j);
    return mark == 0 || (mark > 0 && mark == appendix.get(b * desc.tokens + i));
  }
  bool sees_summary(std::int64_t b, std::int64_t i, std::int64_t s) const {
    const auto end = static_cast<std::int64_t>(summary_end.get(b * desc.summaries + s));
    return end >= begin_of(b, i) && i - end >= desc.far_window;
  }

  /// All results in the scalar S, from the operands as stored.
  template <class S>
  Naive naive() const;

 private:
  GuardedTensor of_heads(std::int64_t heads, std::int64_t dim, Layout layout) const {
    return {desc.dtype, {desc.batch, desc.tokens, heads, dim}, layout};
  }
  GuardedTensor of_summaries(std::int64_t dim, Layout layout) const {
    return {desc.dtype, {desc.batch, desc.summaries, desc.kv_heads, dim}, layout};
  }
  DType sum_type() const {
    return desc.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  }
  std::int64_t begin_of(std::int64_t b, std::int64_t i) const {
    if (documents.empty()) return 0;
    return static_cast<std::int64_t>(doc_begin.get(b * desc.tokens + i));
  }
  void set_documents(std::size_t b) {
    std::int64_t t = 0;
    for (const std::int64_t length : documents[b]) {
      for (std::int64_t i = t; i < t + length; ++i) {
        const std::int64_t at = static_cast<std::int64_t>(b) * desc.tokens + i;
        doc_begin.set(at, static_cast<double>(t));
        doc_end.set(at, static_cast<double>(t + length));
      }
      t += length;
    }
    if (t != desc.tokens) std::abort();
  }
  static void set_rows(const Rows& rows, std::int64_t columns, GuardedTensor& to) {
    std::int64_t i = 0;
    for (const auto& row : rows) {
      if (static_cast<std::int64_t>(row.size()) != columns) std::abort();
      for (const std::int64_t x : row) to.set(i++, static_cast<double>(x));
    }
  }
};

template <class S>
Naive Problem::naive() const {
  using std::exp;
  using std::log;
  const AwaDesc& d = desc;
  const std::int64_t group = d.heads / d.kv_heads;
  const auto zeros = [](const GuardedTensor& t) {
    return std::vector<S>(static_cast<std::size_t>(t.count()), S(0));
  };
  std::vector<S> o = zeros(out), l = zeros(lse), mean = zeros(lse), gq = zeros(q);
  std::vector<S> gk = zeros(k), gv = zeros(v), gsk = zeros(summary_k), gsv = zeros(summary_v);
  const auto value = [](const GuardedTensor& t, std::int64_t i) {
    return static_cast<S>(t.get(i));
  };
  const auto at = [](std::vector<S>& x, std::int64_t i) -> S& {
    return x[static_cast<std::size_t>(i)];
  };
  struct Visible {  // rows of keys and values, with their gradients
    const GuardedTensor *k, *v;
    std::vector<S>*gk, *gv;
    std::int64_t row;
    S score, p;
  };
  for (std::int64_t b = 0; b < d.batch; ++b) {
    for (std::int64_t h = 0; h < d.heads; ++h) {
      for (std::int64_t i = 0; i < d.tokens; ++i) {
        const std::int64_t query = ((b * d.tokens + i) * d.heads + h);
        const std::int64_t stat = (b * d.heads + h) * d.tokens + i;
        std::vector<Visible> seen;
        for (std::int64_t j = 0; j <= i; ++j) {
          if (!sees_key(b, i, j)) continue;
          seen.push_back({&k, &v, &gk, &gv, (b * d.tokens + j) * d.kv_heads + h / group, 0.0, 0.0});
        }
        for (std::int64_t s = 0; s < d.summaries; ++s) {
          if (!sees_summary(b, i, s)) continue;
          seen.push_back({&summary_k, &summary_v, &gsk, &gsv,
                          (b * d.summaries + s) * d.kv_heads + h / group, 0.0, 0.0});
        }
        double largest = -HUGE_VAL;
        for (Visible& x : seen) {
          S s(0);
          for (std::int64_t e = 0; e < d.head_dim; ++e) {
            s += value(q, query * d.head_dim + e) * value(*x.k, x.row * d.head_dim + e);
          }
          x.score = s * S(d.scale);
          largest = std::max(largest, static_cast<double>(x.score));
        }
        at(l, stat) = S(-HUGE_VAL);
        if (seen.empty()) continue;
        S sum(0), delta(0);
        for (Visible& x : seen) sum += x.p = exp(x.score - S(largest));
        at(l, stat) = S(largest) + log(sum);
        for (Visible& x : seen) {
          x.p = x.p / sum;
          at(mean, stat) += x.p * x.score;
        }
        for (std::int64_t e = 0; e < d.value_dim; ++e) {
          S total(0);
          for (const Visible& x : seen) total += x.p * value(*x.v, x.row * d.value_dim + e);
          at(o, query * d.value_dim + e) = total;
          delta += value(dout, query * d.value_dim + e) * total;
        }
        for (const Visible& x : seen) {
          S dp(0);
          for (std::int64_t e = 0; e < d.value_dim; ++e) {
            const S g = value(dout, query * d.value_dim + e);
            dp += g * value(*x.v, x.row * d.value_dim + e);
            at(*x.gv, x.row * d.value_dim + e) += x.p * g;
          }
          const S ds = x.p * (dp - delta) * S(d.scale);
          for (std::int64_t e = 0; e < d.head_dim; ++e) {
            at(*x.gk, x.row * d.head_dim + e) += ds * value(q, query * d.head_dim + e);
            at(gq, query * d.head_dim + e) += ds * value(*x.k, x.row * d.head_dim + e);
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
  return {doubles(o),  doubles(l),  doubles(mean), doubles(gq),
          doubles(gk), doubles(gv), doubles(gsk),  doubles(gsv)};
}

}  // namespace k25::awa_test
