// Kimi Delta Attention on the CPU: the walk over sequences, documents and chunks.
//
// A unit is a sequence and a key head; the value heads of its group follow each other, so dq and dk
// are summed in a fixed order. Chunks start at a document's first token: nothing outside it is read
// for it, and its results do not depend on where it lies.
#include "kernels/kda/kda_cpu.h"

#include "kernels/kda/kda_chunk_backward_cpu.h"
#include "kernels/kda/kda_recurrent_cpu.h"

namespace k25::kernels::K25_ISA {
namespace {

using Sequence = SequenceSpan;

std::int64_t state_size(const KdaSizes& s) { return s.padded_key * s.padded_value; }

/// Where the state of the interior chunk boundary at token t is kept. Two boundaries of a row are
/// never closer than a chunk, and the first is not below kKdaRows.
std::int64_t boundary_of(std::int64_t t) { return t / kKdaRows - 1; }

/// Kept states of one row and value head: kept[boundary * stride].
template <class A>
struct Kept {
  A* data;
  std::int64_t stride;
};

/// The recomputing pass keeps one group of heads in the scratch, forward all heads of all rows.
template <class T, class A>
Kept<A> kept_states(const KdaArgs<T, A>& x, A* scratch, const Sequence& s, std::int64_t m) {
  const std::int64_t size = state_size(x.sizes);
  if (x.kept != nullptr) {
    const std::int64_t heads = x.sizes.value_heads;
    return {x.kept + (s.b * x.sizes.boundaries * heads + m) * size, heads * size};
  }
  if (scratch == nullptr) return {nullptr, 0};
  return {scratch + m % x.sizes.group * size, x.sizes.group * size};
}

template <class T, class A>
void store_checkpoints(const KdaArgs<T, A>& x, const Sequence& s, std::int64_t m, std::int64_t t,
                       const A* state) {
  for (std::int64_t i = 0; i < x.checkpoints; ++i) {
    if (x.checkpoint_offset[s.s * x.offset_stride + i] != t - s.first) continue;
    store_state(state, x.sizes, x.checkpoint.at(s.s, i, m), x.checkpoint.row_stride);
  }
}

template <class A>
const A* initial_of(const KdaStates<const A>& states, std::int64_t s, std::int64_t m) {
  return states.data == nullptr ? nullptr : states.at(s, 0, m);
}

/// One sequence and value head forward.
template <class T, class A>
void forward_sequence(const KdaArgs<T, A>& x, const Sequence& s, std::int64_t m, Kept<A> kept,
                      KdaChunk<A>& c) {
  const std::int64_t size = state_size(x.sizes);
  load_state(initial_of(x.initial, s.s, m), x.initial.row_stride, x.sizes, c.state);
  for (std::int64_t t = s.first; t < s.end;) {
    if (t > s.first) fill_rows(c.state, size, A(0));
    const std::int64_t begin = t, end = x.sequences.document_end(s, t);
    for (; t < end; t += kKdaRows) {
      if (kept.data != nullptr && t > begin) {
        copy_rows(c.state, size, kept.data + boundary_of(t) * kept.stride);
      }
      store_checkpoints(x, s, m, t, c.state);
      const KdaSpan at{s.b, t, smaller(kKdaRows, end - t), m};
      if (x.sizes.recurrent) {
        recurrent_forward(x, at, c.state, c);
      } else {
        forward_chunk(x, at, c.state, c);
      }
    }
    t = end;
  }
  store_checkpoints(x, s, m, s.end, c.state);
  if (x.final.data != nullptr) {
    store_state(c.state, x.sizes, x.final.at(s.s, 0, m), x.final.row_stride);
  }
}

/// Scratch of a unit backward.
template <class A>
struct BackwardScratch {
  KdaChunk<A> chunk;
  KdaChunkBackward<A> grad;
  A *dstate, *token_states, *kept;  // dstate: of each head of the group

  BackwardScratch(const KdaSizes& s, Bump<A> bump)
      : chunk(s, bump),
        grad(s, bump),
        dstate(bump.take(s.group * state_size(s))),
        token_states(s.recurrent ? bump.take(kKdaRows * state_size(s)) : nullptr),
        kept(s.keeps_states ? nullptr : bump.take(s.group * s.boundaries * state_size(s))) {}
};

/// One chunk for all value heads of key head h.
template <class T, class A>
void backward_group(const KdaArgs<T, A>& x, const Sequence& s, std::int64_t h, std::int64_t t,
                    std::int64_t n, std::int64_t begin, BackwardScratch<A>& w) {
  const std::int64_t size = state_size(x.sizes), group = x.sizes.group;
  fill_rows(w.grad.dq, kKdaRows * x.sizes.padded_key, A(0));
  fill_rows(w.grad.dk, kKdaRows * x.sizes.padded_key, A(0));
  for (std::int64_t i = 0; i < group; ++i) {
    const std::int64_t m = h * group + i;
    const A* state = w.chunk.state;
    if (t > begin) {
      const Kept<A> kept = kept_states(x, w.kept, s, m);
      state = kept.data + boundary_of(t) * kept.stride;
    } else {
      load_state(t == s.first ? initial_of(x.initial, s.s, m) : nullptr, x.initial.row_stride,
                 x.sizes, w.chunk.state);
    }
    const KdaSpan at{s.b, t, n, m};
    A* const dstate = w.dstate + i * size;
    if (x.sizes.recurrent) {
      recurrent_backward(x, at, state, dstate, w.token_states, w.chunk, w.grad);
    } else {
      backward_chunk(x, at, state, dstate, w.chunk, w.grad);
    }
  }
  unpack_rows(w.grad.dq, n, x.sizes.key_dim, x.sizes.padded_key, x.scale, x.dq.row(s.b, t, h),
              x.dq.token_stride);
  unpack_rows(w.grad.dk, n, x.sizes.key_dim, x.sizes.padded_key, A(1), x.dk.row(s.b, t, h),
              x.dk.token_stride);
}

template <class T, class A>
void backward_sequence(const KdaArgs<T, A>& x, const Sequence& s, std::int64_t h,
                       BackwardScratch<A>& w) {
  const std::int64_t size = state_size(x.sizes), group = x.sizes.group;
  for (std::int64_t i = 0; i < group; ++i) {
    const std::int64_t m = h * group + i;
    if (w.kept != nullptr) forward_sequence(x, s, m, kept_states(x, w.kept, s, m), w.chunk);
    load_state(initial_of(x.dfinal, s.s, m), x.dfinal.row_stride, x.sizes, w.dstate + i * size);
  }
  for (std::int64_t end = s.end; end > s.first;) {
    // The state that follows another document's last token is not what the next one begins with.
    if (end < s.end) fill_rows(w.dstate, group * size, A(0));
    const std::int64_t begin = x.sequences.document_begin(s, end);
    for (std::int64_t t = begin + (end - begin - 1) / kKdaRows * kKdaRows; t >= begin;
         t -= kKdaRows) {
      backward_group(x, s, h, t, smaller(kKdaRows, end - t), begin, w);
    }
    end = begin;
  }
  if (x.dinitial.data == nullptr) return;
  for (std::int64_t i = 0; i < group; ++i) {
    store_state(w.dstate + i * size, x.sizes, x.dinitial.at(s.s, 0, h * group + i),
                x.dinitial.row_stride);
  }
}

template <class T, class A>
[[gnu::noinline]] void forward_units(const KdaArgs<T, A>& x, std::int64_t begin, std::int64_t end,
                                     A* scratch) {
  Bump<A> bump{scratch};
  KdaChunk<A> chunk(x.sizes, bump);
  for (std::int64_t unit = begin; unit < end; ++unit) {
    const Sequence s = x.sequences.sequence(unit / x.sizes.heads);
    for (std::int64_t i = 0; i < x.sizes.group; ++i) {
      const std::int64_t m = unit % x.sizes.heads * x.sizes.group + i;
      forward_sequence(x, s, m, kept_states<T, A>(x, nullptr, s, m), chunk);
    }
  }
}

template <class T, class A>
[[gnu::noinline]] void backward_units(const KdaArgs<T, A>& x, std::int64_t begin, std::int64_t end,
                                      A* scratch) {
  BackwardScratch<A> w(x.sizes, Bump<A>{scratch});
  for (std::int64_t unit = begin; unit < end; ++unit) {
    backward_sequence(x, x.sequences.sequence(unit / x.sizes.heads), unit % x.sizes.heads, w);
  }
}

}  // namespace

#define K25_KDA_DEFINE(T, A)                                                             \
  void kda_forward_cpu(const KdaArgs<T, A>& args, std::int64_t begin, std::int64_t end,  \
                       A* scratch) {                                                     \
    const FlushDenormals flush;                                                          \
    forward_units(args, begin, end, scratch);                                            \
  }                                                                                      \
  void kda_backward_cpu(const KdaArgs<T, A>& args, std::int64_t begin, std::int64_t end, \
                        A* scratch) {                                                    \
    const FlushDenormals flush;                                                          \
    backward_units(args, begin, end, scratch);                                           \
  }
K25_KDA_DEFINE(float, float)
K25_KDA_DEFINE(BFloat16, float)
K25_KDA_DEFINE(double, double)
#undef K25_KDA_DEFINE

}  // namespace k25::kernels::K25_ISA
