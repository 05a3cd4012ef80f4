#include "kernels/rmsnorm/rmsnorm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/kernels/op_test.h"
#include "tests/kernels/rmsnorm/rmsnorm_oracle.h"

namespace k25::kernels {
namespace {

using op_test::GuardedTensor;
using op_test::Layout;
using op_test::NaiveBf16;
using op_test::random_tensor;
using op_test::Scratch;
using op_test::throws_error;
using rmsnorm_test::Gradients;
using rmsnorm_test::naive_backward;
using rmsnorm_test::naive_forward;
using rmsnorm_test::Sizes;

constexpr DType kFloats[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat64};

// 32 is both the lanes of a sum and the rows of a block; 1025 rows give blocks of 33.
constexpr Sizes kSizes[] = {{0, 8},   {1, 1},   {1, 31},   {31, 32}, {32, 33},
                            {33, 64}, {65, 65}, {1025, 3}, {40, 128}};

DType sum_dtype(DType t) { return t == DType::kFloat64 ? t : DType::kFloat32; }

enum class Residual { kNo, kYes };

struct Forward {
  GuardedTensor sum, y, rstd;
};

Forward forward(Context& ctx, const GuardedTensor& x, const GuardedTensor* residual,
                const GuardedTensor& gain, Sizes s, Layout layout = {}) {
  const DType dtype = x.dtype();
  const RmsNormPlan plan = rmsnorm_plan({.rows = s.rows, .cols = s.cols, .dtype = dtype});
  EXPECT_EQ(plan.saved_bytes, bytes_of(Elems{s.rows}, sum_dtype(dtype)));
  Forward f{GuardedTensor(dtype, {s.rows, s.cols}, layout),
            GuardedTensor(dtype, {s.rows, s.cols}, layout),
            GuardedTensor(sum_dtype(dtype), {s.rows})};
  RmsNormForwardIn in{.x_ND = x, .residual_ND = {}, .gain_D = gain};
  if (residual != nullptr) in.residual_ND = *residual;
  const Scratch scratch(plan.workspace_bytes);
  rmsnorm_forward(ctx, plan, in, {.sum_ND = f.sum, .y_ND = f.y, .rstd_N = f.rstd},
                  scratch.workspace());
  EXPECT_TRUE(f.sum.guards_intact());
  EXPECT_TRUE(f.y.guards_intact());
  EXPECT_TRUE(f.rstd.guards_intact());
  return f;
}

void backward(Context& ctx, const ConstTensor& dy, const ConstTensor& sum, const ConstTensor& gain,
              const ConstTensor& rstd, const ConstTensor& d_sum, Sizes s, const Tensor& dx,
              const Tensor& dgain) {
  const RmsNormPlan plan = rmsnorm_plan({.rows = s.rows, .cols = s.cols, .dtype = dy.dtype()});
  const Scratch scratch(plan.workspace_bytes);
  rmsnorm_backward(ctx, plan,
                   {.dy_ND = dy, .sum_ND = sum, .gain_D = gain, .rstd_N = rstd, .d_sum_ND = d_sum},
                   {.dx_ND = dx, .dgain_D = dgain}, scratch.workspace());
}

TEST(RmsNorm, ByHand) {
  // s = (3, 4) + (0, 0) and (1, 1) + (2, -5): mean squares 12.5 and 12.5, so rstd = 1 / sqrt(12.5).
  op_test::for_each_isa([](Context& ctx) {
    const Sizes s{2, 2};
    const GuardedTensor x(DType::kFloat64, {2, 2}, std::vector<double>{3, 4, 1, 1});
    const GuardedTensor residual(DType::kFloat64, {2, 2}, std::vector<double>{0, 0, 2, -5});
    const GuardedTensor gain(DType::kFloat64, {2}, std::vector<double>{1, 2});
    const Forward f = forward(ctx, x, &residual, gain, s);
    const double rstd = 1 / std::sqrt(12.5 + 1e-6);
    EXPECT_EQ(f.sum.get(), (std::vector<double>{3, 4, 3, -4}));
    EXPECT_TRUE(op_test::all_near(f.rstd.get(), {rstd, rstd}, 1e-15));
    EXPECT_TRUE(op_test::all_near(f.y.get(), {3 * rstd, 8 * rstd, 3 * rstd, -8 * rstd}, 1e-15));

    // dy = (1, 0) in row 0: x_hat = (3, 4) rstd, mean(g dy x_hat) = 1.5 rstd.
    const GuardedTensor dy(DType::kFloat64, {2, 2}, std::vector<double>{1, 0, 0, 0});
    const GuardedTensor dx(DType::kFloat64, {2, 2});
    const GuardedTensor dgain(DType::kFloat64, {2}, std::vector<double>{100, 200});
    backward(ctx, dy, f.sum, gain, f.rstd, {}, s, dx, dgain);
    const double cube = rstd * rstd * rstd;
    EXPECT_TRUE(op_test::all_near(dx.get(), {rstd - 4.5 * cube, -6 * cube, 0, 0}, 1e-15));
    EXPECT_TRUE(op_test::all_near(dgain.get(), {100 + 3 * rstd, 200}, 1e-15));
  });
}

void expect_forward(DType dtype, Sizes s, Residual with) {
  const GuardedTensor x =
      random_tensor("x", dtype, {s.rows, s.cols}, Layout{.row_padding = 3, .shift = 1}, -3, 3);
  const GuardedTensor residual =
      random_tensor("residual", dtype, {s.rows, s.cols}, Layout{.row_padding = 1}, -3, 3);
  const GuardedTensor gain = random_tensor("gain", sum_dtype(dtype), {s.cols}, {}, 0.5, 1.5);
  std::vector<double> sum = x.get();
  if (with == Residual::kYes) {
    for (std::int64_t i = 0; i < x.count(); ++i) {
      sum[static_cast<std::size_t>(i)] = op_test::round_to(dtype, x.get(i) + residual.get(i));
    }
  }
  const std::vector<double> ref = naive_forward<double>(sum, gain.get(), s);
  const std::vector<double> low = dtype == DType::kBFloat16
                                      ? naive_forward<NaiveBf16>(sum, gain.get(), s)
                                      : naive_forward<float>(sum, gain.get(), s);
  std::vector<std::uint8_t> first;
  op_test::for_each_context([&](Context& ctx) {
    const Forward f = forward(ctx, x, with == Residual::kYes ? &residual : nullptr, gain, s,
                              Layout{.row_padding = 2, .shift = 3});
    if (with == Residual::kYes) {
      EXPECT_EQ(f.sum.get(), sum);
    }
    if (dtype == DType::kFloat64) {
      EXPECT_TRUE(op_test::all_near(f.y.get(), ref, 1e-13));
    } else {
      const double floor = dtype == DType::kFloat32 ? 1e-6 : 1e-2;
      EXPECT_TRUE(op_test::low_precision_near(f.y.get(), low, ref, floor));
    }
    // Fixed lanes, no contraction: equal bits on all instruction sets too.
    if (first.empty()) first = f.y.bits();
    EXPECT_EQ(f.y.bits(), first);
  });
}

TEST(RmsNorm, ForwardMatchesTheOracleInEveryShape) {
  for (const DType dtype : kFloats) {
    for (const Sizes& s : kSizes) {
      SCOPED_TRACE(std::to_string(s.rows) + " x " + std::to_string(s.cols) + " " +
                   std::string(dtype_name(dtype)));
      expect_forward(dtype, s, Residual::kNo);
      expect_forward(dtype, s, Residual::kYes);
    }
  }
}

void expect_backward(DType dtype, Sizes s, Residual with) {
  const GuardedTensor sum =
      random_tensor("sum", dtype, {s.rows, s.cols}, Layout{.row_padding = 3, .shift = 1}, -3, 3);
  const GuardedTensor dy = random_tensor("dy", dtype, {s.rows, s.cols}, Layout{.shift = 5});
  const GuardedTensor d_sum =
      random_tensor("d_sum", dtype, {s.rows, s.cols}, Layout{.row_padding = 2});
  const GuardedTensor gain = random_tensor("gain", sum_dtype(dtype), {s.cols}, {}, 0.5, 1.5);
  const bool has = with == Residual::kYes;
  const std::vector<double> d_sum_values = has ? d_sum.get() : std::vector<double>{};
  const Gradients ref = naive_backward<double>(dy.get(), sum.get(), gain.get(), d_sum_values, s);
  const Gradients low =
      dtype == DType::kBFloat16
          ? naive_backward<NaiveBf16>(dy.get(), sum.get(), gain.get(), d_sum_values, s)
          : naive_backward<float>(dy.get(), sum.get(), gain.get(), d_sum_values, s);
  std::vector<std::uint8_t> first_dx;
  std::vector<std::uint8_t> first_dgain;
  op_test::for_each_context([&](Context& ctx) {
    const Forward f = forward(ctx, sum, nullptr, gain, s);
    const GuardedTensor dx(dtype, {s.rows, s.cols}, Layout{.row_padding = 1, .shift = 3});
    GuardedTensor dgain(sum_dtype(dtype), {s.cols});
    dgain.fill(0);
    backward(ctx, dy, sum, gain, f.rstd, has ? ConstTensor(d_sum) : ConstTensor(), s, dx, dgain);
    EXPECT_TRUE(dx.guards_intact());
    EXPECT_TRUE(dgain.guards_intact());
    if (dtype == DType::kFloat64) {
      EXPECT_TRUE(op_test::all_near(dx.get(), ref.dx, 1e-12));
      EXPECT_TRUE(op_test::all_near(dgain.get(), ref.dgain, 1e-12));
    } else {
      const double floor = dtype == DType::kFloat32 ? 1e-5 : 1e-2;
      EXPECT_TRUE(op_test::low_precision_near(dx.get(), low.dx, ref.dx, floor));
      // dgain is fp32 for bf16 storage too: hold it to fp32's error.
      EXPECT_TRUE(op_test::all_near(dgain.get(), ref.dgain, 1e-5));
    }
    if (first_dx.empty()) first_dx = dx.bits();
    if (first_dgain.empty()) first_dgain = dgain.bits();
    EXPECT_EQ(dx.bits(), first_dx);
    EXPECT_EQ(dgain.bits(), first_dgain);
  });
}

TEST(RmsNorm, BackwardMatchesTheOracleInEveryShape) {
  for (const DType dtype : kFloats) {
    for (const Sizes& s : kSizes) {
      SCOPED_TRACE(std::to_string(s.rows) + " x " + std::to_string(s.cols) + " " +
                   std::string(dtype_name(dtype)));
      expect_backward(dtype, s, Residual::kNo);
      expect_backward(dtype, s, Residual::kYes);
    }
  }
}

TEST(RmsNorm, GradientsMatchFiniteDifferences) {
  op_test::for_each_isa([](Context& ctx) {
    const Sizes s{3, 37};
    GuardedTensor x = random_tensor("x", DType::kFloat64, {3, 37});
    GuardedTensor residual = random_tensor("residual", DType::kFloat64, {3, 37});
    GuardedTensor gain = random_tensor("gain", DType::kFloat64, {37}, {}, 0.5, 1.5);
    const std::vector<double> w_y = op_test::random_values("w_y", 3 * 37);
    const std::vector<double> w_sum = op_test::random_values("w_sum", 3 * 37);
    const auto loss = [&] {
      const Forward f = forward(ctx, x, &residual, gain, s);
      return op_test::weighted_sum(w_y, f.y.get()) + op_test::weighted_sum(w_sum, f.sum.get());
    };
    const Forward f = forward(ctx, x, &residual, gain, s);
    const GuardedTensor dy(DType::kFloat64, {3, 37}, w_y);
    const GuardedTensor d_sum(DType::kFloat64, {3, 37}, w_sum);
    const GuardedTensor dx(DType::kFloat64, {3, 37});
    GuardedTensor dgain(DType::kFloat64, {37});
    dgain.fill(0);
    backward(ctx, dy, f.sum, gain, f.rstd, d_sum, s, dx, dgain);
    EXPECT_TRUE(op_test::gradient_near(x, dx.get(), loss));
    EXPECT_TRUE(op_test::gradient_near(residual, dx.get(), loss));
    EXPECT_TRUE(op_test::gradient_near(gain, dgain.get(), loss));
  });
}

TEST(RmsNorm, TheSumAloneDecides) {
  for (const DType dtype : kFloats) {
    for (const Sizes& s : kSizes) {
      const GuardedTensor x = random_tensor("x", dtype, {s.rows, s.cols}, {}, -3, 3);
      const GuardedTensor residual = random_tensor("residual", dtype, {s.rows, s.cols}, {}, -3, 3);
      const GuardedTensor gain = random_tensor("gain", sum_dtype(dtype), {s.cols}, {}, 0.5, 1.5);
      op_test::for_each_context([&](Context& ctx) {
        const Forward f = forward(ctx, x, &residual, gain, s);
        const Forward plain = forward(ctx, f.sum, nullptr, gain, s);
        EXPECT_EQ(plain.y.bits(), f.y.bits());
        EXPECT_EQ(plain.rstd.bits(), f.rstd.bits());
      });
    }
  }
}

TEST(RmsNorm, SumMayBeEitherInput) {
  for (const DType dtype : kFloats) {
    op_test::for_each_context([&](Context& ctx) {
      const Sizes s{35, 40};
      const GuardedTensor gain = random_tensor("gain", sum_dtype(dtype), {40});
      const GuardedTensor x = random_tensor("x", dtype, {35, 40});
      const GuardedTensor residual = random_tensor("residual", dtype, {35, 40});
      const Forward f = forward(ctx, x, &residual, gain, s);
      const RmsNormPlan plan = rmsnorm_plan({.rows = 35, .cols = 40, .dtype = dtype});
      const GuardedTensor y(dtype, {35, 40});
      for (const char* which : {"x", "residual"}) {
        const GuardedTensor a = random_tensor("x", dtype, {35, 40});
        const GuardedTensor b = random_tensor("residual", dtype, {35, 40});
        const GuardedTensor& sum = which == std::string("x") ? a : b;
        rmsnorm_forward(ctx, plan, {.x_ND = a, .residual_ND = b, .gain_D = gain},
                        {.sum_ND = sum, .y_ND = y, .rstd_N = f.rstd}, {});
        EXPECT_EQ(sum.bits(), f.sum.bits());
        EXPECT_EQ(y.bits(), f.y.bits());
      }
    });
  }
}

TEST(RmsNorm, InputGradientMayOverwriteEitherGradient) {
  for (const DType dtype : kFloats) {
    op_test::for_each_context([&](Context& ctx) {
      const Sizes s{35, 40};
      const GuardedTensor sum = random_tensor("sum", dtype, {35, 40});
      const GuardedTensor gain = random_tensor("gain", sum_dtype(dtype), {40});
      const Forward f = forward(ctx, sum, nullptr, gain, s);
      const GuardedTensor dx(dtype, {35, 40});
      GuardedTensor dgain(sum_dtype(dtype), {40});
      for (const char* which : {"neither", "dy", "d_sum"}) {
        const GuardedTensor dy = random_tensor("dy", dtype, {35, 40});
        const GuardedTensor d_sum = random_tensor("d_sum", dtype, {35, 40});
        const GuardedTensor& out = which == std::string("dy")      ? dy
                                   : which == std::string("d_sum") ? d_sum
                                                                   : dx;
        dgain.fill(0);
        backward(ctx, dy, sum, gain, f.rstd, d_sum, s, out, dgain);
        EXPECT_EQ(out.bits(), dx.bits()) << which;
      }
      const GuardedTensor dy = random_tensor("dy", dtype, {35, 40}), frozen(dtype, {35, 40});
      const GuardedTensor d_sum = random_tensor("d_sum", dtype, {35, 40});
      backward(ctx, dy, sum, gain, f.rstd, d_sum, s, frozen, {});
      EXPECT_EQ(frozen.bits(), dx.bits()) << "dgain is optional";
    });
  }
}

TEST(RmsNorm, ZeroRowGivesZeroAndFiniteGradients) {
  op_test::for_each_isa([](Context& ctx) {
    const Sizes s{1, 33};
    GuardedTensor x(DType::kFloat32, {1, 33});
    x.fill(0);
    GuardedTensor gain(DType::kFloat32, {33});
    gain.fill(1);
    const Forward f = forward(ctx, x, nullptr, gain, s);
    EXPECT_EQ(f.y.get(), std::vector<double>(33, 0.0));
    EXPECT_TRUE(op_test::all_near(f.rstd.get(), {1000}, 1e-6));
    GuardedTensor dy(DType::kFloat32, {1, 33});
    dy.fill(2);
    const GuardedTensor dx(DType::kFloat32, {1, 33});
    GuardedTensor dgain(DType::kFloat32, {33});
    dgain.fill(5);
    backward(ctx, dy, x, gain, f.rstd, {}, s, dx, dgain);
    EXPECT_TRUE(op_test::all_near(dx.get(), std::vector<double>(33, 2000.0), 1e-6));
    EXPECT_EQ(dgain.get(), std::vector<double>(33, 5.0));
  });
}

TEST(RmsNorm, RefusesWhatDoesNotFit) {
  Context ctx = op_test::make_context();
  const ErrorKind usage = ErrorKind::kUsage;
  EXPECT_TRUE(throws_error([] { rmsnorm_plan({.rows = 1, .cols = 0}); }, usage,
                           {"rmsnorm", "cols 0", "at least 1"}));
  EXPECT_TRUE(throws_error([] { rmsnorm_plan({.rows = -1, .cols = 4}); }, usage, {"rows is -1"}));
  EXPECT_TRUE(throws_error([] { rmsnorm_plan({.rows = 1, .cols = 4, .dtype = DType::kInt32}); },
                           usage, {"int32"}));
  for (const double eps : {0.0, -1.0, std::nan(""), HUGE_VAL}) {
    EXPECT_TRUE(throws_error([eps] { rmsnorm_plan({.rows = 1, .cols = 4, .eps = eps}); }, usage,
                             {"eps", "positive and finite"}));
  }
  const RmsNormPlan plan = rmsnorm_plan({.rows = 2, .cols = 4, .dtype = DType::kBFloat16});
  const GuardedTensor x = random_tensor("x", DType::kBFloat16, {2, 4});
  const GuardedTensor y(DType::kBFloat16, {2, 4});
  const GuardedTensor gain(DType::kFloat32, {4});
  const GuardedTensor rstd(DType::kFloat32, {2});
  const GuardedTensor low_gain(DType::kBFloat16, {4});
  const GuardedTensor tall(DType::kBFloat16, {3, 4});
  const auto call = [&](RmsNormForwardIn in, RmsNormForwardOut out) {
    return [&ctx, &plan, in, out] { rmsnorm_forward(ctx, plan, in, out, {}); };
  };
  EXPECT_TRUE(throws_error(call({.x_ND = x, .residual_ND = {}, .gain_D = low_gain},
                                {.sum_ND = {}, .y_ND = y, .rstd_N = rstd}),
                           usage, {"gain_D is bf16 [4]", "expected fp32 [4]"}));
  EXPECT_TRUE(throws_error(call({.x_ND = tall, .residual_ND = {}, .gain_D = gain},
                                {.sum_ND = {}, .y_ND = y, .rstd_N = rstd}),
                           usage, {"x_ND is bf16 [3, 4]", "expected bf16 [2, 4]"}));
  EXPECT_TRUE(throws_error(call({.x_ND = x, .residual_ND = x, .gain_D = gain},
                                {.sum_ND = {}, .y_ND = y, .rstd_N = rstd}),
                           usage, {"sum_ND is missing"}));
  EXPECT_TRUE(throws_error(
      call({.x_ND = x, .residual_ND = {}, .gain_D = gain}, {.sum_ND = {}, .y_ND = y, .rstd_N = {}}),
      usage, {"rstd_N is missing"}));
  const Tensor device(y.tensor().raw(), DType::kBFloat16, {2, 4}, Device::kCuda);
  EXPECT_TRUE(throws_error(call({.x_ND = x, .residual_ND = {}, .gain_D = gain},
                                {.sum_ND = {}, .y_ND = device, .rstd_N = rstd}),
                           usage, {"y_ND is on the GPU"}));

  const GuardedTensor dgain(DType::kFloat32, {4});
  const RmsNormBackwardIn in{
      .dy_ND = y, .sum_ND = x, .gain_D = gain, .rstd_N = rstd, .d_sum_ND = {}};
  EXPECT_TRUE(throws_error(
      [&] { rmsnorm_backward(ctx, plan, in, {.dx_ND = y, .dgain_D = dgain}, {}); }, usage,
      {"workspace of 0 bytes", "needs " + std::to_string(plan.workspace_bytes.n)}));
  const Scratch scratch(Bytes{plan.workspace_bytes.n + 64});
  Workspace crooked = scratch.workspace();
  crooked.data = static_cast<char*>(crooked.data) + 4;
  EXPECT_TRUE(throws_error(
      [&] { rmsnorm_backward(ctx, plan, in, {.dx_ND = y, .dgain_D = dgain}, crooked); }, usage,
      {"64-byte aligned"}));
}

}  // namespace
}  // namespace k25::kernels
