// Causal convolution on the CPU. A block of channels walks through its tokens with the last inputs
// (and in backward the unfinished gradients) in small arrays of its own.
#include "kernels/conv1d/conv1d_cpu.h"

#include "kernels/core/vector_math.h"

namespace k25::kernels::K25_ISA {
namespace {

constexpr std::int64_t kWidth = 4, kHistory = kWidth - 1;
constexpr std::int64_t kBlock = kConv1dChannels;
constexpr std::int64_t kSumTokens = 256;  // dweight: tokens of a partial sum

/// Rows of one block of channels, padded to kBlock.
template <class A>
struct Taps {
  A row[kWidth][kBlock];

  void clear() {
    for (auto& r : row) {
      for (A& x : r) x = A(0);
    }
  }
  /// Forgets the oldest row; the newest becomes zero.
  void shift() {
    for (std::int64_t i = 0; i < kHistory; ++i) {
      for (std::int64_t c = 0; c < kBlock; ++c) row[i][c] = row[i + 1][c];
    }
    for (A& x : row[kHistory]) x = A(0);
  }
};

/// Channels [first, first + n).
struct Channels {
  std::int64_t first, n;
};

Channels channels_of(std::int64_t block, std::int64_t channels) {
  const std::int64_t first = block * kBlock, left = channels - first;
  return {first, left < kBlock ? left : kBlock};
}

template <class A>
void load_weight(const A* weight, Channels c, Taps<A>& w) {
  w.clear();
  for (std::int64_t i = 0; i < c.n; ++i) {
    for (std::int64_t tap = 0; tap < kWidth; ++tap) {
      w.row[tap][i] = weight[(c.first + i) * kWidth + tap];
    }
  }
}

template <class T, class A>
void load_row(const T* __restrict from, Channels c, A* __restrict to) {
  for (std::int64_t i = 0; i < c.n; ++i) to[i] = load_value(from + c.first + i);
}
template <class T, class A>
void store_row(const A* __restrict from, Channels c, T* __restrict to) {
  for (std::int64_t i = 0; i < c.n; ++i) store_value(to + c.first + i, from[i]);
}

/// What precedes token t, which begins a document of the sequence.
template <class T, class A>
void begin_document(const Conv1dArgs<T, A>& x, const SequenceSpan& s, std::int64_t t, Channels c,
                    Taps<A>& taps) {
  taps.clear();
  if (t > s.first || x.initial.data == nullptr) return;
  for (std::int64_t i = 0; i < kHistory; ++i) load_row(x.initial.row(s.s, i), c, taps.row[i]);
}

template <class A>
A convolve(const Taps<A>& w, const Taps<A>& x, std::int64_t c) {
  return w.row[0][c] * x.row[0][c] + w.row[1][c] * x.row[1][c] + w.row[2][c] * x.row[2][c] +
         w.row[3][c] * x.row[3][c];
}

template <class T, class A>
void forward_block(const Conv1dArgs<T, A>& x, const SequenceSpan& s, Channels c) {
  Taps<A> w, taps;
  load_weight(x.weight, c, w);
  begin_document(x, s, s.first, c, taps);
  for (std::int64_t t = s.first; t < s.end;) {
    if (t > s.first) taps.clear();
    for (const std::int64_t end = x.sequences.document_end(s, t); t < end; ++t) {
      load_row(x.x.row(s.b, t), c, taps.row[kHistory]);
      A y[kBlock];
      for (std::int64_t i = 0; i < kBlock; ++i) {
        const A z = convolve(w, taps, i);
        y[i] = z / (1 + exp_approx(-z));
      }
      store_row(y, c, x.y.row(s.b, t));
      taps.shift();
    }
  }
  if (x.final.data == nullptr) return;
  for (std::int64_t i = 0; i < kHistory; ++i) store_row(taps.row[i], c, x.final.row(s.s, i));
}

/// The gradient of the x at `t`, which belongs to the document [begin, ..): of a token, of the
/// initial state, or of the zeros before a document.
template <class T, class A>
void store_gradient(const Conv1dArgs<T, A>& x, const SequenceSpan& s, std::int64_t begin,
                    std::int64_t t, Channels c, const A* gradient) {
  if (t >= begin) return store_row(gradient, c, x.dx.row(s.b, t));
  if (begin > s.first || x.dinitial.data == nullptr) return;
  store_row(gradient, c, x.dinitial.row(s.s, t - s.first + kHistory));
}

/// dweight of one block of channels.
template <class A>
struct WeightSum {
  Taps<A> total, part;
  std::int64_t tokens = 0;

  void fold() {
    for (std::int64_t tap = 0; tap < kWidth; ++tap) {
      for (std::int64_t c = 0; c < kBlock; ++c) total.row[tap][c] += part.row[tap][c];
    }
    part.clear();
    tokens = 0;
  }
};

/// One token: dz from dy; the gradients of the last four x grow, and dweight.
template <class A>
void backward_token(const Taps<A>& w, const Taps<A>& taps, const A* __restrict dy,
                    Taps<A>& gradients, WeightSum<A>& sum) {
  for (std::int64_t i = 0; i < kBlock; ++i) {
    const A z = convolve(w, taps, i);
    const A sigmoid = 1 / (1 + exp_approx(-z));
    const A dz = dy[i] * sigmoid * (1 + z * (1 - sigmoid));
    for (std::int64_t tap = 0; tap < kWidth; ++tap) {
      gradients.row[tap][i] += w.row[tap][i] * dz;
      sum.part.row[tap][i] += dz * taps.row[tap][i];
    }
  }
  if (++sum.tokens == kSumTokens) sum.fold();
}

template <class T, class A>
void backward_block(const Conv1dArgs<T, A>& x, const SequenceSpan& s, Channels c, const Taps<A>& w,
                    WeightSum<A>& sum) {
  Taps<A> taps, gradients;
  A dy[kBlock] = {};
  std::int64_t t = s.first;
  do {  // an empty sequence still hands dfinal on
    const std::int64_t begin = t, end = t < s.end ? x.sequences.document_end(s, t) : s.end;
    begin_document(x, s, t, c, taps);
    gradients.clear();
    for (; t < end; ++t) {
      load_row(x.x.row(s.b, t), c, taps.row[kHistory]);
      load_row(x.dy.row(s.b, t), c, dy);
      backward_token(w, taps, dy, gradients, sum);
      const std::int64_t oldest = t - kHistory;
      // What dfinal brings has its turn below, with the three that are left.
      store_gradient(x, s, begin, oldest, c, gradients.row[0]);
      taps.shift();
      gradients.shift();
    }
    for (std::int64_t i = 0; i < kHistory; ++i) {
      A* const gradient = gradients.row[i];
      if (end == s.end && x.dfinal.data != nullptr) {
        A more[kBlock] = {};
        load_row(x.dfinal.row(s.s, i), c, more);
        for (std::int64_t k = 0; k < kBlock; ++k) gradient[k] += more[k];
      }
      store_gradient(x, s, begin, end - kHistory + i, c, gradient);
    }
    sum.fold();
  } while (t < s.end);
}

template <class T, class A>
void forward(const Conv1dArgs<T, A>& x, std::int64_t begin, std::int64_t end) {
  const std::int64_t blocks = (x.channels + kBlock - 1) / kBlock;
  for (std::int64_t unit = begin; unit < end; ++unit) {
    forward_block(x, x.sequences.sequence(unit / blocks), channels_of(unit % blocks, x.channels));
  }
}

template <class T, class A>
void backward(const Conv1dArgs<T, A>& x, std::int64_t begin, std::int64_t end) {
  for (std::int64_t block = begin; block < end; ++block) {
    const Channels c = channels_of(block, x.channels);
    Taps<A> w;
    load_weight(x.weight, c, w);
    WeightSum<A> sum;
    sum.total.clear();
    sum.part.clear();
    for (std::int64_t s = 0; s < x.count; ++s) {
      backward_block(x, x.sequences.sequence(s), c, w, sum);
    }
    if (x.dweight == nullptr) continue;
    for (std::int64_t i = 0; i < c.n; ++i) {
      for (std::int64_t tap = 0; tap < kWidth; ++tap) {
        x.dweight[(c.first + i) * kWidth + tap] += sum.total.row[tap][i];
      }
    }
  }
}

}  // namespace

#define K25_CONV1D_DEFINE(T, A)                                                                  \
  void conv1d_forward_cpu(const Conv1dArgs<T, A>& args, std::int64_t begin, std::int64_t end) {  \
    forward(args, begin, end);                                                                   \
  }                                                                                              \
  void conv1d_backward_cpu(const Conv1dArgs<T, A>& args, std::int64_t begin, std::int64_t end) { \
    backward(args, begin, end);                                                                  \
  }
K25_CONV1D_DEFINE(float, float)
K25_CONV1D_DEFINE(BFloat16, float)
K25_CONV1D_DEFINE(double, double)
#undef K25_CONV1D_DEFINE

}  // namespace k25::kernels::K25_ISA
