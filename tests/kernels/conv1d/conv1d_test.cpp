#include "kernels/conv1d/conv1d.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/kernels/conv1d/conv1d_problem.h"
#include "tests/kernels/op_test.h"

namespace k25::kernels::conv1d_test {
namespace {

using op_test::all_near;
using op_test::for_each_context;
using op_test::for_each_isa;
using op_test::gradient_near;
using op_test::low_precision_near;
using op_test::make_context;
using op_test::throws_error;
using op_test::weighted_sum;

TEST(Conv1d, HandComputed) {
  for_each_isa([](Context& ctx) {
    Problem p(desc_of(1, 2, 1));
    p.weight.set({1, 2, 3, 4});
    p.initial.set({1, -1, 2});
    p.x.set({-1, 0.25});
    p.forward(ctx);
    // z_0 = 1 - 2 + 6 - 4 = 1, z_1 = -1 + 4 - 3 + 1 = 1; silu(1) = 0.731058578630005.
    EXPECT_TRUE(all_near(p.y.get(), {0.731058578630005, 0.731058578630005}, 1e-14));
    EXPECT_EQ(p.final.get(), (std::vector<double>{2, -1, 0.25}));
    // silu'(1) = 0.927670511871487; dx_0 = w_3 dz_0 + w_2 dz_1 + dfinal_1.
    p.dy.set({1, 0});
    p.dfinal.set({10, 20, 30});
    p.backward(ctx);
    const double dz = 0.927670511871487;
    EXPECT_TRUE(all_near(p.dx.get(), {4 * dz + 20, 30}, 1e-14));
    EXPECT_TRUE(all_near(p.dinitial.get(), {dz, 2 * dz, 3 * dz + 10}, 1e-14));
    EXPECT_TRUE(all_near(p.dweight.get(), {dz, -dz, 2 * dz, -dz}, 1e-14));
  });
}

const std::vector<Lengths> kPackings = {{5, 0, 1, 2, 3, 4, 0, 20}, {0}, {1}, {2, 2}, {35}};

TEST(Conv1d, MatchesTheFormulaInEveryShape) {
  for_each_context([](Context& ctx) {
    for (const std::int64_t tokens : {0, 1, 2, 3, 4, 5, 300}) {
      for (const std::int64_t channels : {1, 7, 63, 64, 65, 130}) {
        const Problem p(desc_of(2, tokens, channels), {}, {}, {.row_padding = 3, .shift = 1});
        p.forward(ctx);
        EXPECT_TRUE(all_near(p.y.get(), p.naive<double>(), 1e-13));
        for (std::int64_t s = 0; s < 2; ++s) {
          for (std::int64_t i = 0; i < 3 * channels; ++i) {
            ASSERT_EQ(p.final.get(s * 3 * channels + i),
                      p.seen(s, tokens - 3 + i / channels, 0, i % channels));
          }
        }
        EXPECT_TRUE(p.y.guards_intact());
        EXPECT_TRUE(p.final.guards_intact());
      }
    }
    for (const Lengths& lengths : kPackings) {
      std::int64_t tokens = 0;
      for (const std::int64_t n : lengths) tokens += n;
      const Problem p(desc_of(1, tokens, 5), lengths);
      p.forward(ctx);
      EXPECT_TRUE(all_near(p.y.get(), p.naive<double>(), 1e-13));
    }
    for (const Lengths& lengths : std::vector<Lengths>{{5, 1, 2, 3, 4, 20}, {1, 1}, {2, 3}}) {
      std::int64_t tokens = 0;
      for (const std::int64_t n : lengths) tokens += n;
      const Problem p(desc_of(1, tokens, 5), {}, lengths);
      p.forward(ctx);
      EXPECT_TRUE(all_near(p.y.get(), p.naive<double>(), 1e-13));
    }
  });
}

void expect_finite_differences(Context& ctx, Problem p) {
  p.forward(ctx);
  p.backward(ctx);
  const auto dx = p.dx.get(), dweight = p.dweight.get(), dinitial = p.dinitial.get();
  EXPECT_TRUE(p.dx.guards_intact());
  EXPECT_TRUE(p.dinitial.guards_intact());
  const auto loss = [&] {
    p.forward(ctx);
    return weighted_sum(p.dy.get(), p.y.get()) + weighted_sum(p.dfinal.get(), p.final.get());
  };
  EXPECT_TRUE(gradient_near(p.x, dx, loss)) << "dx";
  EXPECT_TRUE(gradient_near(p.weight, dweight, loss)) << "dweight";
  EXPECT_TRUE(gradient_near(p.initial, dinitial, loss)) << "dinitial";
}

TEST(Conv1d, FiniteDifferences) {
  for_each_isa([](Context& ctx) {
    for (const std::int64_t tokens : {0, 1, 2, 3, 7}) {
      SCOPED_TRACE(tokens);
      expect_finite_differences(ctx, Problem(desc_of(2, tokens, 3), {}, {}, {.row_padding = 2}));
    }
    expect_finite_differences(ctx, Problem(desc_of(1, 35, 2), {5, 0, 1, 2, 3, 4, 0, 20}));
    expect_finite_differences(ctx, Problem(desc_of(1, 15, 2), {}, {5, 1, 2, 3, 4}));
    expect_finite_differences(ctx, Problem(desc_of(1, 4, 2), {}, {1, 1, 2}));
  });
}

template <class Low>
void expect_low_precision(DType dtype, double floor) {
  const Problem p(desc_of(2, 50, 70, dtype));
  for_each_context([&](Context& ctx) {
    p.forward(ctx);
    EXPECT_TRUE(low_precision_near(p.y.get(), p.naive<Low>(), p.naive<double>(), floor));
  });
}
TEST(Conv1d, Fp32) { expect_low_precision<float>(DType::kFloat32, 1e-6); }
TEST(Conv1d, Bf16) { expect_low_precision<op_test::NaiveBf16>(DType::kBFloat16, 1e-3); }

TEST(Conv1d, GradientsInLowPrecisionAreThoseOfFp64) {
  // 600 tokens: dweight is folded more than once.
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const Problem low(desc_of(1, 600, 20, dtype), {270, 330});
    Problem exact(desc_of(1, 600, 20), {270, 330});
    exact.x.set(low.x.get());
    exact.weight.set(low.weight.get());
    exact.initial.set(low.initial.get());
    exact.dy.set(low.dy.get());
    exact.dfinal.set(low.dfinal.get());
    Context ctx = make_context();
    low.backward(ctx);
    exact.backward(ctx);
    const double storage = dtype == DType::kFloat32 ? 1e-6 : 4e-3;
    EXPECT_TRUE(all_near(low.dx.get(), exact.dx.get(), storage));
    EXPECT_TRUE(all_near(low.dinitial.get(), exact.dinitial.get(), storage));
    EXPECT_TRUE(all_near(low.dweight.get(), exact.dweight.get(), 1e-5));
  }
}

TEST(Conv1d, NeitherThreadsNorInstructionSetsChangeABit) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    std::vector<std::vector<std::uint8_t>> first;
    for_each_context([&](Context& ctx) {
      const Problem p(desc_of(2, 40, 150, dtype));
      p.forward(ctx);
      p.backward(ctx);
      for (std::size_t i = 0; i < p.results().size(); ++i) {
        if (first.size() <= i) first.push_back(p.results()[i]->bits());
        EXPECT_EQ(p.results()[i]->bits(), first[i]) << "result " << i;
      }
    });
  }
}

TEST(Conv1d, TokenByTokenInPlaceIsTheWhole) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for_each_context([&](Context& ctx) {
      const Problem whole(desc_of(2, 9, 70, dtype)), steps(desc_of(2, 9, 70, dtype));
      whole.forward(ctx);
      const Conv1dPlan plan = conv1d_plan(desc_of(2, 1, 70, dtype));
      for (std::int64_t t = 0; t < 9; ++t) {
        conv1d_forward(ctx, plan,
                       {steps.x.tensor().slice(1, t, t + 1), steps.weight, {}, steps.initial},
                       {steps.y.tensor().slice(1, t, t + 1), steps.initial}, {});
      }
      EXPECT_EQ(steps.y.bits(), whole.y.bits());
      EXPECT_EQ(steps.initial.bits(), whole.final.bits());
    });
  }
}

TEST(Conv1d, NanOfANeighbourNeverLeaks) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const bool documents : {false, true}) {
    for (const std::int64_t length : {1, 2, 3, 9}) {
      const Lengths lengths = {4, length, 4};
      const std::int64_t tokens = 8 + length;
      Problem p(desc_of(1, tokens, 5, DType::kFloat32), documents ? Lengths{} : lengths,
                documents ? lengths : Lengths{});
      for (std::int64_t t = 0; t < tokens; ++t) {
        if (t >= 4 && t < 4 + length) continue;
        for (std::int64_t c = 0; c < 5; ++c) {
          p.x.set(t * 5 + c, nan);
          p.dy.set(t * 5 + c, nan);
        }
      }
      for_each_isa([&](Context& ctx) {
        p.forward(ctx);
        p.backward(ctx);
        for (std::int64_t i = 4 * 5; i < (4 + length) * 5; ++i) {
          ASSERT_TRUE(std::isfinite(p.y.get(i)));
          ASSERT_TRUE(std::isfinite(p.dx.get(i)));
        }
        EXPECT_TRUE(std::isnan(p.y.get(0)));
        EXPECT_TRUE(std::isnan(p.dx.get(0)));
      });
    }
  }
}

TEST(Conv1d, AbsentOperands) {
  Context ctx = make_context();
  Problem zero(desc_of(2, 5, 3, DType::kFloat32)), absent(desc_of(2, 5, 3, DType::kFloat32));
  zero.initial.fill(0);
  zero.dfinal.fill(0);
  zero.forward(ctx);
  zero.backward(ctx);
  const Conv1dPlan plan = conv1d_plan(absent.desc);
  conv1d_forward(ctx, plan, {absent.x, absent.weight, {}, {}}, {absent.y, {}}, {});
  conv1d_backward(ctx, plan, {absent.dy, absent.x, absent.weight, {}, {}, {}}, {absent.dx, {}, {}},
                  {});
  EXPECT_EQ(absent.y.bits(), zero.y.bits());
  EXPECT_EQ(absent.dx.bits(), zero.dx.bits());
  // dweight grows.
  const auto once = zero.dweight.get();
  zero.backward(ctx);
  for (std::size_t i = 0; i < once.size(); ++i) {
    EXPECT_EQ(zero.dweight.get(static_cast<std::int64_t>(i)), 2 * once[i]);
  }
}

TEST(Conv1d, RefusesWhatDoesNotFit) {
  Context ctx = make_context();
  const ErrorKind usage = ErrorKind::kUsage;
  const auto no_plan = [&](const Conv1dDesc& d, std::initializer_list<std::string_view> parts) {
    EXPECT_TRUE(throws_error([&] { conv1d_plan(d); }, usage, parts));
  };
  no_plan({.batch = -1, .channels = 1}, {"conv1d: batch -1"});
  no_plan({.batch = 1, .channels = 0}, {"channels 0", "positive"});
  no_plan({.batch = 2, .channels = 1, .sequences = 2}, {"2 packed"});
  no_plan({.batch = 1, .channels = 1, .dtype = DType::kInt64}, {"int64"});
  no_plan({.batch = 1, .channels = 1, .dtype = DType::kFloat64, .device = Device::kCuda},
          {"fp64 runs on the CPU only"});
  const Problem p(desc_of(1, 5, 3, DType::kBFloat16));
  const Conv1dPlan plan = conv1d_plan(p.desc);
  const auto refused = [&](const Conv1dForwardIn& in, const Conv1dForwardOut& out,
                           std::initializer_list<std::string_view> parts) {
    EXPECT_TRUE(throws_error([&] { conv1d_forward(ctx, plan, in, out, {}); }, usage, parts));
  };
  refused({p.initial, p.weight, {}, {}}, {p.y, {}},
          {"x_BTD is bf16 [1, 3, 3]", "expected bf16 [1, 5, 3]"});
  refused({p.x, p.x, {}, {}}, {p.y, {}}, {"weight_DW", "expected fp32 [3, 4]"});
  refused({p.x, p.weight, {}, p.x}, {p.y, {}}, {"initial_state_S3D", "expected bf16 [1, 3, 3]"});
  refused({p.x, p.weight, {}, {}}, {}, {"y_BTD is missing"});
  refused({p.x, p.weight, {p.border, {}, {}}, {}}, {p.y, {}}, {"border_S1 needs"});
  EXPECT_TRUE(throws_error(
      [&] { conv1d_backward(ctx, plan, {p.dy, p.x, p.weight, {}, {}, {}}, {p.dx, p.x, {}}, {}); },
      usage, {"dweight_DW"}));
}

}  // namespace
}  // namespace k25::kernels::conv1d_test
