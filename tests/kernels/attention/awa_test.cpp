#include "kernels/attention/awa.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kernels/attention/attention.h"
#include "tests/kernels/allocation_counter.h"
#include "tests/kernels/attention/awa_oracle.h"
#include "tests/kernels/op_test.h"

namespace k25::awa_test {
namespace {

using kernels::awa_plan;
using op_test::all_near;
using op_test::for_each_context;
using op_test::for_each_isa;
using op_test::gradient_near;
using op_test::low_precision_near;
using op_test::make_context;
using op_test::throws_error;
using op_test::weighted_sum;

struct Windows {
  std::int64_t near, far, stride, query_tile = 64;
};

AwaDesc desc_of(std::int64_t batch, std::int64_t tokens, const Windows& w,
                DType dtype = DType::kFloat64) {
  AwaDesc d;
  d.batch = batch;
  d.tokens = tokens;
  d.heads = 2;
  d.kv_heads = 1;
  d.head_dim = 5;
  d.value_dim = 3;
  d.near_window = w.near;
  d.far_window = w.far;
  d.stride = w.stride;
  d.query_tile = w.query_tile;
  d.dtype = dtype;
  return d;
}

/// Ends of segments of `length` tokens in documents of these lengths; an unfinished one has none.
std::vector<std::int64_t> segment_ends(const std::vector<std::int64_t>& documents,
                                       std::int64_t length, std::int64_t slots) {
  std::vector<std::int64_t> ends;
  std::int64_t begin = 0;
  for (const std::int64_t document : documents) {
    for (std::int64_t end = length; end <= document; end += length) ends.push_back(begin + end - 1);
    begin += document;
  }
  if (static_cast<std::int64_t>(ends.size()) > slots) std::abort();
  ends.resize(static_cast<std::size_t>(slots), begin);
  return ends;
}

/// Both directions against the definition in fp64.
void expect_exact(Context& ctx, Problem& p, double tolerance = 1e-12) {
  p.forward(ctx);
  p.backward(ctx);
  const Naive expected = p.naive<double>();
  EXPECT_TRUE(all_near(p.out.get(), expected.out, tolerance));
  EXPECT_TRUE(all_near(p.lse.get(), expected.lse, tolerance));
  EXPECT_TRUE(all_near(p.score_mean.get(), expected.score_mean, tolerance));
  EXPECT_TRUE(all_near(p.dq.get(), expected.dq, tolerance));
  EXPECT_TRUE(all_near(p.dk.get(), expected.dk, tolerance));
  EXPECT_TRUE(all_near(p.dv.get(), expected.dv, tolerance));
  EXPECT_TRUE(all_near(p.d_summary_k.get(), expected.d_summary_k, tolerance));
  EXPECT_TRUE(all_near(p.d_summary_v.get(), expected.d_summary_v, tolerance));
  for (const GuardedTensor* t : p.results()) EXPECT_TRUE(t->guards_intact());
}

// Two tokens far apart in kind: query 2 sees itself (near), token 0 through a step, not token 1.
TEST(Awa, HandComputed) {
  for_each_isa([](Context& ctx) {
    AwaDesc d = desc_of(1, 3, {1, 3, 2}, DType::kFloat32);
    d.heads = d.head_dim = d.value_dim = 1;
    d.scale = 1.0;
    Problem p(d);
    p.q.set({1.0, 1.0, 1.0});
    p.k.set({std::log(3.0), 50.0, 0.0});
    p.v.set({4.0, 100.0, 8.0});
    p.forward(ctx);
    // p of query 2: (3/4, hidden, 1/4).
    EXPECT_NEAR(p.out.get(2), 5.0, 1e-6);
    EXPECT_NEAR(p.lse.get(2), std::log(4.0), 1e-6);
    EXPECT_NEAR(p.score_mean.get(2), 0.75 * std::log(3.0), 1e-6);
  });
}

TEST(Awa, EveryQueryAtScaledWindows) {
  const std::vector<Windows> cases = {
      {4, 16, 4},       {1, 1, 1},       {3, 3, 2},        {5, 20, 3, 7}, {1, 40, 64, 16},
      {20, 90, 4, 32},  {70, 100, 4, 8}, {64, 128, 1, 64}, {2, 11, 4, 1}, {16, 17, 5, 40},
      {200, 200, 4, 9}, {8, 32, 4, 512}, {63, 129, 2, 65},
  };
  for_each_isa([&](Context& ctx) {
    for (const Windows& w : cases) {
      for (const std::int64_t tokens : {1, 15, 64, 150}) {
        SCOPED_TRACE("windows " + std::to_string(w.near) + ", " + std::to_string(w.far) +
                     ", stride " + std::to_string(w.stride) + ", tile " +
                     std::to_string(w.query_tile) + ", tokens " + std::to_string(tokens));
        AwaDesc d = desc_of(1, tokens, w);
        d.summaries = 20;
        Problem p(d, {}, {segment_ends({tokens}, 8, 20)});
        expect_exact(ctx, p);
      }
    }
  });
}

TEST(Awa, DocumentsAndSummariesOfEachItsOwn) {
  const Rows documents = {{150}, {1, 40, 64, 45}, {70, 80}};
  Rows ends;
  for (const auto& lengths : documents) ends.push_back(segment_ends(lengths, 6, 25));
  for_each_context([&](Context& ctx) {
    for (const std::int64_t tile : {5, 64}) {
      AwaDesc d = desc_of(3, 150, {7, 30, 4, tile});
      d.heads = 6;
      d.kv_heads = 3;
      d.summaries = 25;
      Problem p(d, documents, ends, {}, {3, 1});
      expect_exact(ctx, p);
    }
  });
}

TEST(Awa, HeadDimensions) {
  for_each_isa([](Context& ctx) {
    for (const auto& [dim, value_dim] : {std::pair{1, 1}, {16, 48}, {17, 0}, {64, 3}, {128, 128}}) {
      SCOPED_TRACE(std::to_string(dim) + ", " + std::to_string(value_dim));
      AwaDesc d = desc_of(1, 40, {6, 20, 3});
      d.head_dim = dim;
      d.value_dim = value_dim;
      d.summaries = 4;
      Problem p(d, {}, {segment_ends({40}, 10, 4)});
      expect_exact(ctx, p);
    }
  });
}

/// Marks of an appendix number 1, a second one hidden from all, and a third.
std::vector<std::int64_t> marks_of(std::int64_t tokens) {
  std::vector<std::int64_t> marks(static_cast<std::size_t>(tokens), 0);
  for (std::int64_t t = 10; t < 18; ++t) marks[static_cast<std::size_t>(t)] = 1;
  for (std::int64_t t = 30; t < 37; ++t) marks[static_cast<std::size_t>(t)] = -1;
  for (std::int64_t t = 80; t < tokens; ++t) marks[static_cast<std::size_t>(t)] = 2;
  return marks;
}

TEST(Awa, AppendicesAreHiddenAsKeys) {
  for_each_isa([](Context& ctx) {
    for (const Windows& w : {Windows{4, 16, 4, 8}, Windows{100, 100, 1, 64}}) {
      AwaDesc d = desc_of(2, 90, w);
      d.summaries = 9;
      Problem p(d, {{90}, {30, 60}}, {segment_ends({90}, 10, 9), segment_ends({30, 60}, 10, 9)},
                {marks_of(90), marks_of(90)});
      expect_exact(ctx, p);
    }
  });
}

// The second document begins in keys that are hidden from all: its first rows see nothing.
TEST(Awa, ARowThatSeesNothingIsDefined) {
  for_each_isa([](Context& ctx) {
    Problem p(desc_of(1, 90, {4, 4, 1}), {{30, 60}}, {}, {marks_of(90)});
    p.forward(ctx);
    p.backward(ctx);
    for (std::int64_t i = 30; i < 37; ++i) {
      EXPECT_EQ(p.lse.get(i), -HUGE_VAL);
      EXPECT_EQ(p.score_mean.get(i), 0.0);
      for (std::int64_t e = 0; e < 2 * 3; ++e) EXPECT_EQ(p.out.get(i * 6 + e), 0.0);
      for (std::int64_t e = 0; e < 2 * 5; ++e) EXPECT_EQ(p.dq.get(i * 10 + e), 0.0);
      for (std::int64_t e = 0; e < 5; ++e) EXPECT_EQ(p.dk.get(i * 5 + e), 0.0);
    }
    expect_exact(ctx, p);
  });
}

// The recipe's own windows around their ends: equal weights, so that every visible key counts.
TEST(Awa, RecipeWindows) {
  AwaDesc d = desc_of(1, 8300, {2048, 8192, 4, 256}, DType::kFloat32);
  d.heads = d.head_dim = d.value_dim = 1;
  d.summaries = 2;
  Problem p(d, {}, {{60, 8299}});
  p.q.set(std::vector<double>(8300, 0.0));
  Context ctx = make_context();
  p.forward(ctx);
  for (const std::int64_t i :
       {0, 2046, 2047, 2048, 2051, 2052, 8191, 8192, 8195, 8251, 8252, 8299}) {
    SCOPED_TRACE(i);
    double sum = 0, count = 0;
    for (std::int64_t j = 0; j <= i; ++j) {
      if (p.sees_key(0, i, j)) sum += p.v.get(j), ++count;
    }
    if (p.sees_summary(0, i, 0)) sum += p.summary_v.get(0), ++count;
    EXPECT_LE(count, 2048 + 1536 + 1);
    EXPECT_NEAR(p.lse.get(i), std::log(count), 1e-5);
    EXPECT_NEAR(p.out.get(i), sum / count, 1e-6);
  }
  EXPECT_FALSE(p.sees_summary(0, 8251, 0));  // segment that ends 8191 before
  EXPECT_TRUE(p.sees_summary(0, 8252, 0));
}

TEST(Awa, WithinTheNearWindowItIsFullCausalAttention) {
  for_each_isa([](Context& ctx) {
    AwaDesc d = desc_of(2, 130, {130, 500, 4, 32});
    d.value_dim = d.head_dim;
    Problem p(d, {{130}, {50, 80}});
    p.forward(ctx);
    p.backward(ctx);
    kernels::AttentionDesc full;
    full.batch = d.batch;
    full.tokens = d.tokens;
    full.heads = d.heads;
    full.kv_heads = d.kv_heads;
    full.head_dim = d.head_dim;
    full.dtype = d.dtype;
    const auto plan = kernels::attention_plan(full);
    const op_test::Scratch scratch(plan.workspace_bytes);
    Problem o(d, {{130}, {50, 80}});
    kernels::attention_forward(ctx, plan, {o.q, o.k, o.v, o.doc_begin, o.doc_end}, {o.out, o.lse},
                               scratch.workspace());
    kernels::attention_backward(ctx, plan,
                                {o.q, o.k, o.v, o.doc_begin, o.doc_end, o.out, o.lse, o.dout},
                                {o.dq, o.dk, o.dv}, scratch.workspace());
    EXPECT_TRUE(all_near(p.out.get(), o.out.get(), 1e-13));
    EXPECT_TRUE(all_near(p.lse.get(), o.lse.get(), 1e-13));
    EXPECT_TRUE(all_near(p.dq.get(), o.dq.get(), 1e-13));
    EXPECT_TRUE(all_near(p.dk.get(), o.dk.get(), 1e-13));
    EXPECT_TRUE(all_near(p.dv.get(), o.dv.get(), 1e-13));
  });
}

TEST(Awa, FiniteDifferences) {
  Context ctx = make_context();
  AwaDesc d = desc_of(1, 40, {4, 12, 3, 16});
  d.summaries = 6;
  std::vector<std::int64_t> marks(40, 0);
  marks[5] = marks[6] = 1;
  marks[33] = -1;
  Problem p(d, {{8, 32}}, {segment_ends({8, 32}, 6, 6)}, {marks});
  const std::vector<double> weights = p.dout.get();
  p.forward(ctx);
  p.backward(ctx);
  const auto dq = p.dq.get(), dk = p.dk.get(), dv = p.dv.get();
  const auto d_summary_k = p.d_summary_k.get(), d_summary_v = p.d_summary_v.get();
  const auto loss = [&] {
    p.forward(ctx);
    return weighted_sum(weights, p.out.get());
  };
  EXPECT_TRUE(gradient_near(p.q, dq, loss));
  EXPECT_TRUE(gradient_near(p.k, dk, loss));
  EXPECT_TRUE(gradient_near(p.v, dv, loss));
  EXPECT_TRUE(gradient_near(p.summary_k, d_summary_k, loss));
  EXPECT_TRUE(gradient_near(p.summary_v, d_summary_v, loss));
  double largest = 0;
  for (const double g : d_summary_v) largest = std::max(largest, std::abs(g));
  EXPECT_GT(largest, 1e-3);  // summaries were seen
}

/// Bits of rows [first, end) of a [1, T, heads, dim] tensor.
std::vector<std::uint8_t> token_bits(const GuardedTensor& t, std::int64_t tokens,
                                     std::int64_t first, std::int64_t end) {
  const auto bits = t.bits();
  const auto row = static_cast<std::int64_t>(bits.size()) / tokens;
  return {bits.begin() + first * row, bits.begin() + end * row};
}

// Nothing later than a token moves its result by a bit: keys, values, queries, and summaries of
// segments that are not complete far enough before it.
TEST(Awa, NoTokenSeesTheFuture) {
  const std::int64_t tokens = 120, far = 24;
  for_each_isa([&](Context& ctx) {
    for (const std::int64_t changed : {1, 37, 64, 100}) {
      SCOPED_TRACE(changed);
      AwaDesc d = desc_of(1, tokens, {6, far, 4, 16}, DType::kFloat32);
      d.summaries = 15;
      const auto ends = segment_ends({tokens}, 8, 15);
      Problem before(d, {}, {ends}), after(d, {}, {ends});
      const double nan = std::numeric_limits<double>::quiet_NaN();
      for (GuardedTensor* t : {&after.q, &after.k, &after.v}) {
        const std::int64_t row = t->count() / tokens;
        for (std::int64_t i = changed * row; i < t->count(); ++i) t->set(i, nan);
      }
      for (std::int64_t s = 0; s < 15; ++s) {
        if (ends[static_cast<std::size_t>(s)] < changed) continue;  // formed of earlier tokens
        for (std::int64_t e = 0; e < d.head_dim; ++e) after.summary_k.set(s * d.head_dim + e, nan);
        for (std::int64_t e = 0; e < d.value_dim; ++e)
          after.summary_v.set(s * d.value_dim + e, nan);
      }
      before.forward(ctx);
      after.forward(ctx);
      EXPECT_EQ(token_bits(before.out, tokens, 0, changed),
                token_bits(after.out, tokens, 0, changed));
    }
  });
}

// NaN in a neighbouring document, and in a token that its window has left behind, reach nothing.
TEST(Awa, NothingHiddenLeaks) {
  for_each_isa([](Context& ctx) {
    AwaDesc d = desc_of(1, 150, {6, 24, 4, 32}, DType::kFloat32);
    const Rows documents = {{50, 100}};
    Problem clean(d, documents), dirty(d, documents);
    const double nan = std::numeric_limits<double>::quiet_NaN();
    // All of the first document, and token 61 = 50 + 11, on no step: seen by 61 to 66 alone.
    for (GuardedTensor* t : {&dirty.q, &dirty.k, &dirty.v, &dirty.dout}) {
      const std::int64_t row = t->count() / 150;
      for (std::int64_t i = 0; i < 50 * row; ++i) t->set(i, nan);
    }
    for (GuardedTensor* t : {&dirty.k, &dirty.v}) {
      const std::int64_t row = t->count() / 150;
      for (std::int64_t i = 61 * row; i < 62 * row; ++i) t->set(i, nan);
    }
    for (Problem* p : {&clean, &dirty}) {
      p->forward(ctx);
      p->backward(ctx);
    }
    for (const auto& [first, end] : {std::pair{50, 61}, {67, 150}}) {
      EXPECT_EQ(token_bits(clean.out, 150, first, end), token_bits(dirty.out, 150, first, end));
      EXPECT_EQ(token_bits(clean.dq, 150, first, end), token_bits(dirty.dq, 150, first, end));
    }
    EXPECT_EQ(token_bits(clean.dv, 150, 67, 150), token_bits(dirty.dv, 150, 67, 150));
    for (std::int64_t i = 61 * 6; i < 67 * 6; ++i) EXPECT_TRUE(std::isnan(dirty.out.get(i)));
  });
}

TEST(Awa, BitsDoNotDependOnThreadsAlignmentOrPlace) {
  ThreadPool pool(3);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for_each_isa([&](Context& ctx) {
      AwaDesc d = desc_of(5, 90, {7, 30, 4, 16}, dtype);
      d.heads = 16;
      d.kv_heads = 8;
      d.summaries = 9;
      const Rows ends(5, segment_ends({90}, 10, 9));
      Problem one(d, {}, ends), three(d, {}, ends, {}, {7, 3});
      one.forward(ctx);
      one.backward(ctx);
      Context threaded = make_context(ctx.isa, &pool);
      three.forward(threaded);
      three.backward(threaded);
      for (std::size_t i = 0; i < one.results().size(); ++i) {
        EXPECT_EQ(one.results()[i]->bits(), three.results()[i]->bits()) << i;
      }
    });
  }
}

// The tile of queries is a matter of speed alone.
TEST(Awa, TileOfQueriesDoesNotMoveResults) {
  Context ctx = make_context();
  Problem reference(desc_of(1, 700, {50, 200, 4, 1}));
  reference.forward(ctx);
  reference.backward(ctx);
  for (const std::int64_t tile : {3, 64, 512, 4096}) {
    Problem p(desc_of(1, 700, {50, 200, 4, tile}));
    p.forward(ctx);
    p.backward(ctx);
    EXPECT_TRUE(all_near(p.out.get(), reference.out.get(), 1e-13)) << tile;
    EXPECT_TRUE(all_near(p.dk.get(), reference.dk.get(), 1e-13)) << tile;
  }
}

template <class Low>
void expect_low_precision(DType dtype, double floor) {
  AwaDesc d = desc_of(2, 100, {10, 40, 4, 16}, dtype);
  d.head_dim = 32;
  d.value_dim = 16;
  d.summaries = 12;
  const Rows ends = {segment_ends({100}, 8, 12), segment_ends({30, 70}, 8, 12)};
  const Problem operands(d, {{100}, {30, 70}}, ends);
  const Naive low = operands.naive<Low>(), ref = operands.naive<double>();
  for_each_isa([&](Context& ctx) {
    Problem p(d, {{100}, {30, 70}}, ends);
    p.forward(ctx);
    p.backward(ctx);
    EXPECT_TRUE(low_precision_near(p.out.get(), low.out, ref.out, floor));
    EXPECT_TRUE(low_precision_near(p.lse.get(), low.lse, ref.lse, floor));
    EXPECT_TRUE(low_precision_near(p.score_mean.get(), low.score_mean, ref.score_mean, floor));
    EXPECT_TRUE(low_precision_near(p.dq.get(), low.dq, ref.dq, floor));
    EXPECT_TRUE(low_precision_near(p.dk.get(), low.dk, ref.dk, floor));
    EXPECT_TRUE(low_precision_near(p.dv.get(), low.dv, ref.dv, floor));
    EXPECT_TRUE(low_precision_near(p.d_summary_k.get(), low.d_summary_k, ref.d_summary_k, floor));
    EXPECT_TRUE(low_precision_near(p.d_summary_v.get(), low.d_summary_v, ref.d_summary_v, floor));
  });
}
TEST(Awa, Fp32) { expect_low_precision<float>(DType::kFloat32, 1e-7); }
TEST(Awa, Bf16) { expect_low_precision<op_test::NaiveBf16>(DType::kBFloat16, 1e-4); }

// Scores of hundreds overflow exp without the running maximum.
TEST(Awa, LargeScores) {
  for_each_isa([](Context& ctx) {
    AwaDesc d = desc_of(1, 90, {10, 40, 4, 16});
    d.scale = 300.0;
    Problem p(d);
    expect_exact(ctx, p, 1e-9);
  });
}

// With the recipe's segments of 8192 tokens the working set of a tile of queries hardly grows.
TEST(Awa, WorkingSetDoesNotGrowWithTheSequence) {
  const auto plan = [](std::int64_t tokens) {
    AwaDesc d = desc_of(1, tokens, {2048, 8192, 4, 64}, DType::kBFloat16);
    d.head_dim = d.value_dim = 128;
    d.summaries = tokens / 8192;
    return awa_plan(d);
  };
  const auto small = plan(32 << 10), large = plan(128 << 10);
  EXPECT_LE(static_cast<double>(large.tile_bytes.n), 1.2 * static_cast<double>(small.tile_bytes.n));
  // What lies beside the tile is linear in the tokens: the sums of gradients.
  const std::int64_t rest_small = small.workspace_bytes.n - small.tile_bytes.n;
  const std::int64_t rest_large = large.workspace_bytes.n - large.tile_bytes.n;
  EXPECT_EQ(rest_large, 4 * rest_small);
  EXPECT_EQ(rest_small, ((32 << 10) + 4) * 256 * 4);
}

TEST(Awa, NothingToDo) {
  Context ctx = make_context();
  for (const auto& [batch, tokens] : {std::pair{0, 5}, {2, 0}}) {
    Problem p(desc_of(batch, tokens, {2, 4, 2}));
    EXPECT_EQ(awa_plan(p.desc).workspace_bytes.n, 0);
    p.forward(ctx);
    p.backward(ctx);
  }
}

TEST(Awa, AllocatesNothing) {
  AwaDesc d = desc_of(2, 90, {7, 30, 4, 16}, DType::kFloat32);
  d.summaries = 9;
  const Rows ends(2, segment_ends({90}, 10, 9));
  Problem p(d, {{90}, {40, 50}}, ends, {marks_of(90), marks_of(90)});
  const auto plan = awa_plan(d);
  const op_test::Scratch scratch(plan.workspace_bytes);
  const kernels::AwaForwardIn forward{p.q, p.keys()};
  const kernels::AwaForwardOut out{p.out, p.lse, p.score_mean};
  const kernels::AwaBackwardIn backward{p.q, p.keys(), p.out, p.lse, p.dout};
  const kernels::AwaBackwardOut gradients{p.dq, p.dk, p.dv, p.d_summary_k, p.d_summary_v};
  op_test::expect_counted_allocation();
  op_test::expect_no_allocation([&](Context& ctx) {
    kernels::awa_forward(ctx, plan, forward, out, scratch.workspace());
    kernels::awa_backward(ctx, plan, backward, gradients, scratch.workspace());
  });
}

TEST(Awa, BadPlans) {
  const auto refused = [](const std::function<void(AwaDesc&)>& change, std::string_view part) {
    AwaDesc d = desc_of(1, 4, {2, 4, 2});
    change(d);
    return throws_error([&] { awa_plan(d); }, ErrorKind::kUsage, {"awa", part});
  };
  EXPECT_TRUE(refused([](AwaDesc& d) { d.heads = 3, d.kv_heads = 2; }, "heads 3 must be a multip"));
  EXPECT_TRUE(refused([](AwaDesc& d) { d.kv_heads = 0; }, "kv_heads 0"));
  EXPECT_TRUE(refused([](AwaDesc& d) { d.head_dim = 0; }, "head_dim 0"));
  EXPECT_TRUE(refused([](AwaDesc& d) { d.value_dim = -1; }, "value_dim -1"));
  EXPECT_TRUE(refused([](AwaDesc& d) { d.batch = -1; }, "batch -1"));
  EXPECT_TRUE(refused([](AwaDesc& d) { d.tokens = -4; }, "tokens -4"));
  EXPECT_TRUE(refused([](AwaDesc& d) { d.summaries = -2; }, "summaries -2"));
  EXPECT_TRUE(refused([](AwaDesc& d) { d.tokens = 0, d.summaries = 1; }, "without tokens"));
  EXPECT_TRUE(refused([](AwaDesc& d) { d.near_window = 0; }, "near_window 0"));
  EXPECT_TRUE(refused([](AwaDesc& d) { d.far_window = 1; }, "far_window 1 must not be less"));
  EXPECT_TRUE(refused([](AwaDesc& d) { d.stride = 0; }, "stride 0"));
  EXPECT_TRUE(refused([](AwaDesc& d) { d.query_tile = 0; }, "query_tile 0 must be positive"));
  EXPECT_TRUE(refused([](AwaDesc& d) { d.dtype = DType::kInt32; }, "int32"));
  EXPECT_TRUE(refused([](AwaDesc& d) { d.scale = -1; }, "scale"));
  EXPECT_TRUE(refused([](AwaDesc& d) { d.device = Device::kCuda; }, "CPU only"));
}

TEST(Awa, BadOperands) {
  Context ctx = make_context();
  AwaDesc d = desc_of(2, 6, {2, 4, 2});
  d.summaries = 3;
  const Rows ends = {{1, 3, 6}, {2, 6, 6}};
  const auto refused = [&](const std::function<void(Problem&)>& change, std::string_view part) {
    Problem p(d, {{6}, {2, 4}}, ends, {{0, 0, 0, 0, 0, 0}, {0, 0, 0, 0, 0, 0}});
    p.forward(ctx);
    change(p);
    const auto forward = throws_error([&] { p.forward(ctx); }, ErrorKind::kUsage, {part});
    if (!forward) return forward;
    return throws_error([&] { p.backward(ctx); }, ErrorKind::kUsage, {part});
  };
  EXPECT_TRUE(refused([](Problem& p) { p.doc_end.set(7, 7); }, "sequence 1, token 1"));
  EXPECT_TRUE(refused([](Problem& p) { p.summary_end.set(1, 1); },
                      "awa: summary_end of sequence 0, slot 1: 1 does not rise"));
  EXPECT_TRUE(refused([](Problem& p) { p.summary_end.set(3, 7); },
                      "awa: summary_end of sequence 1, slot 0: 7 leaves the sequence of 6"));
  EXPECT_TRUE(refused([](Problem& p) { p.summary_end.set(0, -1); }, "slot 0: -1 leaves"));
  EXPECT_TRUE(refused([](Problem& p) { p.summary_end.set(4, 6), p.summary_end.set(5, 3); },
                      "sequence 1, slot 2: 3 does not rise"));
  EXPECT_TRUE(refused([](Problem& p) { p.q = GuardedTensor(DType::kFloat64, {2, 6, 2, 4}); },
                      "awa: q is fp64 [2, 6, 2, 4], expected fp64 [2, 6, 2, 5]"));
  EXPECT_TRUE(
      refused([](Problem& p) { p.v = GuardedTensor(DType::kFloat64, {2, 6, 1, 5}); }, "awa: v is"));
  EXPECT_TRUE(refused([](Problem& p) { p.appendix = GuardedTensor(DType::kInt64, {2, 6}); },
                      "awa: appendix is int64"));
  EXPECT_TRUE(
      refused([](Problem& p) { p.summary_k = GuardedTensor(DType::kFloat64, {2, 3, 1, 4}); },
              "awa: summary_k is"));
  EXPECT_TRUE(refused([](Problem& p) { p.lse = GuardedTensor(DType::kFloat64, {2, 6, 2}); },
                      "awa: lse is"));
}

}  // namespace
}  // namespace k25::awa_test
