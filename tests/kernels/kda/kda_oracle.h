#pragma once
// Kimi Delta Attention as the formula says it, token by token, in any scalar; and one test problem.

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/kda/kda.h"
#include "tests/kernels/kda/kda_shape.h"
#include "tests/kernels/op_test.h"

namespace k25::kda_test {

using op_test::GuardedTensor;
using op_test::Layout;
using Lengths = std::vector<std::int64_t>;

struct Naive {
  std::vector<double> out, final;
};

/// The state of one sequence and value head after `count` of its tokens, and its outputs.
template <class S>
struct NaiveHead {
  std::vector<S> state, out;
};

/// Operands of one problem. Sequences: rows; or packed ones; or documents in rows.
struct Problem {
  KdaDesc desc;
  Lengths packed;                  ///< lengths of packed sequences; empty: rows
  std::vector<Lengths> documents;  ///< of each row; empty: a row is one
  std::int64_t sequences;
  GuardedTensor q, k, v, g, beta, initial, out, final, dout, dfinal;
  GuardedTensor dq, dk, dv, dg, dbeta, dinitial;
  GuardedTensor border, doc_begin, doc_end;
  GuardedTensor offsets, checkpoint;
  GuardedTensor saved;

  Problem(const KdaDesc& d, const Gate& gate, Lengths packed_lengths = {},
          std::vector<Lengths> document_lengths = {}, Layout layout = {},
          std::vector<std::vector<std::int64_t>> checkpoints = {})
      : desc(with_sequences(d, packed_lengths, checkpoints)),
        packed(std::move(packed_lengths)),
        documents(std::move(document_lengths)),
        sequences(desc.sequences > 0 ? desc.sequences : d.batch),
        q(d.dtype, {d.batch, d.tokens, d.heads, d.key_dim}, layout),
        k(d.dtype, {d.batch, d.tokens, d.heads, d.key_dim}, layout),
        v(d.dtype, {d.batch, d.tokens, d.value_heads, d.value_dim}, layout),
        g(sum_dtype(d.dtype), {d.batch, d.tokens, d.value_heads, d.key_dim}, layout),
        beta(sum_dtype(d.dtype), {d.batch, d.tokens, d.value_heads}, layout),
        initial(sum_dtype(d.dtype), state_shape(), layout),
        out(d.dtype, {d.batch, d.tokens, d.value_heads, d.value_dim}, layout),
        final(sum_dtype(d.dtype), state_shape(), layout),
        dout(d.dtype, {d.batch, d.tokens, d.value_heads, d.value_dim}, layout),
        dfinal(sum_dtype(d.dtype), state_shape(), layout),
        dq(d.dtype, {d.batch, d.tokens, d.heads, d.key_dim}, layout),
        dk(d.dtype, {d.batch, d.tokens, d.heads, d.key_dim}, layout),
        dv(d.dtype, {d.batch, d.tokens, d.value_heads, d.value_dim}, layout),
        dg(sum_dtype(d.dtype), {d.batch, d.tokens, d.value_heads, d.key_dim}, layout),
        dbeta(sum_dtype(d.dtype), {d.batch, d.tokens, d.value_heads}, layout),
        dinitial(sum_dtype(d.dtype), state_shape(), layout),
        border(DType::kInt32, {desc.sequences + 1}),
        doc_begin(DType::kInt32, {d.batch, d.tokens}, layout),
        doc_end(DType::kInt32, {d.batch, d.tokens}, layout),
        offsets(DType::kInt32, {sequences, desc.checkpoints}),
        checkpoint(sum_dtype(d.dtype),
                   {sequences, desc.checkpoints, d.value_heads, d.key_dim, d.value_dim}, layout),
        saved(DType::kUInt8, {kernels::kda_plan(desc).saved_bytes.n}) {
    set_unit_rows(q, "q");
    set_unit_rows(k, "k");
    v.set(op_test::random_values("v", v.count()));
    beta.set(op_test::random_values("beta", beta.count(), 0.05, 0.95));
    initial.set(op_test::random_values("initial", initial.count()));
    dout.set(op_test::random_values("dout", dout.count()));
    dfinal.set(op_test::random_values("dfinal", dfinal.count()));
    const std::vector<double> uniform = op_test::random_values("g", g.count(), 0, 1);
    const std::int64_t per_token = d.value_heads * d.key_dim;
    for (std::int64_t i = 0; i < g.count(); ++i) {
      g.set(i, gate(i / per_token, uniform[static_cast<std::size_t>(i)]));
    }
    set_borders();
    for (std::int64_t s = 0; s < sequences && desc.checkpoints > 0; ++s) {
      for (std::int64_t i = 0; i < desc.checkpoints; ++i) {
        offsets.set(s * desc.checkpoints + i,
                    static_cast<double>(
                        checkpoints[static_cast<std::size_t>(s)][static_cast<std::size_t>(i)]));
      }
    }
  }

  static KdaDesc with_sequences(KdaDesc d, const Lengths& lengths,
                                const std::vector<std::vector<std::int64_t>>& checkpoints) {
    d.sequences = static_cast<std::int64_t>(lengths.size());
    if (!checkpoints.empty()) d.checkpoints = static_cast<std::int64_t>(checkpoints[0].size());
    return d;
  }
  std::vector<std::int64_t> state_shape() const {
    return {sequences, desc.value_heads, desc.key_dim, desc.value_dim};
  }

  /// Random rows of norm 1, as kernels/l2norm hands them on.
  void set_unit_rows(GuardedTensor& t, std::string_view name) const {
    std::vector<double> x = op_test::random_values(name, t.count());
    const auto dim = static_cast<std::size_t>(desc.key_dim);
    for (std::size_t i = 0; i < x.size(); i += dim) {
      double sum = 1e-6;
      for (std::size_t e = 0; e < dim; ++e) sum += x[i + e] * x[i + e];
      for (std::size_t e = 0; e < dim; ++e) x[i + e] /= std::sqrt(sum);
    }
    t.set(x);
  }

  void set_borders() {
    double at = 0;
    border.set(0, 0);
    for (std::size_t s = 0; s < packed.size(); ++s) {
      at += static_cast<double>(packed[s]);
      border.set(static_cast<std::int64_t>(s) + 1, at);
    }
    for (std::size_t b = 0; b < documents.size(); ++b) {
      std::int64_t t = 0;
      for (const std::int64_t length : documents[b]) {
        for (std::int64_t i = t; i < t + length; ++i) {
          doc_begin.set(static_cast<std::int64_t>(b) * desc.tokens + i, static_cast<double>(t));
          doc_end.set(static_cast<std::int64_t>(b) * desc.tokens + i,
                      static_cast<double>(t + length));
        }
        t += length;
      }
      if (t != desc.tokens) std::abort();
    }
  }

  kernels::SequenceBorders borders() const {
    kernels::SequenceBorders b;
    if (!packed.empty()) b.border_S1 = border;
    if (!documents.empty()) {
      b.doc_begin_BT = doc_begin;
      b.doc_end_BT = doc_end;
    }
    return b;
  }

  kernels::KdaForwardIn forward_in() const {
    kernels::KdaForwardIn in{q, k, v, g, beta, borders(), initial, {}};
    if (desc.checkpoints > 0) in.checkpoint_offset_SN = offsets;
    return in;
  }
  kernels::KdaForwardOut forward_out() const {
    kernels::KdaForwardOut o{out, final, {}, saved};
    if (desc.checkpoints > 0) o.checkpoint_SNMKV = checkpoint;
    return o;
  }
  kernels::KdaBackwardIn backward_in() const {
    return {q, k, v, g, beta, borders(), initial, saved, dout, dfinal};
  }
  kernels::KdaBackwardOut backward_out() const { return {dq, dk, dv, dg, dbeta, dinitial}; }

  void forward(Context& ctx) const {
    const auto plan = kernels::kda_plan(desc);
    const op_test::Scratch scratch(plan.forward_workspace_bytes);
    kernels::kda_forward(ctx, plan, forward_in(), forward_out(), scratch.workspace());
  }
  void backward(Context& ctx) const {
    const auto plan = kernels::kda_plan(desc);
    const op_test::Scratch scratch(plan.backward_workspace_bytes);
    kernels::kda_backward(ctx, plan, backward_in(), backward_out(), scratch.workspace());
  }

  std::vector<const GuardedTensor*> results() const {
    return {&out, &final, &checkpoint, &dq, &dk, &dv, &dg, &dbeta, &dinitial};
  }
  bool guards_intact() const {
    for (const GuardedTensor* t : results()) {
      if (!t->guards_intact()) return false;
    }
    return saved.guards_intact();
  }
  /// Everything the op wrote, bit by bit.
  std::vector<std::uint8_t> bits() const {
    std::vector<std::uint8_t> all;
    for (const GuardedTensor* t : results()) {
      const auto more = t->bits();
      all.insert(all.end(), more.begin(), more.end());
    }
    return all;
  }

  double scale() const {
    return desc.scale != 0 ? desc.scale : 1 / std::sqrt(static_cast<double>(desc.key_dim));
  }
  std::pair<std::int64_t, std::int64_t> tokens_of(std::int64_t s) const {  // row, first token
    if (packed.empty()) return {s, 0};
    return {0, static_cast<std::int64_t>(border.get(s))};
  }
  std::int64_t length_of(std::int64_t s) const {
    return packed.empty() ? desc.tokens : packed[static_cast<std::size_t>(s)];
  }

  /// The first `count` tokens of sequence s, value head m.
  template <class S>
  NaiveHead<S> naive_head(std::int64_t s, std::int64_t m, std::int64_t count) const;
  template <class S>
  Naive naive() const;
};

template <class S>
NaiveHead<S> Problem::naive_head(std::int64_t s, std::int64_t m, std::int64_t count) const {
  using std::exp;
  const KdaDesc& d = desc;
  const std::int64_t keys = d.key_dim, values = d.value_dim;
  const auto [row, first] = tokens_of(s);
  const auto at = [values](std::int64_t key, std::int64_t value) {
    return static_cast<std::size_t>(key * values + value);
  };
  NaiveHead<S> r;
  for (std::int64_t i = 0; i < keys * values; ++i) {
    r.state.push_back(S(initial.get((s * d.value_heads + m) * keys * values + i)));
  }
  const std::int64_t h = m / (d.value_heads / d.heads);
  for (std::int64_t t = first; t < first + count; ++t) {
    const std::int64_t token = row * d.tokens + t, qk = (token * d.heads + h) * keys;
    const std::int64_t vm = (token * d.value_heads + m) * values;
    const std::int64_t gm = (token * d.value_heads + m) * keys;
    const bool starts =
        !documents.empty() && t > first && static_cast<std::int64_t>(doc_begin.get(token)) == t;
    for (std::int64_t key = 0; key < keys; ++key) {
      const S a = exp(S(g.get(gm + key)));
      for (std::int64_t e = 0; e < values; ++e) {
        r.state[at(key, e)] = starts ? S(0) : a * r.state[at(key, e)];
      }
    }
    for (std::int64_t e = 0; e < values; ++e) {
      S seen(0), o(0);
      for (std::int64_t key = 0; key < keys; ++key) {
        seen += r.state[at(key, e)] * S(k.get(qk + key));
      }
      const S u = S(beta.get(token * d.value_heads + m)) * (S(v.get(vm + e)) - seen);
      for (std::int64_t key = 0; key < keys; ++key) {
        r.state[at(key, e)] += S(k.get(qk + key)) * u;
        o += r.state[at(key, e)] * S(q.get(qk + key));
      }
      r.out.push_back(o * S(scale()));
    }
  }
  return r;
}

template <class S>
Naive Problem::naive() const {
  const KdaDesc& d = desc;
  Naive r{std::vector<double>(static_cast<std::size_t>(out.count())),
          std::vector<double>(static_cast<std::size_t>(final.count()))};
  const auto values = static_cast<std::size_t>(d.value_dim);
  const auto size = static_cast<std::size_t>(d.key_dim) * values;
  for (std::int64_t s = 0; s < sequences; ++s) {
    for (std::int64_t m = 0; m < d.value_heads; ++m) {
      const NaiveHead<S> head = naive_head<S>(s, m, length_of(s));
      const std::size_t index = static_cast<std::size_t>(s * d.value_heads + m);
      for (std::size_t i = 0; i < size; ++i) {
        r.final[index * size + i] = static_cast<double>(head.state[i]);
      }
      const auto [row, first] = tokens_of(s);
      for (std::int64_t t = 0; t < length_of(s); ++t) {
        const auto to =
            static_cast<std::size_t>((row * d.tokens + first + t) * d.value_heads + m) * values;
        for (std::size_t e = 0; e < values; ++e) {
          r.out[to + e] = static_cast<double>(head.out[static_cast<std::size_t>(t) * values + e]);
        }
      }
    }
  }
  return r;
}

}  // namespace k25::kda_test
