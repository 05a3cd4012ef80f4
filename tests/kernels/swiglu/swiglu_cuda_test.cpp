#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kernels/swiglu/swiglu.h"
#include "tests/kernels/cuda_test.h"
#include "tests/kernels/swiglu/swiglu_oracle.h"

namespace k25::kernels {
namespace {

using op_test::GuardedTensor;
using op_test::Layout;
using op_test::low_precision_near;
using op_test::NaiveBf16;
using op_test::OnGpu;
using op_test::random_tensor;
using op_test::throws_error;
using swiglu_test::naive_backward;
using swiglu_test::naive_forward;
using swiglu_test::Sizes;

constexpr DType kFloats[] = {DType::kFloat32, DType::kBFloat16};
// 4 and 8 elements make a vector, 256 threads a tile; 2056 is 257 vectors of bf16.
constexpr Sizes kSizes[] = {{0, 4},   {3, 0},    {1, 1},    {2, 7},    {31, 8},
                            {5, 352}, {65, 264}, {3, 2056}, {700, 16}, {2, 70000}};

class SwigluCudaTest : public op_test::CudaTest {
 protected:
  static SwigluPlan plan_of(Sizes s, DType dtype) {
    return swiglu_plan({.rows = s.rows, .cols = s.cols, .dtype = dtype, .device = Device::kCuda});
  }
  GuardedTensor forward(const GuardedTensor& gate_up, Sizes s, Layout layout = {}) {
    GuardedTensor out(gate_up.dtype(), {s.rows, s.cols}, layout);
    const OnGpu on_x(gpu(), gate_up), on_out(gpu(), out);
    swiglu_forward(gpu(), plan_of(s, gate_up.dtype()), {on_x}, {on_out}, {});
    EXPECT_TRUE(on_out.fetch().guards_intact());
    return out;
  }
  GuardedTensor backward(const GuardedTensor& dout, const GuardedTensor& gate_up, Sizes s,
                         Layout layout = {}) {
    GuardedTensor grad(gate_up.dtype(), {s.rows, 2 * s.cols}, layout);
    const OnGpu on_dout(gpu(), dout), on_x(gpu(), gate_up), on_grad(gpu(), grad);
    swiglu_backward(gpu(), plan_of(s, gate_up.dtype()), {on_dout, on_x}, {on_grad}, {});
    EXPECT_TRUE(on_grad.fetch().guards_intact());
    return grad;
  }
  /// Against the oracle, and equal bits for every layout and in a second run.
  void check(DType dtype, Sizes s);
};

void SwigluCudaTest::check(DType dtype, Sizes s) {
  const bool is_bf16 = dtype == DType::kBFloat16;
  const double floor = is_bf16 ? 1e-3 : 1e-6;
  std::vector<std::uint8_t> first_out, first_grad;
  for (const Layout layout : {Layout{}, Layout{}, Layout{.row_padding = 8, .shift = 8},
                              Layout{.row_padding = 3, .shift = 1}}) {
    const GuardedTensor x = random_tensor("x", dtype, {s.rows, 2 * s.cols}, layout, -6, 6);
    const GuardedTensor dout = random_tensor("dout", dtype, {s.rows, s.cols}, layout, -2, 2);
    const GuardedTensor out = forward(x, s, layout), grad = backward(dout, x, s, layout);
    if (first_out.empty()) {
      first_out = out.bits();
      first_grad = grad.bits();
      EXPECT_TRUE(low_precision_near(
          out.get(),
          is_bf16 ? naive_forward<NaiveBf16>(x.get(), s) : naive_forward<float>(x.get(), s),
          naive_forward<double>(x.get(), s), floor));
      EXPECT_TRUE(low_precision_near(grad.get(),
                                     is_bf16 ? naive_backward<NaiveBf16>(dout.get(), x.get(), s)
                                             : naive_backward<float>(dout.get(), x.get(), s),
                                     naive_backward<double>(dout.get(), x.get(), s), floor));
      // The CPU twin: one rounding of bf16 apart at most.
      const GuardedTensor twin(dtype, {s.rows, s.cols});
      swiglu_forward(cpu(), swiglu_plan({.rows = s.rows, .cols = s.cols, .dtype = dtype}), {x},
                     {twin}, {});
      EXPECT_TRUE(op_test::all_near(out.get(), twin.get(), is_bf16 ? 0x1p-7 : 1e-6));
    }
    EXPECT_EQ(out.bits(), first_out);
    EXPECT_EQ(grad.bits(), first_grad);
  }
}

TEST_F(SwigluCudaTest, MatchesTheOracleInEveryShape) {
  for (const DType dtype : kFloats) {
    for (const Sizes& s : kSizes) {
      SCOPED_TRACE(std::to_string(s.rows) + " x " + std::to_string(s.cols) + " " +
                   std::string(dtype_name(dtype)));
      check(dtype, s);
    }
  }
}

TEST_F(SwigluCudaTest, GradientMayOverwriteTheInput) {
  for (const DType dtype : kFloats) {
    const Sizes s{40, 40};
    const GuardedTensor x = random_tensor("x", dtype, {40, 80}, {}, -4, 4);
    const GuardedTensor dout = random_tensor("dout", dtype, {40, 40});
    const GuardedTensor want = backward(dout, x, s);
    const OnGpu on_dout(gpu(), dout), on_x(gpu(), x);
    swiglu_backward(gpu(), plan_of(s, dtype), {on_dout, on_x}, {on_x}, {});
    EXPECT_EQ(on_x.fetch().bits(), want.bits());
  }
}

TEST_F(SwigluCudaTest, BackwardGivesForwardsBitsAgain) {
  for (const DType dtype : kFloats) {
    for (const Sizes s : {Sizes{5, 37}, Sizes{40, 264}}) {
      const GuardedTensor x = random_tensor("x", dtype, {s.rows, 2 * s.cols}, {}, -6, 6);
      const GuardedTensor dout = random_tensor("dout", dtype, {s.rows, s.cols});
      const GuardedTensor out = forward(x, s), grad = backward(dout, x, s);
      const OnGpu on_dout(gpu(), dout), on_x(gpu(), x);
      swiglu_backward(gpu(), plan_of(s, dtype), {on_dout, on_x}, {on_x, on_dout}, {});
      EXPECT_EQ(on_dout.fetch().bits(), out.bits());
      EXPECT_EQ(on_x.fetch().bits(), grad.bits());
    }
  }
}

TEST_F(SwigluCudaTest, LargeGatesSaturateAndNanStaysAlone) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const DType dtype : kFloats) {
    const double big = op_test::round_to(dtype, 1e30);
    const GuardedTensor x(
        dtype, {1, 16},
        std::vector<double>{-200, 200, -big, big, -88, 88, nan, 1, 1, 1, 1, 1, 1, 1, 1, 1});
    const double one = op_test::round_to(dtype, 0.731058578630005);
    const double tolerance = dtype == DType::kFloat32 ? 1e-6 : 1e-2;
    EXPECT_TRUE(
        op_test::all_near(forward(x, {1, 8}).get(), {0, 200, 0, big, 0, 88, nan, one}, tolerance));
    GuardedTensor dout(dtype, {1, 8});
    dout.fill(1);
    EXPECT_TRUE(op_test::all_near(
        backward(dout, x, {1, 8}).get(),
        {0, 1, 0, 1, 0, 1, nan, 0.927670511871487, 0, 200, 0, big, 0, 88, nan, one}, tolerance));
  }
}

TEST_F(SwigluCudaTest, RefusesWhatDoesNotFit) {
  const ErrorKind usage = ErrorKind::kUsage;
  EXPECT_TRUE(throws_error([] { plan_of({1, 1}, DType::kFloat64); }, usage,
                           {"swiglu", "fp64 runs on the CPU only"}));
  const SwigluPlan plan = plan_of({2, 3}, DType::kFloat32);
  const GuardedTensor x(DType::kFloat32, {2, 6}), out(DType::kFloat32, {2, 3});
  const OnGpu on_x(gpu(), x), on_out(gpu(), out);
  EXPECT_TRUE(throws_error([&] { swiglu_forward(gpu(), plan, {x}, {on_out}, {}); }, usage,
                           {"gate_up_NG is in host memory"}));
  EXPECT_TRUE(throws_error([&] { swiglu_backward(gpu(), plan, {on_out, on_x}, {x}, {}); }, usage,
                           {"d_gate_up_NG is in host memory"}));
}

}  // namespace
}  // namespace k25::kernels
