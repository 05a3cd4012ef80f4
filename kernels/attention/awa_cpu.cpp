// AWA on the CPU: FlashAttention's tiles over a table of keys that a tile of queries shares.
//
// The keys of a tile of queries are packed one after the other into a table of three parts: near,
// on a step, summaries. In each part what a row sees is an interval, so tiles of keys are of two
// kinds: those that all rows see whole go through matrix products, the others, at the intervals'
// ends or with hidden keys, through products of the visible pairs alone. One work unit is a
// sequence and a key/value head; documents, tiles of queries and heads of the group follow each
// other, so gradients of keys and values are summed in a fixed order.
#include "kernels/attention/awa_cpu.h"

#include "kernels/attention/attention_tiles.h"

namespace k25::kernels::K25_ISA {
namespace {

constexpr std::int64_t kPad = kAttentionPad, kTile = kAwaKeyTile;

template <class A>
constexpr A kNothing = static_cast<A>(-__builtin_inf());

[[gnu::always_inline]] inline std::int64_t larger(std::int64_t a, std::int64_t b) {
  return a > b ? a : b;
}
[[gnu::always_inline]] inline std::int64_t whole_tiles(std::int64_t n) {
  return (n + kTile - 1) / kTile * kTile;
}

struct Interval {
  std::int64_t begin, end;
};

/// Rows of the table: number `i` of the part is source row first + i step.
struct Part {
  std::int64_t count, first, step;
};
enum class PartKind { kNear, kMiddle, kFar };
constexpr PartKind kKinds[] = {PartKind::kNear, PartKind::kMiddle, PartKind::kFar};

/// The document [begin, end) of sequence b, and which summaries are its own.
struct Document {
  std::int64_t b, kv_head, begin, end;
  Interval summaries;
};

/// The first slot of `slots` whose summary ends behind `token`.
inline std::int64_t summaries_until(const std::int32_t* ends, Interval slots, std::int64_t token) {
  while (slots.begin < slots.end) {
    const std::int64_t middle = slots.begin + (slots.end - slots.begin) / 2;
    if (ends[middle] <= token) {
      slots.begin = middle + 1;
    } else {
      slots.end = middle;
    }
  }
  return slots.begin;
}

/// What query i sees of a part's sources: tokens, steps from the document's first token, slots.
template <class T, class A>
Interval seen_of(const AwaArgs<T, A>& x, const Document& d, PartKind part, std::int64_t i) {
  if (part == PartKind::kNear) return {larger(d.begin, i - x.near_window + 1), i + 1};
  if (part == PartKind::kMiddle) {
    const std::int64_t oldest = i - x.far_window + 1 - d.begin,
                       newest = i - x.near_window - d.begin;
    if (newest < 0 || x.far_window == x.near_window) return {0, 0};
    return {oldest > 0 ? (oldest + x.stride - 1) / x.stride : 0, newest / x.stride + 1};
  }
  if (x.summaries == 0) return {0, 0};
  return {d.summaries.begin,
          summaries_until(x.summary_end.row(d.b), d.summaries, i - x.far_window)};
}

/// Scratch of one work unit.
template <class A>
struct Pieces {
  A *k, *kt, *v, *vt, *dk, *dv;                 // tables; v is done with before dv begins
  A *q, *dout, *acc, *p, *dp;                   // of one tile of queries
  A *lanes, *max, *moment, *reference, *delta;  // a value a row, lanes kPad
  A *sum_dk, *sum_dv, *sum_summary_dk, *sum_summary_dv;
};

/// One tile of queries: rows [first, first + rows) and its table.
struct QueryTile {
  std::int64_t first, rows;
  Part parts[3];

  [[gnu::always_inline]] Part& part(PartKind kind) { return parts[static_cast<int>(kind)]; }
  [[gnu::always_inline]] const Part& part(PartKind kind) const {
    return parts[static_cast<int>(kind)];
  }
};

template <class T, class A>
QueryTile tile_of(const AwaArgs<T, A>& x, const Document& d, std::int64_t first) {
  QueryTile t{first, smaller(x.query_tile, d.end - first), {}};
  for (const PartKind part : kKinds) {
    Interval all = seen_of(x, d, part, first);
    all.end = larger(all.begin, seen_of(x, d, part, first + t.rows - 1).end);
    const bool steps = part == PartKind::kMiddle;
    t.part(part) = {all.end - all.begin, steps ? d.begin + all.begin * x.stride : all.begin,
                    steps ? x.stride : 1};
  }
  return t;
}

/// What the row of query i sees of a part, as numbers in the part.
template <class T, class A>
Interval seen_in_part(const AwaArgs<T, A>& x, const Document& d, const QueryTile& t, PartKind part,
                      std::int64_t i) {
  const Interval seen = seen_of(x, d, part, i);
  const Part& of = t.part(part);
  const std::int64_t origin =
      part == PartKind::kMiddle ? (of.first - d.begin) / x.stride : of.first;
  return {seen.begin - origin, seen.end - origin};
}

/// `visit(part, number of the first key in its part, offset in the table, keys)` for every tile of
/// keys.
template <class Visit>
void for_each_key_tile(const QueryTile& t, const Visit& visit) {
  std::int64_t offset = 0;
  for (const PartKind part : kKinds) {
    const std::int64_t count = t.part(part).count;
    for (std::int64_t j = 0; j < count; j += kTile) {
      visit(part, j, offset + j, smaller(kTile, count - j));
    }
    offset += whole_tiles(count);
  }
}

/// Rows of one view that a part takes, to the table at dst.
template <class T, class A>
void pack_part(const HeadsView<const T>& src, const Document& d, const Part& part, std::int64_t dim,
               std::int64_t padded_dim, A* dst) {
  for (std::int64_t j = 0; j < part.count; ++j) {
    pack_rows(src, d.b, part.first + j * part.step, d.kv_head, 1, dim, padded_dim, A(1),
              dst + j * padded_dim);
  }
}

template <class T, class A>
void pack_table(const HeadsView<const T>& tokens, const HeadsView<const T>& summaries,
                const Document& d, const QueryTile& t, std::int64_t dim, std::int64_t padded_dim,
                A* rows, A* transposed) {
  std::int64_t offset = 0;
  for (const PartKind part : kKinds) {
    A* const at = rows + offset * padded_dim;
    pack_part(part == PartKind::kFar ? summaries : tokens, d, t.part(part), dim, padded_dim, at);
    if (transposed != nullptr) {
      transpose_tiles(at, t.part(part).count, padded_dim, kTile, transposed + offset * padded_dim);
    }
    offset += whole_tiles(t.part(part).count);
  }
}

/// Adds the table's rows to the sums of their sources.
template <class A>
void add_table(const QueryTile& t, std::int64_t padded_dim, const A* table, A* tokens,
               A* summaries) {
  for (const PartKind part : kKinds) {
    const Part& of = t.part(part);
    A* const sums = part == PartKind::kFar ? summaries : tokens;
    for (std::int64_t j = 0; j < of.count; ++j) {
      A* const to = sums + (of.first + j * of.step) * padded_dim;
      for (std::int64_t e = 0; e < padded_dim; ++e) to[e] += table[j * padded_dim + e];
    }
    table += whole_tiles(of.count) * padded_dim;
  }
}

/// A tile of keys against the tile of queries.
struct Meeting {
  PartKind part;
  std::int64_t first, keys;  ///< numbers [first, first + keys) of the part
  bool whole;                ///< every row sees every key
};

template <class T, class A>
Meeting meet(const AwaArgs<T, A>& x, const Document& d, const QueryTile& t, PartKind part,
             std::int64_t first, std::int64_t keys) {
  Meeting m{part, first, keys, true};
  // Both ends of the intervals rise from row to row.
  const Interval a = seen_in_part(x, d, t, part, t.first);
  const Interval z = seen_in_part(x, d, t, part, t.first + t.rows - 1);
  m.whole = a.begin <= first && z.begin <= first && first + keys <= a.end;
  if (x.appendix.data == nullptr || part == PartKind::kFar) return m;
  const Part& of = t.part(part);
  for (std::int64_t j = first; j < first + keys; ++j) {
    m.whole &= x.appendix.row(d.b)[of.first + j * of.step] == 0;
  }
  return m;
}

/// Scores that are not visible become -inf; the row's padding as well.
template <class T, class A>
void hide(const AwaArgs<T, A>& x, const Document& d, const QueryTile& t, const Meeting& m, A* s) {
  const Part& of = t.part(m.part);
  const bool marks = x.appendix.data != nullptr && m.part != PartKind::kFar;
  for (std::int64_t r = 0; r < t.rows; ++r) {
    A* const row = s + r * kTile;
    for (std::int64_t j = m.keys; j < pad_up(m.keys); ++j) row[j] = kNothing<A>;
    if (m.whole) continue;
    const Interval seen = seen_in_part(x, d, t, m.part, t.first + r);
    for (std::int64_t j = 0; j < m.keys; ++j) {
      const std::int64_t number = m.first + j;
      bool hidden = number < seen.begin || number >= seen.end;
      if (marks && !hidden) {
        const std::int32_t* const appendix = x.appendix.row(d.b);
        const std::int32_t mark = appendix[of.first + number * of.step];
        hidden = mark < 0 || (mark > 0 && mark != appendix[t.first + r]);
      }
      if (hidden) row[j] = kNothing<A>;
    }
  }
}

/// `visit(row, key, weight)` for the pairs with a weight.
template <class A, class Visit>
[[gnu::always_inline]] inline void for_each_weight(const A* p, std::int64_t rows, std::int64_t keys,
                                                   const Visit& visit) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t j = 0; j < keys; ++j) {
      if (p[r * kTile + j] != A(0)) visit(r, j, p[r * kTile + j]);
    }
  }
}
/// c += weight b, rows of `padded_dim` elements.
template <class A>
[[gnu::always_inline]] inline void add_row(A weight, const A* b, A* c, std::int64_t padded_dim) {
  for (std::int64_t e = 0; e < padded_dim; ++e) c[e] += weight * b[e];
}

/// c_r += sum_j p_rj b_j over the pairs with a weight.
template <class A>
void visible_rows(const A* p, const A* b, A* c, std::int64_t padded_dim, std::int64_t rows,
                  std::int64_t keys) {
  for_each_weight(p, rows, keys, [=](std::int64_t r, std::int64_t j, A weight) {
    add_row(weight, b + j * padded_dim, c + r * padded_dim, padded_dim);
  });
}
/// c_j += sum_r p_rj b_r over the pairs with a weight.
template <class A>
void visible_columns(const A* p, const A* b, A* c, std::int64_t padded_dim, std::int64_t rows,
                     std::int64_t keys) {
  for_each_weight(p, rows, keys, [=](std::int64_t r, std::int64_t j, A weight) {
    add_row(weight, b + r * padded_dim, c + j * padded_dim, padded_dim);
  });
}

// ---- softmax --------------------------------------------------------------------------------

/// s becomes exp(s - reference); lanes, acc and moment are brought to the new maximum, and lanes
/// and moment grow by this tile. A row that has seen nothing yet has the reference 0.
template <class A>
void online_softmax(const QueryTile& t, std::int64_t keys, std::int64_t padded_value_dim,
                    const Pieces<A>& w, A* s) {
  for (std::int64_t r = 0; r < t.rows; ++r) {
    A* const row = s + r * kTile;
    const A tile_max = row_max(row, pad_up(keys)), before = w.max[r];
    const A after = tile_max > before ? tile_max : before;
    const A reference = after == kNothing<A> ? A(0) : after;
    const A factor = exp_bounded(before - reference);
    w.max[r] = after;
    ReduceLanes<JoinSum, A> sums, moments;
    sums.load(w.lanes + r * kPad);
    sums.scale(factor);
    moments.fill(A(0));
    A* const total = w.acc + r * padded_value_dim;
    for (std::int64_t e = 0; e < padded_value_dim; ++e) total[e] *= factor;
    for (std::int64_t j = 0; j < pad_up(keys); j += kPad) {
      A weighted[kPad];
      for (std::int64_t i = 0; i < kPad; ++i) {
        const A score = row[j + i], weight = exp_bounded(score - reference);
        row[j + i] = weight;
        weighted[i] = weight == A(0) ? A(0) : weight * score;
      }
      sums.take(row + j);
      moments.take(weighted);
    }
    sums.store(w.lanes + r * kPad);
    w.moment[r] = w.moment[r] * factor + moments.join();
  }
}

/// p becomes exp(s - lse), dp becomes p (dp - delta); both 0 where nothing is visible.
template <class A>
void visible_gradients(const QueryTile& t, std::int64_t keys, const Pieces<A>& w) {
  for (std::int64_t r = 0; r < t.rows; ++r) {
    A* const p = w.p + r * kTile;
    A* const dp = w.dp + r * kTile;
    for (std::int64_t j = 0; j < pad_up(keys); ++j) {
      // NOTE: asked of the score: where lse is NaN, exp would be so for hidden pairs as well.
      p[j] = p[j] == kNothing<A> ? A(0) : exp_bounded(p[j] - w.reference[r]);
      dp[j] = p[j] == A(0) ? A(0) : p[j] * (dp[j] - w.delta[r]);
    }
  }
}

// ---- one document ---------------------------------------------------------------------------

template <class T, class A>
void forward_tile(const AwaArgs<T, A>& x, const Document& d, const QueryTile& t, std::int64_t h,
                  const Pieces<A>& w) {
  const std::int64_t dim = x.head_dim, padded = x.padded_dim, padded_v = x.padded_value_dim;
  pack_rows(x.q, d.b, t.first, h, t.rows, dim, padded, x.scale, w.q);
  for (std::int64_t i = 0; i < t.rows * padded_v; ++i) w.acc[i] = A(0);
  for (std::int64_t i = 0; i < t.rows * kPad; ++i) w.lanes[i] = A(0);
  for (std::int64_t r = 0; r < t.rows; ++r) {
    w.max[r] = kNothing<A>;
    w.moment[r] = A(0);
  }
  for_each_key_tile(
      t, [&](PartKind part, std::int64_t first, std::int64_t offset, std::int64_t keys) {
        const Meeting m = meet(x, d, t, part, first, keys);
        score_tile(w.q, padded, w.kt + offset * padded, kTile, w.p, t.rows, keys, dim, false);
        hide(x, d, t, m, w.p);
        online_softmax(t, keys, padded_v, w, w.p);
        const A* const values = w.v + offset * padded_v;
        if (m.whole) {
          weighted_rows<Store::kAdd>(w.p, kTile, values, w.acc, padded_v, t.rows, keys, false);
        } else {
          visible_rows(w.p, values, w.acc, padded_v, t.rows, keys);
        }
      });
  for (std::int64_t r = 0; r < t.rows; ++r) {
    ReduceLanes<JoinSum, A> sums;
    sums.load(w.lanes + r * kPad);
    const A sum = sums.join();
    const bool empty = w.max[r] == kNothing<A>;
    const A inverse = empty ? A(0) : A(1) / sum;
    *x.lse.row(d.b, h, t.first + r) = empty ? kNothing<A> : w.max[r] + log_value(sum);
    if (x.score_mean.data != nullptr) {
      *x.score_mean.row(d.b, h, t.first + r) = w.moment[r] * inverse;
    }
    unpack_rows(w.acc + r * padded_v, d.b, t.first + r, h, 1, x.value_dim, padded_v, inverse,
                x.out);
  }
}

template <class T, class A>
void backward_tile(const AwaArgs<T, A>& x, const Document& d, const QueryTile& t, std::int64_t h,
                   const Pieces<A>& w) {
  const std::int64_t dim = x.head_dim, padded = x.padded_dim, padded_v = x.padded_value_dim;
  pack_rows(x.q, d.b, t.first, h, t.rows, dim, padded, x.scale, w.q);
  pack_rows(x.dout, d.b, t.first, h, t.rows, x.value_dim, padded_v, A(1), w.dout);
  row_deltas(x.saved_out, d.b, t.first, h, t.rows, x.value_dim, padded_v, w.dout, w.delta);
  for (std::int64_t r = 0; r < t.rows; ++r) {
    const A lse = *x.lse.row(d.b, h, t.first + r);
    w.reference[r] = lse == kNothing<A> ? A(0) : lse;
  }
  A* const dq = w.acc;
  for (std::int64_t i = 0; i < t.rows * padded; ++i) dq[i] = A(0);
  for_each_key_tile(
      t, [&](PartKind part, std::int64_t first, std::int64_t offset, std::int64_t keys) {
        const Meeting m = meet(x, d, t, part, first, keys);
        score_tile(w.q, padded, w.kt + offset * padded, kTile, w.p, t.rows, keys, dim, false);
        score_tile(w.dout, padded_v, w.vt + offset * padded_v, kTile, w.dp, t.rows, keys,
                   x.value_dim, false);
        hide(x, d, t, m, w.p);
        visible_gradients(t, keys, w);
        A* const dk = w.dk + offset * padded;
        A* const dv = w.dv + offset * padded_v;
        const A* const k = w.k + offset * padded;
        if (m.whole) {
          weighted_columns(w.p, kTile, w.dout, dv, padded_v, t.rows, keys, false);
          weighted_columns(w.dp, kTile, w.q, dk, padded, t.rows, keys, false);
          weighted_rows<Store::kAdd>(w.dp, kTile, k, dq, padded, t.rows, keys, false);
        } else {
          visible_columns(w.p, w.dout, dv, padded_v, t.rows, keys);
          visible_columns(w.dp, w.q, dk, padded, t.rows, keys);
          visible_rows(w.dp, k, dq, padded, t.rows, keys);
        }
      });
  // NOTE: q was packed with the scale in it, so dk has it already; dq gets it here.
  unpack_rows(dq, d.b, t.first, h, t.rows, dim, padded, x.scale, x.dq);
}

// ---- one work unit --------------------------------------------------------------------------

template <class T, class A>
Pieces<A> cut_scratch(const AwaArgs<T, A>& x, A* scratch) {
  const std::int64_t table =
      awa_table_rows(x.tokens, x.near_window, x.far_window, x.stride, x.summaries, x.query_tile);
  const std::int64_t padded = x.padded_dim, padded_v = x.padded_value_dim, rows = x.query_tile;
  Bump<A> bump{scratch};
  Pieces<A> w;
  w.k = bump.take(table * padded);
  w.kt = bump.take(table * padded);
  w.dk = bump.take(table * padded);
  w.vt = bump.take(table * padded_v);
  w.v = w.dv = bump.take(table * padded_v);
  w.q = bump.take(rows * padded);
  w.dout = bump.take(rows * padded_v);
  w.acc = bump.take(rows * larger(padded, padded_v));
  w.p = bump.take(rows * kTile);
  w.dp = bump.take(rows * kTile);
  w.lanes = bump.take(rows * kPad);
  w.max = w.reference = bump.take(rows);
  w.moment = w.delta = bump.take(rows);
  w.sum_dk = bump.take(x.tokens * padded);
  w.sum_dv = bump.take(x.tokens * padded_v);
  w.sum_summary_dk = bump.take(x.summaries * padded);
  w.sum_summary_dv = bump.take(x.summaries * padded_v);
  return w;
}

/// `visit(document, tile of queries)` for each tile of work unit `unit`.
template <class T, class A, class Visit>
void for_each_query_tile(const AwaArgs<T, A>& x, std::int64_t unit, const Visit& visit) {
  Document d{unit / x.kv_heads, unit % x.kv_heads, 0, 0, {0, 0}};
  for (; d.begin < x.tokens; d.begin = d.end) {
    d.end = x.doc_end.data != nullptr ? x.doc_end.row(d.b)[d.begin] : x.tokens;
    if (x.summaries > 0) {
      const std::int32_t* const ends = x.summary_end.row(d.b);
      d.summaries.begin = summaries_until(ends, {0, x.summaries}, d.begin - 1);
      d.summaries.end = summaries_until(ends, {0, x.summaries}, d.end - 1);
    }
    for (std::int64_t i = d.begin; i < d.end; i += x.query_tile) visit(d, tile_of(x, d, i));
  }
}

template <class T, class A>
void forward_unit(const AwaArgs<T, A>& x, std::int64_t unit, const Pieces<A>& w) {
  const std::int64_t group = x.heads / x.kv_heads;
  for_each_query_tile(x, unit, [&](const Document& d, const QueryTile& t) {
    pack_table(x.k, x.summary_k, d, t, x.head_dim, x.padded_dim, w.k, w.kt);
    pack_table(x.v, x.summary_v, d, t, x.value_dim, x.padded_value_dim, w.v,
               static_cast<A*>(nullptr));
    for (std::int64_t h = d.kv_head * group; h < (d.kv_head + 1) * group; ++h) {
      forward_tile(x, d, t, h, w);
    }
  });
}

template <class T, class A>
void backward_unit(const AwaArgs<T, A>& x, std::int64_t unit, const Pieces<A>& w) {
  const std::int64_t group = x.heads / x.kv_heads, b = unit / x.kv_heads, kv = unit % x.kv_heads;
  const std::int64_t padded = x.padded_dim, padded_v = x.padded_value_dim;
  for (std::int64_t i = 0; i < (x.tokens + x.summaries) * (padded + padded_v); ++i) {
    w.sum_dk[i] = A(0);  // all four sums lie one behind the other
  }
  for_each_query_tile(x, unit, [&](const Document& d, const QueryTile& t) {
    pack_table(x.k, x.summary_k, d, t, x.head_dim, padded, w.k, w.kt);
    pack_table(x.v, x.summary_v, d, t, x.value_dim, padded_v, w.v, w.vt);
    std::int64_t rows = 0;
    for (const Part& part : t.parts) rows += whole_tiles(part.count);
    for (std::int64_t i = 0; i < rows * padded; ++i) w.dk[i] = A(0);
    for (std::int64_t i = 0; i < rows * padded_v; ++i) w.dv[i] = A(0);
    for (std::int64_t h = d.kv_head * group; h < (d.kv_head + 1) * group; ++h) {
      backward_tile(x, d, t, h, w);
    }
    add_table(t, padded, w.dk, w.sum_dk, w.sum_summary_dk);
    add_table(t, padded_v, w.dv, w.sum_dv, w.sum_summary_dv);
  });
  unpack_rows(w.sum_dk, b, 0, kv, x.tokens, x.head_dim, padded, A(1), x.dk);
  unpack_rows(w.sum_dv, b, 0, kv, x.tokens, x.value_dim, padded_v, A(1), x.dv);
  unpack_rows(w.sum_summary_dk, b, 0, kv, x.summaries, x.head_dim, padded, A(1), x.d_summary_k);
  unpack_rows(w.sum_summary_dv, b, 0, kv, x.summaries, x.value_dim, padded_v, A(1), x.d_summary_v);
}

}  // namespace

#define K25_AWA_DEFINE(T, A)                                                               \
  void awa_forward_cpu(const AwaArgs<T, A>& args, std::int64_t begin, std::int64_t end,    \
                       A* scratch) {                                                       \
    const Pieces<A> pieces = cut_scratch(args, scratch);                                   \
    for (std::int64_t unit = begin; unit < end; ++unit) forward_unit(args, unit, pieces);  \
  }                                                                                        \
  void awa_backward_cpu(const AwaArgs<T, A>& args, std::int64_t begin, std::int64_t end,   \
                        A* scratch) {                                                      \
    const Pieces<A> pieces = cut_scratch(args, scratch);                                   \
    for (std::int64_t unit = begin; unit < end; ++unit) backward_unit(args, unit, pieces); \
  }
K25_AWA_DEFINE(float, float)
K25_AWA_DEFINE(BFloat16, float)
K25_AWA_DEFINE(double, double)
#undef K25_AWA_DEFINE

}  // namespace k25::kernels::K25_ISA
