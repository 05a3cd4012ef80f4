// What a token must not see, and where the operands may lie.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/attention/attention.h"
#include "tests/kernels/attention/attention_oracle.h"
#include "tests/kernels/op_test.h"

namespace k25::attention_test {
namespace {

using kernels::attention_backward;
using kernels::attention_forward;
using kernels::attention_plan;
using op_test::for_each_isa;
using op_test::make_context;
using op_test::Scratch;

const std::int64_t kTile = query_tile();

/// Elements [begin, end) of token range of a [B, T, H, E] tensor (B = 1).
std::vector<double> tokens_of(const GuardedTensor& t, std::int64_t tokens, std::int64_t begin,
                              std::int64_t end) {
  const std::int64_t row = t.count() / tokens;
  const auto all = t.get();
  return {all.begin() + begin * row, all.begin() + end * row};
}

// Whatever comes later, even an infinity, leaves the bits of what came before.
TEST(Attention, TheFutureChangesNothing) {
  for_each_isa([](Context& ctx) {
    for (const double planted : {3.0, HUGE_VAL, std::nan("")}) {
      const std::int64_t tokens = 2 * kTile + 9;
      Problem p(desc_of(1, tokens, 2, 1, 8, DType::kFloat32), {});
      p.forward(ctx);
      const auto before = p.out.get();
      for (const std::int64_t from :
           {std::int64_t{1}, std::int64_t{5}, kTile - 1, kTile, kTile + 13, 2 * kTile + 8}) {
        Problem changed(p.desc, {});
        for (std::int64_t i = from * 8; i < changed.v.count(); ++i) {
          changed.k.set(i, planted);
          changed.v.set(i, planted);
        }
        changed.forward(ctx);
        EXPECT_EQ(tokens_of(changed.out, tokens, 0, from),
                  std::vector<double>(before.begin(), before.begin() + from * 16))
            << "from token " << from;
      }
    }
  });
}

// 0 * NaN is NaN: a masked neighbour must not even be multiplied.
TEST(Attention, NeighbourDocumentsDoNotLeak) {
  for_each_isa([](Context& ctx) {
    for (const Masking masking : {Masking::kCausal, Masking::kBidirectional}) {
      const AttentionDesc d = desc_of(1, 50, 4, 2, 8, DType::kFloat32, masking);
      const Documents documents = {{20, 13, 17}};
      Problem clean(d, documents), dirty(d, documents);
      for (GuardedTensor* t : {&dirty.q, &dirty.k, &dirty.v, &dirty.dout}) {
        const std::int64_t row = t->count() / 50;
        for (std::int64_t i = 20 * row; i < 33 * row; ++i) t->set(i, std::nan(""));
      }
      for (Problem* p : {&clean, &dirty}) {
        p->forward(ctx);
        p->backward(ctx);
      }
      const auto same = [](const GuardedTensor& a, const GuardedTensor& b) {
        EXPECT_EQ(tokens_of(a, 50, 0, 20), tokens_of(b, 50, 0, 20));
        EXPECT_EQ(tokens_of(a, 50, 33, 50), tokens_of(b, 50, 33, 50));
      };
      same(clean.out, dirty.out);
      same(clean.dq, dirty.dq);
      same(clean.dk, dirty.dk);
      same(clean.dv, dirty.dv);
      EXPECT_TRUE(std::isnan(dirty.out.get(20 * 32)));
      EXPECT_TRUE(std::isnan(dirty.lse.get(25)));
    }
  });
}

// A document gives the same bits wherever it lies in the sequence.
TEST(Attention, PositionInTheSequenceChangesNothing) {
  Context ctx = make_context();
  Problem alone(desc_of(1, 100, 2, 1, 8, DType::kFloat32), {});
  Problem packed(desc_of(1, 141, 2, 1, 8, DType::kFloat32), {{41, 100}});
  for (const auto& [from, to] : {std::pair{&alone.q, &packed.q},
                                 {&alone.k, &packed.k},
                                 {&alone.v, &packed.v},
                                 {&alone.dout, &packed.dout}}) {
    const std::int64_t row = from->count() / 100;
    for (std::int64_t i = 0; i < from->count(); ++i) to->set(41 * row + i, from->get(i));
  }
  for (Problem* p : {&alone, &packed}) {
    p->forward(ctx);
    p->backward(ctx);
  }
  EXPECT_EQ(alone.out.get(), tokens_of(packed.out, 141, 41, 141));
  EXPECT_EQ(alone.dq.get(), tokens_of(packed.dq, 141, 41, 141));
  EXPECT_EQ(alone.dk.get(), tokens_of(packed.dk, 141, 41, 141));
  EXPECT_EQ(alone.dv.get(), tokens_of(packed.dv, 141, 41, 141));
}

// q, k and v as slices of the fused [tokens, (H + 2K) E] matrix of one projection.
TEST(Attention, SlicesOfAFusedMatrix) {
  Context ctx = make_context();
  const AttentionDesc d = desc_of(2, 30, 4, 2, 8, DType::kFloat32);
  Problem p(d, {});
  p.forward(ctx);
  p.backward(ctx);
  GuardedTensor fused(d.dtype, {2, 30, 8, 8}), dfused(d.dtype, {2, 30, 8, 8});
  for (std::int64_t row = 0; row < 60; ++row) {
    for (std::int64_t i = 0; i < 32; ++i) fused.set(row * 64 + i, p.q.get(row * 32 + i));
    for (std::int64_t i = 0; i < 16; ++i) fused.set(row * 64 + 32 + i, p.k.get(row * 16 + i));
    for (std::int64_t i = 0; i < 16; ++i) fused.set(row * 64 + 48 + i, p.v.get(row * 16 + i));
  }
  const auto part = [](const GuardedTensor& t, std::int64_t begin, std::int64_t end) {
    return t.tensor().slice(2, begin, end);
  };
  GuardedTensor out(d.dtype, {2, 30, 4, 8}), lse(DType::kFloat32, {2, 4, 30});
  const auto plan = attention_plan(d);
  const Scratch scratch(plan.workspace_bytes);
  const Tensor q = part(fused, 0, 4), k = part(fused, 4, 6), v = part(fused, 6, 8);
  attention_forward(ctx, plan, {q, k, v, {}, {}}, {out, lse}, scratch.workspace());
  attention_backward(ctx, plan, {q, k, v, {}, {}, out, lse, p.dout},
                     {part(dfused, 0, 4), part(dfused, 4, 6), part(dfused, 6, 8)},
                     scratch.workspace());
  EXPECT_EQ(out.get(), p.out.get());
  EXPECT_EQ(lse.get(), p.lse.get());
  for (std::int64_t row = 0; row < 60; ++row) {
    for (std::int64_t i = 0; i < 32; ++i) {
      ASSERT_EQ(dfused.get(row * 64 + i), p.dq.get(row * 32 + i));
    }
    for (std::int64_t i = 0; i < 16; ++i) {
      ASSERT_EQ(dfused.get(row * 64 + 32 + i), p.dk.get(row * 16 + i));
      ASSERT_EQ(dfused.get(row * 64 + 48 + i), p.dv.get(row * 16 + i));
    }
  }
  EXPECT_TRUE(dfused.guards_intact());
}

}  // namespace
}  // namespace k25::attention_test
