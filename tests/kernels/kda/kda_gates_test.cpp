// What the chunked form could get wrong where the recurrence cannot: decays of every strength, keys
// that hardly differ, long sequences, neighbours in a packed row, and the states that it exports.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kernels/kda/kda.h"
#include "tests/kernels/kda/kda_oracle.h"
#include "tests/kernels/op_test.h"

namespace k25::kda_test {
namespace {

using op_test::all_near;
using op_test::for_each_isa;
using op_test::make_context;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// fp32 against the formula in fp64, from the same operands.
void expect_recurrence(Context& ctx, const Problem& p, double tolerance) {
  p.forward(ctx);
  const Naive expected = p.naive<double>();
  EXPECT_TRUE(all_near(p.out.get(), expected.out, tolerance));
  EXPECT_TRUE(all_near(p.final.get(), expected.final, tolerance));
}

TEST(KdaGates, EveryStrengthAndLengthEqualsTheRecurrence) {
  for (const NamedGate& g : gates()) {
    for (const std::int64_t tokens : {1, 15, 16, 17, 63, 64, 65, 1000}) {
      SCOPED_TRACE(std::string(g.name) + ", tokens " + std::to_string(tokens));
      for_each_isa([&](Context& ctx) {
        expect_recurrence(
            ctx,
            Problem(desc_of({.tokens = tokens, .key_dim = 64, .value_dim = 16}, DType::kFloat32),
                    g.gate),
            1e-5);
      });
    }
  }
}

TEST(KdaGates, GradientsOfEveryStrengthEqualTheRecurrentAdjoint) {
  for (const NamedGate& g : gates()) {
    for (const std::int64_t tokens : {17, 65, 300}) {
      SCOPED_TRACE(std::string(g.name) + ", tokens " + std::to_string(tokens));
      const Shape shape{.tokens = tokens, .value_heads = 2, .key_dim = 32, .value_dim = 16};
      const Problem chunked(desc_of(shape, DType::kFloat32), g.gate);
      Problem exact(desc_of(shape, DType::kFloat64, KdaForm::kRecurrent), g.gate);
      for (const auto& [to, from] : {std::pair{&exact.q, &chunked.q},
                                     {&exact.k, &chunked.k},
                                     {&exact.v, &chunked.v},
                                     {&exact.g, &chunked.g},
                                     {&exact.beta, &chunked.beta},
                                     {&exact.dout, &chunked.dout},
                                     {&exact.initial, &chunked.initial},
                                     {&exact.dfinal, &chunked.dfinal}}) {
        to->set(from->get());
      }
      Context best = make_context();
      exact.backward(best);
      for_each_isa([&](Context& ctx) {
        chunked.backward(ctx);
        const std::vector<const GuardedTensor*> ours = {
            &chunked.dq, &chunked.dk, &chunked.dv, &chunked.dbeta, &chunked.dg, &chunked.dinitial};
        const std::vector<const GuardedTensor*> reference = {
            &exact.dq, &exact.dk, &exact.dv, &exact.dbeta, &exact.dg, &exact.dinitial};
        for (std::size_t i = 0; i < ours.size(); ++i) {
          EXPECT_TRUE(all_near(ours[i]->get(), reference[i]->get(), 1e-5)) << "gradient " << i;
        }
      });
    }
  }
}

/// Keys of pairwise cosine rho: a shared direction and one of their own.
void set_collinear_keys(Problem& p, double rho) {
  const auto dim = static_cast<std::size_t>(p.desc.key_dim);
  std::vector<double> k = p.k.get();
  const std::vector<double> shared(k.begin(), k.begin() + static_cast<std::ptrdiff_t>(dim));
  for (std::size_t i = 0; i < k.size(); i += dim) {
    double along = 0, norm = 0;
    for (std::size_t e = 0; e < dim; ++e) along += k[i + e] * shared[e];
    for (std::size_t e = 0; e < dim; ++e) {
      k[i + e] -= along * shared[e];
      norm += k[i + e] * k[i + e];
    }
    norm = std::max(1e-30, std::sqrt(norm));
    for (std::size_t e = 0; e < dim; ++e) {
      k[i + e] = std::sqrt(rho) * shared[e] + std::sqrt(1 - rho) * k[i + e] / norm;
    }
  }
  p.k.set(k);
}

TEST(KdaGates, NearCollinearKeys) {
  for (const double rho : {0.9, 0.99, 1.0}) {
    for (const double g : {0.0, -1e-3}) {
      for (const std::int64_t tokens : {64, 200, 1000}) {
        SCOPED_TRACE("cosine " + std::to_string(rho) + ", g " + std::to_string(g) + ", tokens " +
                     std::to_string(tokens));
        Problem p(desc_of({.tokens = tokens, .key_dim = 64, .value_dim = 16}, DType::kFloat32),
                  constant_gate(g));
        set_collinear_keys(p, rho);
        std::vector<double> beta = op_test::random_values("near one", p.beta.count(), 0.99, 1.0);
        p.beta.set(beta);
        for_each_isa([&](Context& ctx) { expect_recurrence(ctx, p, 1e-5); });
      }
    }
  }
}

TEST(KdaGates, BetaUpToTwo) {
  Problem p(desc_of({.tokens = 300, .key_dim = 64, .value_dim = 16}, DType::kFloat32),
            constant_gate(-0.01));
  p.beta.set(op_test::random_values("up to two", p.beta.count(), 1.0, 2.0));
  for_each_isa([&](Context& ctx) { expect_recurrence(ctx, p, 1e-5); });
}

/// Rows [begin, end) of the tokens in `t`, whose row 0 is the only one.
std::vector<double> tokens_of(const GuardedTensor& t, std::int64_t tokens, std::int64_t begin,
                              std::int64_t end) {
  const std::vector<double> all = t.get();
  const auto per = static_cast<std::ptrdiff_t>(t.count() / tokens);
  return {all.begin() + begin * per, all.begin() + end * per};
}
void fill_tokens(GuardedTensor& t, std::int64_t tokens, std::int64_t begin, std::int64_t end,
                 double value) {
  const std::int64_t per = t.count() / tokens;
  for (std::int64_t i = begin * per; i < end * per; ++i) t.set(i, value);
}

enum class Packing { kSequences, kDocuments };

// The middle one of three in a row has the bits that it has alone, whatever is planted in the
// others.
void expect_isolated(DType dtype, KdaForm form, Packing packing, std::int64_t length) {
  const std::int64_t before = 37, after = 20, tokens = before + length + after;
  const Shape shape{.tokens = tokens, .heads = 2, .value_heads = 4, .key_dim = 12, .value_dim = 20};
  const bool sequences = packing == Packing::kSequences;
  const Lengths lengths = {before, length, after};
  Problem packed(
      desc_of(shape, dtype, form), [](std::int64_t, double u) { return -3 * u; },
      sequences ? lengths : Lengths{},
      sequences ? std::vector<Lengths>{} : std::vector<Lengths>{lengths});
  Shape alone_shape = shape;
  alone_shape.tokens = length;
  Problem alone(desc_of(alone_shape, dtype, form), constant_gate(0));
  const auto copy = [&](GuardedTensor& to, GuardedTensor& from) {
    to.set(tokens_of(from, tokens, before, before + length));
    fill_tokens(from, tokens, 0, before, kNan);
    fill_tokens(from, tokens, before + length, tokens, kNan);
  };
  copy(alone.q, packed.q);
  copy(alone.k, packed.k);
  copy(alone.v, packed.v);
  copy(alone.g, packed.g);
  copy(alone.beta, packed.beta);
  copy(alone.dout, packed.dout);
  const std::int64_t size = alone.initial.count();
  const auto copy_state = [&](GuardedTensor& to, GuardedTensor& from) {
    for (std::int64_t i = 0; i < from.count(); ++i) {
      const bool middle = sequences && i / size == 1;
      if (middle) to.set(i % size, from.get(i));
      if (!middle) from.set(i, kNan);
    }
    if (!sequences) to.fill(0);
  };
  copy_state(alone.initial, packed.initial);
  copy_state(alone.dfinal, packed.dfinal);
  for_each_isa([&](Context& ctx) {
    for (const Problem* p : {&packed, &alone}) {
      p->forward(ctx);
      p->backward(ctx);
    }
    const auto same = [&](const GuardedTensor& of_packed, const GuardedTensor& of_alone) {
      return tokens_of(of_packed, tokens, before, before + length) == of_alone.get();
    };
    EXPECT_TRUE(same(packed.out, alone.out));
    EXPECT_TRUE(same(packed.dq, alone.dq));
    EXPECT_TRUE(same(packed.dk, alone.dk));
    EXPECT_TRUE(same(packed.dv, alone.dv));
    EXPECT_TRUE(same(packed.dg, alone.dg));
    EXPECT_TRUE(same(packed.dbeta, alone.dbeta));
    if (sequences) {
      EXPECT_EQ(tokens_of(packed.final, 3, 1, 2), alone.final.get());
      EXPECT_EQ(tokens_of(packed.dinitial, 3, 1, 2), alone.dinitial.get());
    }
    EXPECT_TRUE(std::isnan(packed.out.get(0)));
  });
}

TEST(KdaGates, NanOfANeighbourNeverLeaks) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const KdaForm form : {KdaForm::kChunked, KdaForm::kRecurrent}) {
      for (const Packing packing : {Packing::kSequences, Packing::kDocuments}) {
        for (const std::int64_t length : {1, 15, 17, 63, 64, 65, 130}) {
          SCOPED_TRACE(length);
          expect_isolated(dtype, form, packing, length);
        }
      }
    }
  }
}

TEST(KdaGates, NanNeverReachesEarlierTokens) {
  for (const std::int64_t at : {0, 5, 16, 40, 70}) {
    const Shape shape{.tokens = 80, .key_dim = 12, .value_dim = 20};
    const auto gate = [](std::int64_t, double u) { return -3 * u; };
    const Problem clean(desc_of(shape, DType::kFloat32), gate);
    for (const char* where : {"q", "k", "v", "g", "beta"}) {
      SCOPED_TRACE(std::string(where) + " of token " + std::to_string(at));
      Problem planted(desc_of(shape, DType::kFloat32), gate);
      GuardedTensor& t = where == std::string("q")   ? planted.q
                         : where == std::string("k") ? planted.k
                         : where == std::string("v") ? planted.v
                         : where == std::string("g") ? planted.g
                                                     : planted.beta;
      fill_tokens(t, 80, at, at + 1, kNan);
      for_each_isa([&](Context& ctx) {
        clean.forward(ctx);
        planted.forward(ctx);
        EXPECT_EQ(tokens_of(planted.out, 80, 0, at), tokens_of(clean.out, 80, 0, at));
        EXPECT_TRUE(std::isnan(tokens_of(planted.out, 80, at, at + 1)[0]));
      });
    }
  }
}

// NOTE: of the token counts, 63 is the length of its sequence.
TEST(KdaGates, CheckpointsAreTheStatesOfThePrefix) {
  const auto gate = [](std::int64_t, double u) { return -2 * u; };
  const Shape shape{.tokens = 333, .heads = 2, .value_heads = 4, .key_dim = 12, .value_dim = 20};
  const std::vector<std::vector<std::int64_t>> offsets = {
      {64, -1, 0, 192}, {0, 0, -1, -1}, {63, -1, 0, -1}, {-1, 64, 70, 0}};
  const Lengths lengths = {200, 0, 63, 70};
  for (const KdaForm form : {KdaForm::kChunked, KdaForm::kRecurrent}) {
    for_each_isa([&](Context& ctx) {
      const Problem p(desc_of(shape, DType::kFloat32, form), gate, lengths, {}, {}, offsets);
      p.forward(ctx);
      EXPECT_TRUE(p.guards_intact());
      const std::int64_t size = 12 * 20;
      const GuardedTensor untouched(DType::kFloat32, {1});
      for (std::int64_t s = 0; s < 4; ++s) {
        for (std::int64_t i = 0; i < 4; ++i) {
          const std::int64_t at = offsets[static_cast<std::size_t>(s)][static_cast<std::size_t>(i)];
          for (std::int64_t m = 0; m < 4; ++m) {
            const std::vector<double> all = p.checkpoint.get();
            const auto begin = all.begin() + ((s * 4 + i) * 4 + m) * size;
            const std::vector<double> ours(begin, begin + size);
            if (at == -1) {
              EXPECT_EQ(ours,
                        std::vector<double>(static_cast<std::size_t>(size), untouched.get(0)));
              continue;
            }
            EXPECT_TRUE(all_near(ours, p.naive_head<double>(s, m, at).state, 1e-5));
            if (at != lengths[static_cast<std::size_t>(s)]) continue;
            const std::vector<double> final = p.final.get();
            EXPECT_EQ(ours, std::vector<double>(final.begin() + (s * 4 + m) * size,
                                                final.begin() + (s * 4 + m + 1) * size));
          }
        }
      }
    });
  }
}

// Cut at a chunk boundary and gone on from the exported state: the same bits, forward and backward.
TEST(KdaGates, GoingOnFromAnExportedStateChangesNoBit) {
  const auto gate = [](std::int64_t, double u) { return -2 * u; };
  Shape shape{.tokens = 200, .heads = 2, .value_heads = 4, .key_dim = 12, .value_dim = 20};
  for_each_isa([&](Context& ctx) {
    const Problem whole(desc_of(shape, DType::kFloat32), gate, {}, {}, {}, {{128}});
    whole.forward(ctx);
    whole.backward(ctx);
    shape.tokens = 128;
    Problem head(desc_of(shape, DType::kFloat32), gate);
    shape.tokens = 72;
    Problem tail(desc_of(shape, DType::kFloat32), gate);
    shape.tokens = 200;
    const auto cut = [&](GuardedTensor& h, GuardedTensor& t, const GuardedTensor& w) {
      h.set(tokens_of(w, 200, 0, 128));
      t.set(tokens_of(w, 200, 128, 200));
    };
    cut(head.q, tail.q, whole.q);
    cut(head.k, tail.k, whole.k);
    cut(head.v, tail.v, whole.v);
    cut(head.g, tail.g, whole.g);
    cut(head.beta, tail.beta, whole.beta);
    cut(head.dout, tail.dout, whole.dout);
    head.forward(ctx);
    EXPECT_EQ(head.final.get(), whole.checkpoint.get());
    tail.initial.set(head.final.get());
    tail.forward(ctx);
    EXPECT_EQ(tail.final.get(), whole.final.get());
    EXPECT_EQ(tail.out.get(), tokens_of(whole.out, 200, 128, 200));
    tail.backward(ctx);
    head.dfinal.set(tail.dinitial.get());
    head.backward(ctx);
    EXPECT_EQ(head.dinitial.get(), whole.dinitial.get());
    EXPECT_EQ(head.dk.get(), tokens_of(whole.dk, 200, 0, 128));
    EXPECT_EQ(tail.dg.get(), tokens_of(whole.dg, 200, 128, 200));
  });
}

}  // namespace
}  // namespace k25::kda_test
