// What a token must not see on the GPU, and where the operands may lie.
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/core/device.h"
#include "tests/kernels/attention/attention_gpu_problem.h"
#include "tests/kernels/cuda_test.h"

namespace k25::attention_test {
namespace {

using kernels::attention_backward;
using kernels::attention_forward;
using kernels::attention_plan;
using AttentionIsolationCudaTest = op_test::CudaTest;

constexpr DType kDTypes[] = {DType::kFloat32, DType::kBFloat16};
const double kPlanted[] = {3.0, 1e30, HUGE_VAL, -HUGE_VAL, std::nan("")};

// Whatever comes later, even an infinity, leaves the bits of what came before.
TEST_F(AttentionIsolationCudaTest, TheFutureChangesNothing) {
  for (const DType dtype : kDTypes) {
    for (const std::int64_t dim : {64, 128, 256}) {
      const std::int64_t tokens = 300;
      Problem before(desc_of(1, tokens, 2, 1, dim, dtype), {});
      run_on_gpu(gpu(), before);
      for (const double planted : kPlanted) {
        for (const std::int64_t from : {1, 5, 63, 64, 77, 127, 128, 141, 299}) {
          Problem changed(before.desc, {});
          for (std::int64_t i = from * dim; i < changed.v.count(); ++i) {
            changed.k.set(i, planted);
            changed.v.set(i, planted);
          }
          run_on_gpu(gpu(), changed);
          SCOPED_TRACE(std::to_string(planted) + " from token " + std::to_string(from) + " E " +
                       std::to_string(dim));
          ASSERT_EQ(tokens_of(changed.out, tokens, 0, from),
                    tokens_of(before.out, tokens, 0, from));
          ASSERT_EQ(tokens_of(changed.dq, tokens, 0, from), tokens_of(before.dq, tokens, 0, from));
        }
      }
    }
  }
}

// dk and dv of a key come from the queries at and after it.
TEST_F(AttentionIsolationCudaTest, ThePastOfAKeyChangesNothing) {
  for (const DType dtype : kDTypes) {
    for (const std::int64_t dim : {64, 128, 256}) {
      const std::int64_t tokens = 300;
      Problem before(desc_of(1, tokens, 2, 1, dim, dtype), {});
      run_on_gpu(gpu(), before);
      for (const double planted : kPlanted) {
        for (const std::int64_t to : {1, 5, 63, 64, 77, 128, 141, 299}) {
          Problem changed(before.desc, {});
          for (std::int64_t i = 0; i < to * 2 * dim; ++i) {
            changed.q.set(i, planted);
            changed.dout.set(i, planted);
          }
          run_on_gpu(gpu(), changed);
          SCOPED_TRACE(std::to_string(planted) + " to token " + std::to_string(to) + " E " +
                       std::to_string(dim));
          ASSERT_EQ(tokens_of(changed.dk, tokens, to, tokens),
                    tokens_of(before.dk, tokens, to, tokens));
          ASSERT_EQ(tokens_of(changed.dv, tokens, to, tokens),
                    tokens_of(before.dv, tokens, to, tokens));
        }
      }
    }
  }
}

// What a token does see reaches it: NaN and infinities are not lost on the diagonal.
TEST_F(AttentionIsolationCudaTest, VisibleNonFiniteValuesArrive) {
  for (const DType dtype : kDTypes) {
    for (const double planted : {HUGE_VAL, std::nan("")}) {
      const std::int64_t tokens = 100, at = 70, dim = 8;
      const auto poisoned = [&](auto member) {
        Problem p(desc_of(1, tokens, 1, 1, dim, dtype), {});
        (p.*member).set(at * dim + 3, planted);
        run_on_gpu(gpu(), p);
        return p;
      };
      const Problem v = poisoned(&Problem::v), k = poisoned(&Problem::k);
      const Problem q = poisoned(&Problem::q), dout = poisoned(&Problem::dout);
      for (std::int64_t t = 0; t < tokens; ++t) {
        EXPECT_EQ(std::isfinite(v.out.get(t * dim + 3)), t < at) << t;
        EXPECT_TRUE(std::isfinite(v.out.get(t * dim + 2))) << t;
        EXPECT_EQ(std::isfinite(v.dq.get(t * dim)), t < at) << t;
        EXPECT_EQ(std::isfinite(k.dq.get(t * dim + 3)), t < at) << t;
        EXPECT_EQ(std::isfinite(q.dk.get(t * dim + 3)), t > at) << t;
        EXPECT_EQ(std::isfinite(dout.dv.get(t * dim + 3)), t > at) << t;
        EXPECT_TRUE(std::isfinite(dout.dv.get(t * dim + 2))) << t;
      }
    }
  }
}

// 0 * NaN is NaN: a masked neighbour must not even be multiplied.
TEST_F(AttentionIsolationCudaTest, NeighbourDocumentsDoNotLeak) {
  for (const DType dtype : kDTypes) {
    for (const Masking masking : {Masking::kCausal, Masking::kBidirectional}) {
      const AttentionDesc d = desc_of(1, 150, 4, 2, 24, dtype, masking);
      const Documents documents = {{20, 13, 117}};
      Problem clean(d, documents), dirty(d, documents);
      for (GuardedTensor* t : {&dirty.q, &dirty.k, &dirty.v, &dirty.dout}) {
        const std::int64_t row = t->count() / 150;
        for (std::int64_t i = 20 * row; i < 33 * row; ++i) t->set(i, std::nan(""));
      }
      for (Problem* p : {&clean, &dirty}) run_on_gpu(gpu(), *p);
      const auto same = [](const GuardedTensor& a, const GuardedTensor& b) {
        EXPECT_EQ(tokens_of(a, 150, 0, 20), tokens_of(b, 150, 0, 20));
        EXPECT_EQ(tokens_of(a, 150, 33, 150), tokens_of(b, 150, 33, 150));
      };
      same(clean.out, dirty.out);
      same(clean.dq, dirty.dq);
      same(clean.dk, dirty.dk);
      same(clean.dv, dirty.dv);
      EXPECT_TRUE(std::isnan(dirty.out.get(20 * 4 * 24)));
      EXPECT_TRUE(std::isnan(dirty.lse.get(25)));
    }
  }
}

// A document gives the same bits wherever it lies in the sequence.
TEST_F(AttentionIsolationCudaTest, PositionInTheSequenceChangesNothing) {
  for (const DType dtype : kDTypes) {
    Problem alone(desc_of(1, 300, 2, 1, 40, dtype), {});
    Problem packed(desc_of(1, 341, 2, 1, 40, dtype), {{41, 300}});
    for (const auto& [from, to] : {std::pair{&alone.q, &packed.q},
                                   {&alone.k, &packed.k},
                                   {&alone.v, &packed.v},
                                   {&alone.dout, &packed.dout}}) {
      const std::int64_t row = from->count() / 300;
      for (std::int64_t i = 0; i < from->count(); ++i) to->set(41 * row + i, from->get(i));
    }
    for (Problem* p : {&alone, &packed}) run_on_gpu(gpu(), *p);
    EXPECT_EQ(alone.out.get(), tokens_of(packed.out, 341, 41, 341));
    EXPECT_EQ(alone.dq.get(), tokens_of(packed.dq, 341, 41, 341));
    EXPECT_EQ(alone.dk.get(), tokens_of(packed.dk, 341, 41, 341));
    EXPECT_EQ(alone.dv.get(), tokens_of(packed.dv, 341, 41, 341));
  }
}

// q, k and v as slices of the fused [tokens, (H + 2K) E] matrix of one projection.
TEST_F(AttentionIsolationCudaTest, SlicesOfAFusedMatrix) {
  for (const DType dtype : kDTypes) {
    const AttentionDesc d = desc_of(2, 130, 4, 2, 8, dtype);
    Problem p(d, {});
    run_on_gpu(gpu(), p);
    GuardedTensor fused(dtype, {2, 130, 8, 8}), dfused(dtype, {2, 130, 8, 8});
    for (std::int64_t row = 0; row < 260; ++row) {
      for (std::int64_t i = 0; i < 32; ++i) fused.set(row * 64 + i, p.q.get(row * 32 + i));
      for (std::int64_t i = 0; i < 16; ++i) fused.set(row * 64 + 32 + i, p.k.get(row * 16 + i));
      for (std::int64_t i = 0; i < 16; ++i) fused.set(row * 64 + 48 + i, p.v.get(row * 16 + i));
    }
    GuardedTensor out(dtype, {2, 130, 4, 8}), lse(DType::kFloat32, {2, 4, 130});
    const op_test::OnGpu in(gpu(), fused), din(gpu(), dfused), o(gpu(), out), l(gpu(), lse);
    const op_test::OnGpu dout(gpu(), p.dout);
    const auto part = [](const op_test::OnGpu& t, std::int64_t begin, std::int64_t end) {
      return t.tensor().slice(2, begin, end);
    };
    const auto plan = attention_plan(on_gpu(d));
    const op_test::GpuScratch scratch(gpu(), plan.workspace_bytes);
    const Tensor q = part(in, 0, 4), k = part(in, 4, 6), v = part(in, 6, 8);
    attention_forward(gpu(), plan, {q, k, v, {}, {}}, {o, l}, scratch.workspace());
    attention_backward(gpu(), plan, {q, k, v, {}, {}, o, l, dout},
                       {part(din, 0, 4), part(din, 4, 6), part(din, 6, 8)}, scratch.workspace());
    for (const op_test::OnGpu* t : {&o, &l, &din}) t->fetch();
    EXPECT_EQ(out.get(), p.out.get());
    EXPECT_EQ(lse.get(), p.lse.get());
    for (std::int64_t row = 0; row < 260; ++row) {
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
}

// Sequences and tokens that lie more than 2^31 elements apart.
TEST_F(AttentionIsolationCudaTest, OffsetsBeyond32Bits) {
  constexpr std::int64_t kTokens = 66, kDim = 64, kApart = std::int64_t{1} << 25;  // tokens
  const AttentionDesc d = desc_of(2, kTokens, 1, 1, kDim, DType::kBFloat16);
  Problem p(d, {});
  run_on_gpu(gpu(), p);
  DeviceAllocator allocator(0);
  const Buffer buffer(Bytes{(kApart + 5 * kTokens) * kDim * 2}, allocator);
  // [2, T, 1, E] with 2^31 elements from one sequence to the next.
  const auto far = [&](std::int64_t which) {
    char* const data = static_cast<char*>(buffer.data()) + which * kTokens * kDim * 2;
    return Tensor(data, d.dtype, {2, kApart, 1, kDim}, Device::kCuda).slice(1, 0, kTokens);
  };
  const auto copy = [&](const Tensor& t, GuardedTensor& host, bool back) {
    for (std::int64_t b = 0; b < 2; ++b) {
      void* const there = t.select(0, b).raw();
      void* const here = host.tensor().select(0, b).raw();
      copy_bytes(gpu(), back ? there : here, back ? here : there, Bytes{kTokens * kDim * 2});
    }
    synchronize(gpu());
  };
  const Tensor q = far(0), k = far(1), v = far(2), out = far(3), dout = far(4);
  copy(q, p.q, false);
  copy(k, p.k, false);
  copy(v, p.v, false);
  copy(dout, p.dout, false);
  GuardedTensor out_host(d.dtype, {2, kTokens, 1, kDim}), dq(d.dtype, {2, kTokens, 1, kDim});
  GuardedTensor dk(d.dtype, {2, kTokens, 1, kDim}), dv(d.dtype, {2, kTokens, 1, kDim});
  const op_test::OnGpu lse(gpu(), p.lse), gq(gpu(), dq), gk(gpu(), dk), gv(gpu(), dv);
  const auto plan = attention_plan(on_gpu(d));
  const op_test::GpuScratch scratch(gpu(), plan.workspace_bytes);
  attention_forward(gpu(), plan, {q, k, v, {}, {}}, {out, lse}, scratch.workspace());
  attention_backward(gpu(), plan, {q, k, v, {}, {}, out, lse, dout}, {gq, gk, gv},
                     scratch.workspace());
  copy(out, out_host, true);
  EXPECT_EQ(out_host.bits(), p.out.bits());
  EXPECT_EQ(gq.fetch().bits(), p.dq.bits());
  EXPECT_EQ(gk.fetch().bits(), p.dk.bits());
  EXPECT_EQ(gv.fetch().bits(), p.dv.bits());
}

}  // namespace
}  // namespace k25::attention_test
