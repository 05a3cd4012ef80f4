#include "kernels/kda/kda_step.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/kernels/kda/kda_oracle.h"
#include "tests/kernels/op_test.h"

namespace k25::kda_test {
namespace {

using kernels::kda_commit;
using kernels::kda_decode;
using kernels::kda_step_plan;
using kernels::kda_verify;
using kernels::KdaStepDesc;
using op_test::all_near;
using op_test::for_each_context;
using op_test::for_each_isa;
using op_test::make_context;
using op_test::Scratch;
using op_test::throws_error;

/// Uniform in (-4, 0), often near 0.
double gate(std::int64_t, double u) { return -4 * u * u; }

KdaStepDesc step_desc(const KdaDesc& d, std::int64_t tokens) {
  return {.sequences = d.batch,
          .tokens = tokens,
          .heads = d.heads,
          .value_heads = d.value_heads,
          .key_dim = d.key_dim,
          .value_dim = d.value_dim,
          .scale = d.scale,
          .dtype = d.dtype};
}

/// Decodes the tokens [begin, end) of p's rows in one call, into p.out, `state` in place.
void decode(Context& ctx, const Problem& p, std::int64_t begin, std::int64_t end,
            const Tensor& state) {
  const auto plan = kda_step_plan(step_desc(p.desc, end - begin));
  const Scratch scratch(plan.workspace_bytes);
  const auto cut = [&](const GuardedTensor& t) { return t.tensor().slice(1, begin, end); };
  kda_decode(ctx, plan, {cut(p.q), cut(p.k), cut(p.v), cut(p.g), cut(p.beta)}, {cut(p.out), state},
             scratch.workspace());
}

const Shape kShape{
    .batch = 3, .tokens = 9, .heads = 2, .value_heads = 4, .key_dim = 12, .value_dim = 20};

TEST(KdaStep, DecodeIsTheRecurrence) {
  for (const auto& [key, value] : {std::pair{12, 20}, {1, 1}, {128, 128}, {17, 3}}) {
    for_each_context([&, key = key, value = value](Context& ctx) {
      Shape shape = kShape;
      shape.key_dim = key;
      shape.value_dim = value;
      const Problem p(desc_of(shape), gate, {}, {}, {.row_padding = 3, .shift = 1});
      const Naive expected = p.naive<double>();
      for (std::int64_t t = 0; t < shape.tokens; ++t) decode(ctx, p, t, t + 1, p.initial);
      EXPECT_TRUE(all_near(p.out.get(), expected.out, 1e-13));
      EXPECT_TRUE(all_near(p.initial.get(), expected.final, 1e-13));
      EXPECT_TRUE(p.guards_intact());
      EXPECT_TRUE(p.initial.guards_intact());
    });
  }
}

TEST(KdaStep, TokensMayBeDividedOverCallsAtWill) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    std::vector<std::uint8_t> first;
    for_each_context([&](Context& ctx) {
      for (const std::int64_t size : {1, 2, 9}) {
        const Problem p(desc_of(kShape, dtype), gate);
        for (std::int64_t t = 0; t < 9; t += size) {
          decode(ctx, p, t, std::min<std::int64_t>(9, t + size), p.initial);
        }
        auto bits = p.out.bits();
        const auto state = p.initial.bits();
        bits.insert(bits.end(), state.begin(), state.end());
        if (first.empty()) first = bits;
        EXPECT_EQ(bits, first) << "also on all instruction sets";
      }
    });
  }
}

TEST(KdaStep, DecodeGoesOnFromAPrefill) {
  for_each_isa([](Context& ctx) {
    Shape shape = kShape;
    shape.tokens = 80;
    const Problem whole(desc_of(shape, DType::kFloat32), gate);
    whole.forward(ctx);
    const std::vector<double> prefilled = whole.out.get();
    shape.tokens = 71;
    Problem prefix(desc_of(shape, DType::kFloat32), gate);
    const auto cut = [](GuardedTensor& to, const GuardedTensor& from) {
      const std::int64_t per = from.count() / 3 / 80;
      for (std::int64_t i = 0; i < to.count(); ++i) {
        to.set(i, from.get(i / (71 * per) * 80 * per + i % (71 * per)));
      }
    };
    cut(prefix.q, whole.q);
    cut(prefix.k, whole.k);
    cut(prefix.v, whole.v);
    cut(prefix.g, whole.g);
    cut(prefix.beta, whole.beta);
    prefix.forward(ctx);
    for (std::int64_t t = 71; t < 80; ++t) decode(ctx, whole, t, t + 1, prefix.final);
    EXPECT_TRUE(all_near(whole.out.get(), prefilled, 1e-5));
    EXPECT_TRUE(all_near(prefix.final.get(), whole.final.get(), 1e-5));
  });
}

/// A window of all tokens from the initial state: outputs, u, and the state that must stay.
struct Window {
  Problem p;
  GuardedTensor u;
  KdaStepDesc desc;

  explicit Window(DType dtype, Layout layout = {})
      : p(desc_of(kShape, dtype), gate, {}, {}, layout),
        u(sum_dtype(dtype), {3, 9, 4, 20}, layout),
        desc(step_desc(p.desc, 9)) {}

  void verify(Context& ctx) const {
    const auto plan = kda_step_plan(desc);
    const Scratch scratch(plan.workspace_bytes);
    kda_verify(ctx, plan, {p.q, p.k, p.v, p.g, p.beta, p.initial}, {p.out, u}, scratch.workspace());
  }
  void commit(Context& ctx, const GuardedTensor& accepted) const {
    const auto plan = kda_step_plan(desc);
    const Scratch scratch(plan.workspace_bytes);
    kda_commit(ctx, plan, {p.k, p.g, u, accepted}, {p.initial}, scratch.workspace());
  }
};

TEST(KdaStep, VerifyAndCommitAreDecodeForEveryAcceptedLength) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat64}) {
    for_each_context([&](Context& ctx) {
      for (std::int64_t accepted = 0; accepted <= 9; ++accepted) {
        SCOPED_TRACE(accepted);
        const Window w(dtype, {.row_padding = 1, .shift = 3});
        const auto before = w.p.initial.bits();
        w.verify(ctx);
        EXPECT_EQ(w.p.initial.bits(), before);

        // The sequences accept different numbers of tokens.
        GuardedTensor counts(DType::kInt32, {3});
        for (std::int64_t s = 0; s < 3; ++s) {
          counts.set(s, static_cast<double>((accepted + 3 * s) % 10));
        }
        w.commit(ctx, counts);
        EXPECT_TRUE(w.u.guards_intact());
        EXPECT_TRUE(w.p.out.guards_intact());
        EXPECT_TRUE(w.p.initial.guards_intact());
        for (std::int64_t s = 0; s < 3; ++s) {
          const Problem stepped(desc_of(kShape, dtype), gate);
          const auto count = static_cast<std::int64_t>(counts.get(s));
          for (std::int64_t t = 0; t < count; ++t) decode(ctx, stepped, t, t + 1, stepped.initial);
          for (std::int64_t i = 0; i < count * 4 * 20; ++i) {
            ASSERT_EQ(w.p.out.get(s * 9 * 4 * 20 + i), stepped.out.get(s * 9 * 4 * 20 + i));
          }
          for (std::int64_t i = s * 4 * 12 * 20; i < (s + 1) * 4 * 12 * 20; ++i) {
            ASSERT_EQ(w.p.initial.get(i), stepped.initial.get(i));
          }
        }
      }
    });
  }
}

TEST(KdaStep, ARejectedTokenLeavesNoTrace) {
  Context ctx = make_context();
  const Window clean(DType::kFloat32);
  Window planted(DType::kFloat32);
  for (std::int64_t s = 0; s < 3; ++s) {
    for (std::int64_t i = 5 * 4 * 20; i < 9 * 4 * 20; ++i) {
      planted.p.v.set(s * 9 * 4 * 20 + i, std::nan(""));
    }
    for (std::int64_t i = 5 * 4 * 12; i < 9 * 4 * 12; ++i) {
      planted.p.g.set(s * 9 * 4 * 12 + i, std::nan(""));
    }
  }
  GuardedTensor accepted(DType::kInt32, {3});
  accepted.fill(5);
  for (const Window* w : {&clean, static_cast<const Window*>(&planted)}) {
    w->verify(ctx);
    w->commit(ctx, accepted);
  }
  EXPECT_EQ(planted.p.initial.get(), clean.p.initial.get());
}

TEST(KdaStep, NothingToDo) {
  Context ctx = make_context();
  for (const auto& [sequences, tokens] : {std::pair{0, 4}, {2, 0}}) {
    Shape shape = kShape;
    shape.batch = sequences;
    shape.tokens = tokens;
    const Problem p(desc_of(shape, DType::kFloat32), gate);
    const auto before = p.initial.bits();
    decode(ctx, p, 0, tokens, p.initial);
    EXPECT_EQ(p.initial.bits(), before);
  }
}

TEST(KdaStep, Errors) {
  Context ctx = make_context();
  const ErrorKind usage = ErrorKind::kUsage;
  const auto no_plan = [&](void (*change)(KdaStepDesc&),
                           std::initializer_list<std::string_view> parts) {
    KdaStepDesc d{.sequences = 2, .heads = 2, .value_heads = 4, .key_dim = 3, .value_dim = 5};
    change(d);
    EXPECT_TRUE(throws_error([&] { kda_step_plan(d); }, usage, parts));
  };
  no_plan([](KdaStepDesc& d) { d.tokens = -1; }, {"tokens -1"});
  no_plan([](KdaStepDesc& d) { d.sequences = -1; }, {"sequences -1"});
  no_plan([](KdaStepDesc& d) { d.key_dim = 0; }, {"key_dim 0"});
  no_plan([](KdaStepDesc& d) { d.value_heads = 5; }, {"value_heads 5", "multiple of heads 2"});
  no_plan([](KdaStepDesc& d) { d.scale = -2; }, {"scale"});
  no_plan([](KdaStepDesc& d) { d.dtype = DType::kUInt8; }, {"uint8"});
  no_plan([](KdaStepDesc& d) { d.device = Device::kCuda; }, {"key_dim 3", "64 or 128"});

  const Window w(DType::kFloat32);
  const auto plan = kda_step_plan(w.desc);
  const Scratch scratch(plan.workspace_bytes);
  GuardedTensor accepted(DType::kInt32, {3});
  for (const double wrong : {-1.0, 10.0}) {
    accepted.set({0, 9, wrong});
    EXPECT_TRUE(throws_error([&] { w.commit(ctx, accepted); }, usage,
                             {"sequence 2 accepted", "window of 9"}));
  }
  EXPECT_TRUE(throws_error(
      [&] {
        kda_commit(ctx, plan, {w.p.k, w.p.g, w.p.q, accepted}, {w.p.initial}, scratch.workspace());
      },
      usage, {"u_STMV", "expected fp32 [3, 9, 4, 20]"}));
  EXPECT_TRUE(throws_error(
      [&] {
        kda_verify(ctx, plan, {w.p.q, w.p.k, w.p.v, w.p.g, w.p.beta, {}}, {w.p.out, w.u},
                   scratch.workspace());
      },
      usage, {"state_SMKV is missing"}));
  EXPECT_TRUE(throws_error(
      [&] {
        kda_decode(ctx, plan, {w.p.q, w.p.k, w.p.v, w.p.g, w.p.g}, {w.p.out, w.p.initial},
                   scratch.workspace());
      },
      usage, {"beta_STM", "expected fp32 [3, 9, 4]"}));
  EXPECT_TRUE(throws_error(
      [&] {
        kda_decode(ctx, plan, {w.p.q, w.p.k, w.p.v, w.p.g, w.p.beta}, {w.p.out, w.p.initial}, {});
      },
      usage, {"workspace of 0 bytes"}));
}

}  // namespace
}  // namespace k25::kda_test
