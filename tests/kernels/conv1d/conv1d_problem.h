#pragma once
// The convolution as the formula says it, in any scalar; and one test problem.

#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/conv1d/conv1d.h"
#include "tests/kernels/op_test.h"

namespace k25::kernels::conv1d_test {

using op_test::GuardedTensor;
using op_test::Layout;
using Lengths = std::vector<std::int64_t>;

inline DType sum_dtype(DType t) { return t == DType::kFloat64 ? t : DType::kFloat32; }

/// Operands; packed sequences or documents of one row, or rows.
struct Problem {
  Conv1dDesc desc;
  Lengths packed, documents;
  std::int64_t sequences;
  GuardedTensor x, weight, initial, y, final, dy, dfinal, dx, dweight, dinitial;
  GuardedTensor border, doc_begin, doc_end;

  explicit Problem(const Conv1dDesc& d, const Lengths& packed_lengths = {},
                   const Lengths& document_lengths = {}, Layout layout = {})
      : desc(d),
        packed(packed_lengths),
        documents(document_lengths),
        sequences(packed.empty() ? d.batch : static_cast<std::int64_t>(packed.size())),
        x(op_test::random_tensor("x", d.dtype, {d.batch, d.tokens, d.channels}, layout, -2, 2)),
        weight(op_test::random_tensor("weight", sum_dtype(d.dtype), {d.channels, 4})),
        initial(op_test::random_tensor("initial", d.dtype, {sequences, 3, d.channels}, layout)),
        y(d.dtype, {d.batch, d.tokens, d.channels}, layout),
        final(d.dtype, {sequences, 3, d.channels}, layout),
        dy(op_test::random_tensor("dy", d.dtype, {d.batch, d.tokens, d.channels}, layout)),
        dfinal(op_test::random_tensor("dfinal", d.dtype, {sequences, 3, d.channels}, layout)),
        dx(d.dtype, {d.batch, d.tokens, d.channels}, layout),
        dweight(sum_dtype(d.dtype), {d.channels, 4}),
        dinitial(d.dtype, {sequences, 3, d.channels}, layout),
        border(DType::kInt32, {sequences + 1}),
        doc_begin(DType::kInt32, {1, d.tokens}),
        doc_end(DType::kInt32, {1, d.tokens}) {
    desc.sequences = static_cast<std::int64_t>(packed.size());
    double at = 0;
    border.set(0, 0);
    for (std::size_t s = 0; s < packed.size(); ++s) {
      border.set(static_cast<std::int64_t>(s) + 1, at += static_cast<double>(packed[s]));
    }
    std::int64_t t = 0;
    for (const std::int64_t n : documents) {
      for (std::int64_t i = t; i < t + n; ++i) {
        doc_begin.set(i, static_cast<double>(t));
        doc_end.set(i, static_cast<double>(t + n));
      }
      t += n;
    }
    dweight.fill(0);
  }

  SequenceBorders borders() const {
    SequenceBorders b;
    if (!packed.empty()) b.border_S1 = border;
    if (!documents.empty()) {
      b.doc_begin_BT = doc_begin;
      b.doc_end_BT = doc_end;
    }
    return b;
  }
  void forward(Context& ctx) const {
    conv1d_forward(ctx, conv1d_plan(desc), {x, weight, borders(), initial}, {y, final}, {});
  }
  void backward(Context& ctx) const {
    conv1d_backward(ctx, conv1d_plan(desc), {dy, x, weight, borders(), initial, dfinal},
                    {dx, dweight, dinitial}, {});
  }
  std::vector<const GuardedTensor*> results() const {
    return {&y, &final, &dx, &dweight, &dinitial};
  }

  /// x at token t of the sequence s as the formula sees it; t may be negative.
  double seen(std::int64_t s, std::int64_t t, std::int64_t reader, std::int64_t c) const {
    const std::int64_t first = packed.empty() ? 0 : static_cast<std::int64_t>(border.get(s));
    const std::int64_t row = packed.empty() ? s : 0;
    if (!documents.empty() && t < static_cast<std::int64_t>(doc_begin.get(reader))) {
      if (doc_begin.get(reader) > 0) return 0;
    }
    if (t < 0) return initial.get((s * 3 + 3 + t) * desc.channels + c);
    return x.get((row * desc.tokens + first + t) * desc.channels + c);
  }
  template <class S>
  std::vector<double> naive() const {
    using std::exp;
    std::vector<double> out(static_cast<std::size_t>(y.count()));
    for (std::int64_t s = 0; s < sequences; ++s) {
      const std::int64_t first =
          packed.empty() ? s * desc.tokens : static_cast<std::int64_t>(border.get(s));
      const std::int64_t length =
          packed.empty() ? desc.tokens : packed[static_cast<std::size_t>(s)];
      for (std::int64_t t = 0; t < length; ++t) {
        for (std::int64_t c = 0; c < desc.channels; ++c) {
          S z(0);
          for (std::int64_t i = 0; i < 4; ++i) {
            z += S(weight.get(c * 4 + i)) * S(seen(s, t - 3 + i, t, c));
          }
          const S value = z / (S(1) + exp(-z));
          out[static_cast<std::size_t>((first + t) * desc.channels + c)] =
              static_cast<double>(value);
        }
      }
    }
    return out;
  }
};

inline Conv1dDesc desc_of(std::int64_t batch, std::int64_t tokens, std::int64_t channels,
                          DType dtype = DType::kFloat64) {
  return {.batch = batch, .tokens = tokens, .channels = channels, .dtype = dtype};
}

}  // namespace k25::kernels::conv1d_test
