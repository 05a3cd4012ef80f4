#include "kernels/kda/kda.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/kernels/kda/kda_oracle.h"
#include "tests/kernels/op_test.h"

namespace k25::kda_test {
namespace {

using op_test::all_near;
using op_test::for_each_context;
using op_test::for_each_isa;
using op_test::gradient_near;
using op_test::low_precision_near;
using op_test::make_context;
using op_test::weighted_sum;

constexpr KdaForm kForms[] = {KdaForm::kChunked, KdaForm::kRecurrent};

/// Mostly weak, so that tokens far apart still meet, now and then strong.
Gate random_gate() {
  return [](std::int64_t, double u) { return u > 0.99 ? -4 : -0.3 * u * u; };
}

void expect_exact(Context& ctx, const Problem& p) {
  p.forward(ctx);
  const Naive expected = p.naive<double>();
  EXPECT_TRUE(all_near(p.out.get(), expected.out, 1e-12));
  EXPECT_TRUE(all_near(p.final.get(), expected.final, 1e-12));
  EXPECT_TRUE(p.guards_intact());
}

// One channel, two tokens, scale 1. Token 0: state 4 -> 2, u = (3 - 2) / 2, state 2.5, out 5.
// Token 1: the state decays to 0.25 x 2.5 = 0.625; k = 2: u = 1 x (1 - 1.25) = -0.25, state 0.125.
TEST(Kda, HandComputed) {
  for_each_isa([](Context& ctx) {
    for (const KdaForm form : kForms) {
      KdaDesc d = desc_of({.tokens = 2, .key_dim = 1, .value_dim = 1}, DType::kFloat64, form);
      d.scale = 1;
      Problem p(d, constant_gate(0));
      p.initial.set({4});
      p.g.set({std::log(0.5), std::log(0.25)});
      p.q.set({2, 8});
      p.k.set({1, 2});
      p.v.set({3, 1});
      p.beta.set({0.5, 1});
      p.forward(ctx);
      EXPECT_TRUE(all_near(p.out.get(), {5, 1}, 1e-14));
      EXPECT_TRUE(all_near(p.final.get(), {0.125}, 1e-14));
      // Only out_1 counts: with dS = q dout = 8, du = dS k = 16, dbeta_1 = du (v - S k),
      // dv_1 = beta du, dD = dS - k dv_1 = -24, so dg_1 = -24 x 0.625 and dS_0 = -24 x 0.25.
      p.dout.set({0, 1});
      p.dfinal.set({0});
      p.backward(ctx);
      EXPECT_TRUE(all_near(p.dq.get(), {0, 0.125}, 1e-14));
      EXPECT_TRUE(all_near(p.dv.get(), {-3, 16}, 1e-14));
      EXPECT_TRUE(all_near(p.dbeta.get(), {-6, -4}, 1e-14));
      // Token 0: du = -6, dv = -3, dD = -6 + 3 = -3, dg = -3 x 2, dS before = -1.5.
      EXPECT_TRUE(all_near(p.dg.get(), {-6, -15}, 1e-14));
      EXPECT_TRUE(all_near(p.dinitial.get(), {-1.5}, 1e-14));
      // dk = dS u - D dv: -6 x 0.5 + 2 x 3 and 8 x -0.25 - 0.625 x 16.
      EXPECT_TRUE(all_near(p.dk.get(), {3, -12}, 1e-14));
    }
  });
}

TEST(Kda, LengthsAroundSubChunkAndChunk) {
  for_each_isa([](Context& ctx) {
    for (const KdaForm form : kForms) {
      for (const std::int64_t tokens : {1, 2, 15, 16, 17, 31, 33, 48, 63, 64, 65, 128, 150}) {
        SCOPED_TRACE(tokens);
        expect_exact(ctx, Problem(desc_of({.batch = 2, .tokens = tokens}, DType::kFloat64, form),
                                  random_gate(), {}, {}, {.row_padding = 3, .shift = 1}));
      }
    }
  });
}

TEST(Kda, HeadDimensionsAndGroups) {
  for_each_isa([](Context& ctx) {
    for (const KdaForm form : kForms) {
      for (const auto& [key, value] :
           {std::pair{1, 1}, {3, 7}, {16, 16}, {17, 33}, {64, 64}, {128, 128}, {64, 5}}) {
        SCOPED_TRACE(std::to_string(key) + " x " + std::to_string(value));
        expect_exact(ctx, Problem(desc_of({.tokens = 70, .key_dim = key, .value_dim = value},
                                          DType::kFloat64, form),
                                  random_gate()));
      }
      for (const auto& [heads, value_heads] : {std::pair{3, 3}, {1, 4}, {2, 6}}) {
        SCOPED_TRACE(std::to_string(heads) + " / " + std::to_string(value_heads));
        expect_exact(ctx, Problem(desc_of({.batch = 2,
                                           .tokens = 67,
                                           .heads = heads,
                                           .value_heads = value_heads,
                                           .key_dim = 5,
                                           .value_dim = 4},
                                          DType::kFloat64, form),
                                  random_gate()));
      }
    }
  });
}

TEST(Kda, PackedSequencesOfEveryLength) {
  for_each_context([](Context& ctx) {
    for (const KdaForm form : kForms) {
      for (const Lengths& lengths :
           std::vector<Lengths>{{0, 1, 0, 64, 5, 65, 0}, {130}, Lengths(40, 1), {0}}) {
        std::int64_t tokens = 0;
        for (const std::int64_t n : lengths) tokens += n;
        expect_exact(ctx, Problem(desc_of({.tokens = tokens, .heads = 2, .value_heads = 2},
                                          DType::kFloat64, form),
                                  random_gate(), lengths));
      }
    }
  });
}

TEST(Kda, Documents) {
  for_each_context([](Context& ctx) {
    for (const KdaForm form : kForms) {
      for (const auto& documents : std::vector<std::vector<Lengths>>{{{1, 70, 64, 3}, {138}},
                                                                     {{64, 74}, Lengths(138, 1)}}) {
        expect_exact(ctx, Problem(desc_of({.batch = 2, .tokens = 138, .value_heads = 2},
                                          DType::kFloat64, form),
                                  random_gate(), {}, documents));
      }
    }
  });
}

TEST(Kda, WithoutTokensTheStateStays) {
  Context ctx = make_context();
  for (const KdaForm form : kForms) {
    const Problem p(desc_of({.batch = 2, .tokens = 0, .value_heads = 2}, DType::kFloat32, form),
                    random_gate());
    p.forward(ctx);
    p.backward(ctx);
    EXPECT_EQ(p.final.get(), p.initial.get());
    EXPECT_EQ(p.dinitial.get(), p.dfinal.get());
  }
}

/// Every gradient of w out + dfinal final against central differences.
void expect_finite_differences(Context& ctx, Problem& p) {
  p.forward(ctx);
  p.backward(ctx);
  const auto w_out = p.dout.get(), w_final = p.dfinal.get();
  const auto loss = [&] {
    p.forward(ctx);
    return weighted_sum(w_out, p.out.get()) + weighted_sum(w_final, p.final.get());
  };
  EXPECT_TRUE(gradient_near(p.q, p.dq.get(), loss)) << "dq";
  EXPECT_TRUE(gradient_near(p.k, p.dk.get(), loss)) << "dk";
  EXPECT_TRUE(gradient_near(p.v, p.dv.get(), loss)) << "dv";
  EXPECT_TRUE(gradient_near(p.g, p.dg.get(), loss)) << "dg";
  EXPECT_TRUE(gradient_near(p.beta, p.dbeta.get(), loss)) << "dbeta";
  EXPECT_TRUE(gradient_near(p.initial, p.dinitial.get(), loss)) << "dinitial";
}

TEST(Kda, FiniteDifferences) {
  for_each_isa([](Context& ctx) {
    for (const KdaForm form : kForms) {
      Problem p(desc_of({.tokens = 68, .heads = 1, .value_heads = 2, .key_dim = 3, .value_dim = 2},
                        DType::kFloat64, form),
                random_gate());
      // A token that writes nothing, one that reads nothing, one that forgets nothing.
      p.beta.set(2 * 20, 0);
      p.g.set(2 * 3 * 40, 0);
      expect_finite_differences(ctx, p);
    }
  });
}

TEST(Kda, FiniteDifferencesOfPackedSequencesAndDocuments) {
  Context ctx = make_context();
  for (const KdaForm form : kForms) {
    for (const KdaKeep keep : {KdaKeep::kNothing, KdaKeep::kStates}) {
      if (form == KdaForm::kRecurrent && keep == KdaKeep::kStates) continue;
      KdaDesc d =
          desc_of({.tokens = 74, .heads = 2, .value_heads = 2, .key_dim = 2, .value_dim = 3},
                  DType::kFloat64, form);
      d.keep = keep;
      Problem packed(d, random_gate(), {3, 0, 66, 5});
      expect_finite_differences(ctx, packed);
      Problem documents(d, random_gate(), {}, {{66, 3, 5}});
      expect_finite_differences(ctx, documents);
    }
  }
}

TEST(Kda, ChunkedGradientsEqualTheRecurrentAdjoint) {
  for_each_isa([](Context& ctx) {
    for (const std::int64_t tokens : {1, 15, 16, 17, 63, 64, 65, 150}) {
      SCOPED_TRACE(tokens);
      const Shape shape{.tokens = tokens, .value_heads = 2, .key_dim = 24, .value_dim = 20};
      const Problem chunked(desc_of(shape), random_gate());
      const Problem recurrent(desc_of(shape, DType::kFloat64, KdaForm::kRecurrent), random_gate());
      for (const Problem* p : {&chunked, &recurrent}) {
        p->forward(ctx);
        p->backward(ctx);
        EXPECT_TRUE(p->guards_intact());
      }
      for (std::size_t i = 0; i < chunked.results().size(); ++i) {
        EXPECT_TRUE(all_near(chunked.results()[i]->get(), recurrent.results()[i]->get(), 1e-11))
            << "result " << i;
      }
    }
  });
}

template <class Low>
void expect_low_precision(DType dtype, double floor) {
  const Shape shape{.batch = 2, .tokens = 100, .value_heads = 2, .key_dim = 32, .value_dim = 32};
  const Problem operands(desc_of(shape, dtype), random_gate());
  const Naive low = operands.naive<Low>(), ref = operands.naive<double>();
  for_each_context([&](Context& ctx) {
    for (const KdaForm form : kForms) {
      const Problem p(desc_of(shape, dtype, form), random_gate());
      p.forward(ctx);
      EXPECT_TRUE(low_precision_near(p.out.get(), low.out, ref.out, floor));
      EXPECT_TRUE(low_precision_near(p.final.get(), low.final, ref.final, floor));
    }
  });
}
TEST(Kda, Fp32) { expect_low_precision<float>(DType::kFloat32, 1e-7); }
TEST(Kda, Bf16) { expect_low_precision<op_test::NaiveBf16>(DType::kBFloat16, 1e-4); }

/// The operands of `from`, rounded to the dtype of `to`.
void copy_operands(const Problem& from, Problem& to) {
  to.q.set(from.q.get());
  to.k.set(from.k.get());
  to.v.set(from.v.get());
  to.g.set(from.g.get());
  to.beta.set(from.beta.get());
  to.initial.set(from.initial.get());
  to.dout.set(from.dout.get());
  to.dfinal.set(from.dfinal.get());
}

TEST(Kda, GradientsInBf16StorageAreRoundedOnce) {
  const Shape shape{.tokens = 130, .heads = 2, .value_heads = 4, .key_dim = 20, .value_dim = 24};
  const Problem low(desc_of(shape, DType::kBFloat16), random_gate());
  Problem exact(desc_of(shape, DType::kFloat32), random_gate());
  copy_operands(low, exact);
  for_each_isa([&](Context& ctx) {
    for (const Problem* p : {&low, static_cast<const Problem*>(&exact)}) {
      p->forward(ctx);
      p->backward(ctx);
    }
    for (std::size_t i = 0; i < low.results().size(); ++i) {
      const GuardedTensor* const t = low.results()[i];
      std::vector<double> rounded = exact.results()[i]->get();
      for (double& x : rounded) x = op_test::round_to(t->dtype(), x);
      EXPECT_EQ(t->get(), rounded) << "result " << i;
    }
  });
}

TEST(Kda, ThreadsKeptStatesAndOptionalOperandsChangeNoBit) {
  const Shape shape{.batch = 3, .tokens = 200, .heads = 2, .value_heads = 4};
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat64}) {
    for (const KdaForm form : kForms) {
      for (const CpuIsa isa : op_test::available_isas()) {
        std::vector<std::uint8_t> first;
        for (const int threads : {1, 2, 5}) {
          for (const KdaKeep keep : {KdaKeep::kNothing, KdaKeep::kStates}) {
            ThreadPool pool(threads);
            Context ctx = make_context(isa, &pool);
            KdaDesc d = desc_of(shape, dtype, form);
            d.keep = keep;
            const Problem p(d, random_gate());
            p.forward(ctx);
            p.backward(ctx);
            if (first.empty()) first = p.bits();
            EXPECT_EQ(p.bits(), first);
          }
        }
      }
    }
  }
}

TEST(Kda, AbsentStatesAreZero) {
  Context ctx = make_context();
  for (const KdaForm form : kForms) {
    const KdaDesc d = desc_of({.tokens = 70}, DType::kFloat32, form);
    Problem zero(d, random_gate());
    const Problem absent(d, random_gate());
    zero.initial.fill(0);
    zero.dfinal.fill(0);
    zero.forward(ctx);
    zero.backward(ctx);
    const auto plan = kernels::kda_plan(d);
    const op_test::Scratch scratch(plan.workspace_bytes);
    auto in = absent.forward_in();
    in.initial_state_SMKV = {};
    kernels::kda_forward(ctx, plan, in, {.out_BTMV = absent.out}, scratch.workspace());
    EXPECT_EQ(absent.out.bits(), zero.out.bits());
    auto back = absent.backward_in();
    back.initial_state_SMKV = back.dfinal_state_SMKV = {};
    auto grads = absent.backward_out();
    grads.dinitial_state_SMKV = {};
    kernels::kda_backward(ctx, plan, back, grads, scratch.workspace());
    EXPECT_EQ(absent.dk.bits(), zero.dk.bits());
    EXPECT_EQ(absent.dg.bits(), zero.dg.bits());
  }
}

TEST(Kda, TheFinalStateMayOverwriteTheInitialOne) {
  Context ctx = make_context();
  const KdaDesc d = desc_of({.tokens = 70, .value_heads = 2}, DType::kFloat32);
  const Problem apart(d, random_gate()), in_place(d, random_gate());
  apart.forward(ctx);
  const auto plan = kernels::kda_plan(d);
  const op_test::Scratch scratch(plan.workspace_bytes);
  kernels::kda_forward(ctx, plan, in_place.forward_in(),
                       {.out_BTMV = in_place.out, .final_state_SMKV = in_place.initial},
                       scratch.workspace());
  EXPECT_EQ(in_place.initial.bits(), apart.final.bits());
  EXPECT_EQ(in_place.out.bits(), apart.out.bits());
}

}  // namespace
}  // namespace k25::kda_test
