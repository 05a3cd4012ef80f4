#include "kernels/attention/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/kernels/attention/attention_oracle.h"
#include "tests/kernels/op_test.h"

namespace k25::attention_test {
namespace {

using kernels::attention_backward;
using kernels::attention_forward;
using kernels::attention_plan;
using op_test::all_near;
using op_test::for_each_context;
using op_test::for_each_isa;
using op_test::gradient_near;
using op_test::low_precision_near;
using op_test::make_context;
using op_test::Scratch;
using op_test::throws_error;
using op_test::weighted_sum;

const std::int64_t kTile = query_tile();

/// Both directions against the naive formula in fp64.
void expect_exact(Context& ctx, Problem& p) {
  p.forward(ctx);
  p.backward(ctx);
  const Naive expected = p.naive<double>();
  EXPECT_TRUE(all_near(p.out.get(), expected.out, 1e-12));
  EXPECT_TRUE(all_near(p.lse.get(), expected.lse, 1e-12));
  EXPECT_TRUE(all_near(p.dq.get(), expected.dq, 1e-12));
  EXPECT_TRUE(all_near(p.dk.get(), expected.dk, 1e-12));
  EXPECT_TRUE(all_near(p.dv.get(), expected.dv, 1e-12));
  EXPECT_TRUE(p.guards_intact());
}

// Two tokens, one head, E = 1: query 1 sees scores 0 and log 3, so p = (1/4, 3/4).
TEST(Attention, HandComputed) {
  for_each_isa([](Context& ctx) {
    AttentionDesc d = desc_of(1, 2, 1, 1, 1, DType::kFloat32);
    d.scale = 1.0;
    Problem p(d, {});
    p.q.set({5.0, 1.0});
    p.k.set({0.0, std::log(3.0)});
    p.v.set({8.0, 4.0});
    p.dout.set({0.0, 1.0});
    p.forward(ctx);
    p.backward(ctx);
    EXPECT_TRUE(all_near(p.out.get(), {8.0, 5.0}, 1e-6));
    EXPECT_TRUE(all_near(p.lse.get(), {0.0, std::log(4.0)}, 1e-6));
    // ds = p (dp - out): 1/4 (8 - 5) and 3/4 (4 - 5).
    EXPECT_TRUE(all_near(p.dq.get(), {0.0, -0.75 * std::log(3.0)}, 1e-6));
    EXPECT_TRUE(all_near(p.dk.get(), {0.75, -0.75}, 1e-6));
    EXPECT_TRUE(all_near(p.dv.get(), {0.25, 0.75}, 1e-6));
  });
}

TEST(Attention, TokenCountsAroundTheTile) {
  for_each_isa([](Context& ctx) {
    for (const Masking masking : {Masking::kCausal, Masking::kBidirectional}) {
      for (const std::int64_t tokens : {std::int64_t{1}, std::int64_t{2}, std::int64_t{7},
                                        kTile - 1, kTile, kTile + 1, 2 * kTile + 37}) {
        SCOPED_TRACE(tokens);
        Problem p(desc_of(1, tokens, 2, 1, 8, DType::kFloat64, masking), {});
        expect_exact(ctx, p);
      }
    }
  });
}

TEST(Attention, HeadDimensions) {
  for_each_isa([](Context& ctx) {
    for (const std::int64_t dim : {1, 3, 16, 17, 32, 48, 64, 128}) {
      SCOPED_TRACE(dim);
      Problem p(desc_of(1, 21, 2, 2, dim), {});
      expect_exact(ctx, p);
    }
  });
}

// As in latent attention, whose keys carry positions besides what values have.
TEST(Attention, ValuesOfAnotherWidth) {
  for_each_isa([](Context& ctx) {
    for (const auto& [dim, value_dim] : {std::pair{192, 128}, {5, 3}, {3, 40}, {24, 16}}) {
      SCOPED_TRACE(std::to_string(dim) + ", " + std::to_string(value_dim));
      AttentionDesc d = desc_of(2, kTile + 9, 4, 2, dim);
      d.value_dim = value_dim;
      Problem p(d, {{20, kTile - 11}, {kTile + 9}}, {3, 1});
      expect_exact(ctx, p);
    }
  });
}

TEST(Attention, HeadGroups) {
  for_each_isa([](Context& ctx) {
    for (const auto& [heads, kv_heads] : {std::pair{3, 3}, {4, 1}, {8, 2}, {1, 1}}) {
      SCOPED_TRACE(std::to_string(heads) + " / " + std::to_string(kv_heads));
      Problem p(desc_of(2, 19, heads, kv_heads, 5), {});
      expect_exact(ctx, p);
    }
  });
}

TEST(Attention, DocumentsOfEveryLength) {
  const std::vector<Documents> cases = {
      {std::vector<std::int64_t>(70, 1), {70}},
      {{1, 64, 5}, {64, 6}},
      {{3, 65, 2}, {33, 36, 1}},
  };
  for_each_context([&](Context& ctx) {
    for (const Masking masking : {Masking::kCausal, Masking::kBidirectional}) {
      for (const Documents& documents : cases) {
        Problem p(desc_of(2, 70, 2, 1, 4, DType::kFloat64, masking), documents, {3, 1});
        expect_exact(ctx, p);
      }
    }
  });
}

TEST(Attention, NothingToDo) {
  Context ctx = make_context();
  for (const auto& [batch, tokens] : {std::pair{0, 5}, {2, 0}}) {
    Problem p(desc_of(batch, tokens, 2, 1, 4), {});
    EXPECT_EQ(attention_plan(p.desc).workspace_bytes.n, 0);
    p.forward(ctx);
    p.backward(ctx);
    EXPECT_TRUE(p.guards_intact());
  }
}

TEST(Attention, FiniteDifferences) {
  for (const Masking masking : {Masking::kCausal, Masking::kBidirectional}) {
    Problem p(desc_of(2, 11, 4, 2, 6, DType::kFloat64, masking), {{4, 1, 6}, {11}});
    Context ctx = make_context();
    p.forward(ctx);
    p.backward(ctx);
    const auto dq = p.dq.get(), dk = p.dk.get(), dv = p.dv.get(), weights = p.dout.get();
    const auto loss = [&] {
      p.forward(ctx);
      return weighted_sum(weights, p.out.get());
    };
    EXPECT_TRUE(gradient_near(p.q, dq, loss));
    EXPECT_TRUE(gradient_near(p.k, dk, loss));
    EXPECT_TRUE(gradient_near(p.v, dv, loss));
  }
}

TEST(Attention, FiniteDifferencesAcrossTiles) {
  Problem p(desc_of(1, kTile + 9, 2, 1, 2), {});
  Context ctx = make_context();
  p.forward(ctx);
  p.backward(ctx);
  const auto dq = p.dq.get(), dk = p.dk.get(), dv = p.dv.get(), weights = p.dout.get();
  const auto loss = [&] {
    p.forward(ctx);
    return weighted_sum(weights, p.out.get());
  };
  EXPECT_TRUE(gradient_near(p.q, dq, loss));
  EXPECT_TRUE(gradient_near(p.k, dk, loss));
  EXPECT_TRUE(gradient_near(p.v, dv, loss));
}

template <class Low>
void expect_low_precision(DType dtype, double floor) {
  const AttentionDesc desc = desc_of(2, 100, 4, 2, 32, dtype);
  const Documents documents = {{30, 70}, {100}};
  const Problem operands(desc, documents);
  const Naive low = operands.naive<Low>(), ref = operands.naive<double>();
  for_each_context([&](Context& ctx) {
    Problem p(desc, documents);
    p.forward(ctx);
    p.backward(ctx);
    EXPECT_TRUE(low_precision_near(p.out.get(), low.out, ref.out, floor));
    EXPECT_TRUE(low_precision_near(p.lse.get(), low.lse, ref.lse, floor));
    EXPECT_TRUE(low_precision_near(p.dq.get(), low.dq, ref.dq, floor));
    EXPECT_TRUE(low_precision_near(p.dk.get(), low.dk, ref.dk, floor));
    EXPECT_TRUE(low_precision_near(p.dv.get(), low.dv, ref.dv, floor));
    EXPECT_TRUE(p.guards_intact());
  });
}
TEST(Attention, Fp32) { expect_low_precision<float>(DType::kFloat32, 1e-7); }
TEST(Attention, Bf16) { expect_low_precision<op_test::NaiveBf16>(DType::kBFloat16, 1e-4); }

// Scores of +-1000 overflow exp without the running maximum.
TEST(Attention, LargeScores) {
  for_each_isa([](Context& ctx) {
    AttentionDesc d = desc_of(1, kTile + 20, 1, 1, 4, DType::kFloat32);
    d.scale = 300.0;
    Problem p(d, {});
    p.forward(ctx);
    p.backward(ctx);
    const Naive low = p.naive<float>(), ref = p.naive<double>();
    EXPECT_TRUE(low_precision_near(p.out.get(), low.out, ref.out, 1e-6));
    EXPECT_TRUE(low_precision_near(p.lse.get(), low.lse, ref.lse, 1e-6));
    EXPECT_TRUE(low_precision_near(p.dv.get(), low.dv, ref.dv, 1e-6));
    EXPECT_TRUE(low_precision_near(p.dk.get(), low.dk, ref.dk, 1e-4));
  });
}

/// Everything the op wrote, bit by bit.
std::vector<std::uint8_t> all_bits(const Problem& p) {
  std::vector<std::uint8_t> bits;
  for (const GuardedTensor* t : {&p.out, &p.lse, &p.dq, &p.dk, &p.dv}) {
    const auto more = t->bits();
    bits.insert(bits.end(), more.begin(), more.end());
  }
  return bits;
}

TEST(Attention, BitsDoNotDependOnThreadsOrAlignment) {
  ThreadPool pool(3);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for_each_isa([&](Context& ctx) {
      const AttentionDesc d = desc_of(5, 90, 16, 8, 20, dtype);
      const Documents documents(5, {1, 20, 69});
      Problem one(d, documents);
      one.forward(ctx);
      one.backward(ctx);
      Context threaded = make_context(ctx.isa, &pool);
      Problem three(d, documents, {7, 3});
      three.forward(threaded);
      three.backward(threaded);
      EXPECT_EQ(all_bits(one), all_bits(three));
    });
  }
}

// Linear in the number of tokens: a T x T matrix would show.
TEST(Attention, WorkspaceIsNotQuadratic) {
  const auto bytes = [](std::int64_t tokens) {
    return attention_plan(desc_of(1, tokens, 4, 2, 32, DType::kFloat32)).workspace_bytes.n;
  };
  EXPECT_EQ(bytes(8192) - bytes(4096), 2 * (bytes(4096) - bytes(2048)));
  EXPECT_EQ(attention_plan(desc_of(2, 8, 4, 2, 32, DType::kBFloat16)).saved_bytes.n,
            2 * 8 * 4 * (32 * 2 + 4));
}

TEST(Attention, BadPlans) {
  const auto refused = [](const AttentionDesc& d, std::string_view part) {
    return throws_error([&] { attention_plan(d); }, ErrorKind::kUsage, {"attention", part});
  };
  EXPECT_TRUE(refused(desc_of(1, 4, 3, 2, 8), "heads 3 must be a multiple of kv_heads 2"));
  EXPECT_TRUE(refused(desc_of(1, 4, 2, 0, 8), "kv_heads 0"));
  EXPECT_TRUE(refused(desc_of(1, 4, 0, 1, 8), "heads 0"));
  EXPECT_TRUE(refused(desc_of(1, 4, 1, 1, 0), "head_dim 0"));
  EXPECT_TRUE(refused(desc_of(-1, 4, 1, 1, 8), "batch -1"));
  EXPECT_TRUE(refused(desc_of(1, -4, 1, 1, 8), "tokens -4"));
  EXPECT_TRUE(refused(desc_of(1, 4, 1, 1, 8, DType::kInt32), "int32"));
  AttentionDesc d = desc_of(1, 4, 1, 1, 8);
  d.value_dim = -2;
  EXPECT_TRUE(refused(d, "value_dim -2 must be positive"));
  d.value_dim = 4;
  d.dtype = DType::kFloat32;
  d.device = Device::kCuda;
  EXPECT_TRUE(refused(d, "value_dim 4 on the GPU, where it must equal head_dim, 8"));
  d = desc_of(1, 4, 1, 1, 8);
  d.scale = -1;
  EXPECT_TRUE(refused(d, "scale"));
  d.scale = std::nan("");
  EXPECT_TRUE(refused(d, "scale"));
}

// What a caller does before it copies borders to the GPU.
TEST(Attention, DocumentsAreCheckedOnTheHost) {
  AttentionDesc d = desc_of(2, 6, 1, 1, 4, DType::kBFloat16);
  d.device = Device::kCuda;
  const Problem good(desc_of(2, 6, 1, 1, 4), {{6}, {2, 4}});
  EXPECT_NO_THROW(kernels::attention_check_documents(d, good.doc_begin, good.doc_end));
  EXPECT_NO_THROW(kernels::attention_check_documents(d, {}, {}));
  Problem bad(desc_of(2, 6, 1, 1, 4), {{6}, {2, 4}});
  bad.doc_end.set(9, 7);
  const auto refused = [&](const ConstTensor& begin, const ConstTensor& end, std::string_view why) {
    return throws_error([&] { kernels::attention_check_documents(d, begin, end); },
                        ErrorKind::kUsage, {"attention", why});
  };
  EXPECT_TRUE(refused(bad.doc_begin, bad.doc_end, "sequence 1, token 3: document [2, 7) leaves"));
  EXPECT_TRUE(refused(good.doc_begin, {}, "come together"));
  EXPECT_TRUE(refused(good.doc_begin, good.lse, "doc_end is fp64"));
}

TEST(Attention, BadDocuments) {
  Context ctx = make_context();
  const auto refused = [&](std::int64_t t, double begin, double end, std::string_view why) {
    Problem p(desc_of(2, 6, 1, 1, 4), {{6}, {2, 4}});
    p.doc_begin.set(6 + t, begin);
    p.doc_end.set(6 + t, end);
    const std::string document = "[" + std::to_string(static_cast<int>(begin)) + ", " +
                                 std::to_string(static_cast<int>(end)) + ")";
    const std::string where = "sequence 1, token " + std::to_string(t);
    const auto forward = throws_error([&] { p.forward(ctx); }, ErrorKind::kUsage,
                                      {"attention", where, document, why});
    if (!forward) return forward;
    return throws_error([&] { p.backward(ctx); }, ErrorKind::kUsage, {where, document, why});
  };
  EXPECT_TRUE(refused(3, 4, 6, "does not hold its token"));
  EXPECT_TRUE(refused(3, 2, 3, "does not hold its token"));
  EXPECT_TRUE(refused(0, -1, 2, "leaves the sequence of 6 tokens"));
  EXPECT_TRUE(refused(5, 2, 7, "leaves the sequence of 6 tokens"));
  EXPECT_TRUE(refused(4, 3, 6, "disagrees with that of the token before"));
  EXPECT_TRUE(refused(4, 2, 5, "disagrees with that of the token before"));
  EXPECT_TRUE(refused(2, 1, 6, "disagrees with that of the token before"));
}

TEST(Attention, BadOperands) {
  Context ctx = make_context();
  Problem p(desc_of(2, 6, 4, 2, 8, DType::kFloat32), {{6}, {6}});
  const auto plan = attention_plan(p.desc);
  const Scratch scratch(plan.workspace_bytes);
  const auto refused = [&](kernels::AttentionForwardIn in, kernels::AttentionForwardOut out,
                           Workspace workspace, std::string_view part) {
    return throws_error([&] { attention_forward(ctx, plan, in, out, workspace); },
                        ErrorKind::kUsage, {"attention", part});
  };
  const kernels::AttentionForwardIn in{p.q, p.k, p.v, p.doc_begin, p.doc_end};
  const kernels::AttentionForwardOut out{p.out, p.lse};
  const Workspace enough = scratch.workspace();

  auto changed = in;
  changed.q_BTHE = p.k;
  EXPECT_TRUE(refused(changed, out, enough, "q is fp32 [2, 6, 2, 8], expected fp32 [2, 6, 4, 8]"));
  changed = in;
  changed.v_BTKV = {};
  EXPECT_TRUE(refused(changed, out, enough, "v is missing"));
  changed = in;
  changed.k_BTKE = p.q.tensor().slice(3, 0, 4).split_dim(2, 2, 2);
  EXPECT_TRUE(refused(changed, out, enough, "k is"));
  changed = in;
  changed.doc_end_BT = {};
  EXPECT_TRUE(refused(changed, out, enough, "doc_begin and doc_end come together"));
  changed = in;
  changed.doc_begin_BT = p.lse;
  EXPECT_TRUE(refused(changed, out, enough, "doc_begin is fp32"));
  changed = in;
  changed.q_BTHE = ConstTensor(p.q.tensor().raw(), DType::kFloat32, {2, 6, 4, 8}, Device::kCuda);
  EXPECT_TRUE(refused(changed, out, enough, "is on the GPU"));

  auto other = out;
  other.lse_BHT = p.out;
  EXPECT_TRUE(refused(in, other, enough, "lse is"));
  EXPECT_TRUE(refused(in, out, {enough.data, Bytes{enough.size.n - 1}}, "workspace of"));
  EXPECT_TRUE(refused(in, out, {}, "workspace of 0 bytes"));
}

}  // namespace
}  // namespace k25::attention_test
