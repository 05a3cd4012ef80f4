#include "kernels/swiglu/swiglu.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/kernels/op_test.h"
#include "tests/kernels/swiglu/swiglu_oracle.h"

namespace k25::kernels {
namespace {

using op_test::GuardedTensor;
using op_test::Layout;
using op_test::NaiveBf16;
using op_test::random_tensor;
using op_test::throws_error;
using swiglu_test::naive_backward;
using swiglu_test::naive_forward;
using swiglu_test::Sizes;

constexpr DType kFloats[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat64};

constexpr Sizes kSizes[] = {{0, 4},   {3, 0},   {1, 1},   {2, 15}, {31, 16},
                            {32, 17}, {33, 31}, {5, 352}, {65, 33}};

GuardedTensor forward(Context& ctx, const GuardedTensor& gate_up, Sizes s, Layout layout = {}) {
  GuardedTensor out(gate_up.dtype(), {s.rows, s.cols}, layout);
  const SwigluPlan plan = swiglu_plan({.rows = s.rows, .cols = s.cols, .dtype = gate_up.dtype()});
  EXPECT_EQ(plan.workspace_bytes, Bytes{0});
  swiglu_forward(ctx, plan, {.gate_up_NG = gate_up}, {.out_NF = out}, {});
  EXPECT_TRUE(out.guards_intact());
  return out;
}

void backward(Context& ctx, const GuardedTensor& dout, const GuardedTensor& gate_up, Sizes s,
              const Tensor& d_gate_up) {
  const SwigluPlan plan = swiglu_plan({.rows = s.rows, .cols = s.cols, .dtype = gate_up.dtype()});
  swiglu_backward(ctx, plan, {.dout_NF = dout, .gate_up_NG = gate_up}, {.d_gate_up_NG = d_gate_up},
                  {});
}

TEST(Swiglu, ByHand) {
  // silu(0) = 0; silu(1) = 0.731058578630005; silu(-2) = -0.238405844044235. Gate first, then up.
  const std::vector<double> gate_up{0, 1, -2, 5, 2, 10};
  op_test::for_each_isa([&](Context& ctx) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
      const GuardedTensor x(dtype, {1, 6}, gate_up);
      const double tolerance = dtype == DType::kFloat64 ? 1e-14 : 1e-6;
      EXPECT_TRUE(op_test::all_near(forward(ctx, x, {1, 3}).get(),
                                    {0, 1.46211715726001, -2.38405844044235}, tolerance));
      // dgate = up s (1 + z (1 - s)) with dout 1: at 0: 5 x 0.5; at 1: 2 x 0.927670511871487;
      // at -2: 10 x -0.0907842487848955. dup = silu.
      GuardedTensor dout(dtype, {1, 3});
      dout.fill(1);
      const GuardedTensor grad(dtype, {1, 6});
      backward(ctx, dout, x, {1, 3}, grad);
      EXPECT_TRUE(op_test::all_near(
          grad.get(),
          {2.5, 1.85534102374297, -0.907842487848955, 0, 0.731058578630005, -0.238405844044235},
          tolerance));
    }
  });
}

TEST(Swiglu, MatchesTheOracleInEveryShape) {
  for (const DType dtype : kFloats) {
    const bool is_bf16 = dtype == DType::kBFloat16;
    const double floor = dtype == DType::kFloat64 ? 1e-13 : is_bf16 ? 1e-3 : 1e-6;
    for (const Sizes& s : kSizes) {
      SCOPED_TRACE(std::to_string(s.rows) + " x " + std::to_string(s.cols) + " " +
                   std::string(dtype_name(dtype)));
      const GuardedTensor x = random_tensor("x", dtype, {s.rows, 2 * s.cols},
                                            Layout{.row_padding = 3, .shift = 1}, -6, 6);
      const GuardedTensor dout =
          random_tensor("dout", dtype, {s.rows, s.cols}, Layout{.row_padding = 1}, -2, 2);
      const std::vector<double> out64 = naive_forward<double>(x.get(), s);
      const std::vector<double> grad64 = naive_backward<double>(dout.get(), x.get(), s);
      const std::vector<double> out_low =
          is_bf16 ? naive_forward<NaiveBf16>(x.get(), s) : naive_forward<float>(x.get(), s);
      const std::vector<double> grad_low = is_bf16
                                               ? naive_backward<NaiveBf16>(dout.get(), x.get(), s)
                                               : naive_backward<float>(dout.get(), x.get(), s);
      std::vector<std::uint8_t> first_out;
      std::vector<std::uint8_t> first_grad;
      op_test::for_each_context([&](Context& ctx) {
        const GuardedTensor out = forward(ctx, x, s, Layout{.row_padding = 2, .shift = 3});
        const GuardedTensor grad(dtype, {s.rows, 2 * s.cols}, Layout{.row_padding = 5});
        backward(ctx, dout, x, s, grad);
        EXPECT_TRUE(grad.guards_intact());
        if (dtype == DType::kFloat64) {
          EXPECT_TRUE(op_test::all_near(out.get(), out64, floor));
          EXPECT_TRUE(op_test::all_near(grad.get(), grad64, floor));
        } else {
          EXPECT_TRUE(op_test::low_precision_near(out.get(), out_low, out64, floor));
          EXPECT_TRUE(op_test::low_precision_near(grad.get(), grad_low, grad64, floor));
        }
        // exp of our own and no contraction: equal bits on all instruction sets and threads.
        if (first_out.empty()) first_out = out.bits();
        if (first_grad.empty()) first_grad = grad.bits();
        EXPECT_EQ(out.bits(), first_out);
        EXPECT_EQ(grad.bits(), first_grad);
      });
    }
  }
}

TEST(Swiglu, BackwardGivesForwardsBitsAgain) {
  for (const DType dtype : kFloats) {
    const Sizes s{5, 37};
    const GuardedTensor x = random_tensor("x", dtype, {5, 74}, Layout{.row_padding = 3}, -6, 6);
    const GuardedTensor dout = random_tensor("dout", dtype, {5, 37}, Layout{.row_padding = 1});
    op_test::for_each_isa([&](Context& ctx) {
      const GuardedTensor out = forward(ctx, x, s), plain(dtype, {5, 74}), grad(dtype, {5, 74});
      backward(ctx, dout, x, s, plain);
      const SwigluPlan plan = swiglu_plan({.rows = s.rows, .cols = s.cols, .dtype = dtype});
      const GuardedTensor again(dtype, {5, 37}, Layout{.row_padding = 2});
      swiglu_backward(ctx, plan, {dout, x}, {grad, again}, {});
      EXPECT_EQ(again.get(), out.get());
      EXPECT_EQ(grad.bits(), plain.bits());
      EXPECT_TRUE(again.guards_intact());

      const GuardedTensor in_place = random_tensor("dout", dtype, {5, 37});
      swiglu_backward(ctx, plan, {in_place, x}, {grad, in_place}, {});
      EXPECT_EQ(in_place.bits(), out.bits());
      EXPECT_EQ(grad.bits(), plain.bits());
    });
  }
}

TEST(Swiglu, GradientMatchesFiniteDifferences) {
  op_test::for_each_isa([](Context& ctx) {
    const Sizes s{3, 5};
    GuardedTensor x = random_tensor("x", DType::kFloat64, {3, 10}, {}, -4, 4);
    const std::vector<double> w = op_test::random_values("w", 15);
    const GuardedTensor dout(DType::kFloat64, {3, 5}, w);
    const GuardedTensor grad(DType::kFloat64, {3, 10});
    backward(ctx, dout, x, s, grad);
    EXPECT_TRUE(op_test::gradient_near(
        x, grad.get(), [&] { return op_test::weighted_sum(w, forward(ctx, x, s).get()); }));
  });
}

TEST(Swiglu, GradientMayOverwriteTheInput) {
  for (const DType dtype : kFloats) {
    op_test::for_each_context([&](Context& ctx) {
      const Sizes s{40, 33};
      const GuardedTensor x = random_tensor("x", dtype, {40, 66}, {}, -4, 4);
      const GuardedTensor dout = random_tensor("dout", dtype, {40, 33});
      const GuardedTensor grad(dtype, {40, 66});
      backward(ctx, dout, x, s, grad);
      backward(ctx, dout, x, s, x);
      EXPECT_EQ(x.bits(), grad.bits());
    });
  }
}

TEST(Swiglu, LargeGatesSaturate) {
  op_test::for_each_isa([](Context& ctx) {
    // exp overflows for gate = -200 and underflows for 200: 0 and the gate itself, never NaN.
    const GuardedTensor x(DType::kFloat32, {1, 8},
                          std::vector<double>{-200, 200, -1e30, 1e30, 1, 1, 1, 1});
    EXPECT_TRUE(op_test::all_near(forward(ctx, x, {1, 4}).get(), {0, 200, 0, 1e30}, 1e-6));
    GuardedTensor dout(DType::kFloat32, {1, 4});
    dout.fill(1);
    const GuardedTensor grad(DType::kFloat32, {1, 8});
    backward(ctx, dout, x, {1, 4}, grad);
    EXPECT_TRUE(op_test::all_near(grad.get(), {0, 1, 0, 1, 0, 200, 0, 1e30}, 1e-6));
  });
}

TEST(Swiglu, NanStaysNanInItsElementAlone) {
  op_test::for_each_isa([](Context& ctx) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const GuardedTensor x(DType::kFloat32, {1, 4}, std::vector<double>{nan, 1, 1, 1});
    const std::vector<double> out = forward(ctx, x, {1, 2}).get();
    EXPECT_TRUE(std::isnan(out[0]));
    EXPECT_NEAR(out[1], 0.731058578630005, 1e-6);
  });
}

TEST(Swiglu, RefusesWhatDoesNotFit) {
  Context ctx = op_test::make_context();
  const ErrorKind usage = ErrorKind::kUsage;
  EXPECT_TRUE(
      throws_error([] { swiglu_plan({.rows = -2, .cols = 1}); }, usage, {"swiglu", "rows -2"}));
  EXPECT_TRUE(throws_error([] { swiglu_plan({.rows = 1, .cols = 1, .dtype = DType::kUInt8}); },
                           usage, {"uint8"}));
  const SwigluPlan plan = swiglu_plan({.rows = 2, .cols = 3});
  const GuardedTensor x(DType::kFloat32, {2, 6});
  const GuardedTensor out(DType::kFloat32, {2, 3});
  const GuardedTensor narrow(DType::kFloat32, {2, 5});
  const GuardedTensor low(DType::kBFloat16, {2, 3});
  EXPECT_TRUE(
      throws_error([&] { swiglu_forward(ctx, plan, {.gate_up_NG = narrow}, {.out_NF = out}, {}); },
                   usage, {"gate_up_NG is fp32 [2, 5]", "expected fp32 [2, 6]"}));
  EXPECT_TRUE(
      throws_error([&] { swiglu_forward(ctx, plan, {.gate_up_NG = x}, {.out_NF = low}, {}); },
                   usage, {"out_NF is bf16 [2, 3]"}));
  EXPECT_TRUE(
      throws_error([&] { swiglu_backward(ctx, plan, {.gate_up_NG = x}, {.d_gate_up_NG = x}, {}); },
                   usage, {"dout_NF is missing"}));
  const Tensor device(out.tensor().raw(), DType::kFloat32, {2, 3}, Device::kCuda);
  EXPECT_TRUE(
      throws_error([&] { swiglu_forward(ctx, plan, {.gate_up_NG = x}, {.out_NF = device}, {}); },
                   usage, {"is on the GPU"}));
}

}  // namespace
}  // namespace k25::kernels
