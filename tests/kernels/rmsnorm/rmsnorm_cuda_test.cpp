#include <string>
#include <vector>

#include "kernels/rmsnorm/rmsnorm.h"
#include "tests/kernels/cuda_test.h"
#include "tests/kernels/rmsnorm/rmsnorm_oracle.h"

namespace k25::kernels {
namespace {

using op_test::all_near;
using op_test::GpuScratch;
using op_test::GuardedTensor;
using op_test::Layout;
using op_test::low_precision_near;
using op_test::NaiveBf16;
using op_test::OnGpu;
using op_test::random_tensor;
using op_test::throws_error;
using rmsnorm_test::Gradients;
using rmsnorm_test::naive_backward;
using rmsnorm_test::naive_forward;
using rmsnorm_test::Sizes;
using Bits = std::vector<std::uint8_t>;

constexpr DType kFloats[] = {DType::kFloat32, DType::kBFloat16};
constexpr Layout kLayouts[] = {
    {}, {}, {.row_padding = 8, .shift = 8}, {.row_padding = 3, .shift = 1}};

// Rows in part of a warp, in a warp, in a block of one and two tiles, and too long for a block.
constexpr Sizes kSizes[] = {{0, 8},    {1, 1},    {1, 7},     {33, 8},   {3000, 9},
                            {70, 64},  {9, 136},  {40, 256},  {5, 264},  {2100, 512},
                            {3, 1024}, {3, 1032}, {5, 2056},  {3, 2048}, {3, 4096},
                            {3, 4104}, {2, 8200}, {2, 16392}, {3, 33000}};

enum class Residual { kNo, kYes };

struct Problem {
  Sizes s;
  DType dtype;
  Layout layout;

  GuardedTensor matrix(const char* name, double low = -1, double high = 1) const {
    return random_tensor(name, dtype, {s.rows, s.cols}, layout, low, high);
  }
  GuardedTensor empty() const { return GuardedTensor(dtype, {s.rows, s.cols}, layout); }
  GuardedTensor gain() const {
    return random_tensor("gain", DType::kFloat32, {s.cols}, Layout{.shift = layout.shift}, 0.5,
                         1.5);
  }
  RmsNormPlan plan(Device device) const {
    return rmsnorm_plan({.rows = s.rows, .cols = s.cols, .dtype = dtype, .device = device});
  }
};

struct Forward {
  GuardedTensor sum, y, rstd;
};

class RmsNormCudaTest : public op_test::CudaTest {
 protected:
  Forward forward(const Problem& p, Residual with) {
    const GuardedTensor x = p.matrix("x", -3, 3), residual = p.matrix("residual", -3, 3);
    const GuardedTensor gain = p.gain();
    Forward f{p.empty(), p.empty(), GuardedTensor(DType::kFloat32, {p.s.rows})};
    const OnGpu on_x(gpu(), x), on_residual(gpu(), residual), on_gain(gpu(), gain);
    const OnGpu sum(gpu(), f.sum), y(gpu(), f.y), rstd(gpu(), f.rstd);
    const bool has = with == Residual::kYes;
    rmsnorm_forward(gpu(), p.plan(Device::kCuda),
                    {on_x, has ? on_residual.tensor() : Tensor(), on_gain}, {sum, y, rstd}, {});
    for (const OnGpu* t : {&sum, &y, &rstd}) EXPECT_TRUE(t->fetch().guards_intact());
    return f;
  }
  struct Backward {
    GuardedTensor dx, dgain;
  };
  Backward backward(const Problem& p, const GuardedTensor& rstd, Residual with) {
    const GuardedTensor dy = p.matrix("dy"), sum = p.matrix("sum", -3, 3),
                        d_sum = p.matrix("d_sum");
    const GuardedTensor gain = p.gain();
    Backward b{p.empty(), random_tensor("dgain", DType::kFloat32, {p.s.cols})};
    const RmsNormPlan plan = p.plan(Device::kCuda);
    const GpuScratch scratch(gpu(), plan.workspace_bytes);
    const OnGpu on_dy(gpu(), dy), on_sum(gpu(), sum), on_d_sum(gpu(), d_sum), on_gain(gpu(), gain);
    const OnGpu on_rstd(gpu(), rstd), dx(gpu(), b.dx), dgain(gpu(), b.dgain);
    rmsnorm_backward(
        gpu(), plan,
        {on_dy, on_sum, on_gain, on_rstd, with == Residual::kYes ? on_d_sum.tensor() : Tensor()},
        {dx, dgain}, scratch.workspace());
    for (const OnGpu* t : {&dx, &dgain}) EXPECT_TRUE(t->fetch().guards_intact());
    return b;
  }
  void check_forward(Sizes s, DType dtype, Residual with);
  void check_backward(Sizes s, DType dtype, Residual with);
};

void RmsNormCudaTest::check_forward(Sizes s, DType dtype, Residual with) {
  const bool has = with == Residual::kYes, is_bf16 = dtype == DType::kBFloat16;
  const Problem plain{s, dtype, {}};
  const GuardedTensor x = plain.matrix("x", -3, 3), residual = plain.matrix("residual", -3, 3);
  const GuardedTensor gain = plain.gain();
  const GuardedTensor sum = plain.empty(), y = plain.empty(), rstd(DType::kFloat32, {s.rows});
  rmsnorm_forward(cpu(), plain.plan(Device::kCpu), {x, has ? residual.tensor() : Tensor(), gain},
                  {sum, y, rstd}, {});
  const std::vector<double> in = has ? sum.get() : x.get();
  const std::vector<double> ref = naive_forward<double>(in, gain.get(), s);
  const std::vector<double> low = is_bf16 ? naive_forward<NaiveBf16>(in, gain.get(), s)
                                          : naive_forward<float>(in, gain.get(), s);
  Bits first;
  for (const Layout layout : kLayouts) {
    const Forward f = forward({s, dtype, layout}, with);
    EXPECT_EQ(f.sum.bits(), sum.bits());
    EXPECT_TRUE(all_near(f.rstd.get(), rstd.get(), 1e-6));
    EXPECT_TRUE(low_precision_near(f.y.get(), low, ref, is_bf16 ? 1e-2 : 1e-6));
    if (first.empty()) first = f.y.bits();
    EXPECT_EQ(f.y.bits(), first) << "bits depend on the layout or the run";
  }
}

TEST_F(RmsNormCudaTest, ForwardMatchesTheOracleInEveryShape) {
  for (const DType dtype : kFloats) {
    for (const Sizes& s : kSizes) {
      SCOPED_TRACE(std::to_string(s.rows) + " x " + std::to_string(s.cols) + " " +
                   std::string(dtype_name(dtype)));
      check_forward(s, dtype, Residual::kNo);
      check_forward(s, dtype, Residual::kYes);
    }
  }
}

void RmsNormCudaTest::check_backward(Sizes s, DType dtype, Residual with) {
  const bool is_bf16 = dtype == DType::kBFloat16;
  const Problem plain{s, dtype, {}};
  const GuardedTensor dy = plain.matrix("dy"), sum = plain.matrix("sum", -3, 3);
  const GuardedTensor d_sum = plain.matrix("d_sum"), gain = plain.gain();
  const GuardedTensor y = plain.empty(), rstd(DType::kFloat32, {s.rows});
  rmsnorm_forward(cpu(), plain.plan(Device::kCpu), {sum, {}, gain}, {{}, y, rstd}, {});
  const std::vector<double> d = with == Residual::kYes ? d_sum.get() : std::vector<double>{};
  Gradients ref = naive_backward<double>(dy.get(), sum.get(), gain.get(), d, s);
  const Gradients low = is_bf16 ? naive_backward<NaiveBf16>(dy.get(), sum.get(), gain.get(), d, s)
                                : naive_backward<float>(dy.get(), sum.get(), gain.get(), d, s);
  const std::vector<double> before = random_tensor("dgain", DType::kFloat32, {s.cols}).get();
  std::vector<double> low_dgain =
      naive_backward<float>(dy.get(), sum.get(), gain.get(), d, s).dgain;
  for (std::size_t c = 0; c < before.size(); ++c) {
    ref.dgain[c] += before[c];
    low_dgain[c] += before[c];
  }
  Bits first_dx, first_dgain;
  for (const Layout layout : kLayouts) {
    const Backward b = backward({s, dtype, layout}, rstd, with);
    EXPECT_TRUE(low_precision_near(b.dx.get(), low.dx, ref.dx, is_bf16 ? 1e-2 : 1e-5));
    // dgain is fp32 for bf16 storage too: hold it to fp32's error.
    EXPECT_TRUE(low_precision_near(b.dgain.get(), low_dgain, ref.dgain, 1e-5));
    if (first_dgain.empty()) {
      first_dx = b.dx.bits();
      first_dgain = b.dgain.bits();
    }
    EXPECT_EQ(b.dx.bits(), first_dx) << "bits depend on the layout or the run";
    EXPECT_EQ(b.dgain.bits(), first_dgain) << "bits depend on the layout or the run";
  }
}

TEST_F(RmsNormCudaTest, BackwardMatchesTheOracleInEveryShape) {
  for (const DType dtype : kFloats) {
    for (const Sizes& s : kSizes) {
      SCOPED_TRACE(std::to_string(s.rows) + " x " + std::to_string(s.cols) + " " +
                   std::string(dtype_name(dtype)));
      check_backward(s, dtype, Residual::kNo);
      check_backward(s, dtype, Residual::kYes);
    }
  }
}

TEST_F(RmsNormCudaTest, TheSumAloneDecides) {
  for (const DType dtype : kFloats) {
    for (const Sizes& s : kSizes) {
      for (const Layout& layout : kLayouts) {
        SCOPED_TRACE(std::to_string(s.rows) + " x " + std::to_string(s.cols) + " " +
                     std::string(dtype_name(dtype)));
        const Problem p{s, dtype, layout};
        const GuardedTensor gain = p.gain();
        const Forward f = forward(p, Residual::kYes);
        const Forward plain{p.empty(), p.empty(), GuardedTensor(DType::kFloat32, {s.rows})};
        const OnGpu sum(gpu(), f.sum), on_gain(gpu(), gain);
        const OnGpu y(gpu(), plain.y), rstd(gpu(), plain.rstd);
        rmsnorm_forward(gpu(), p.plan(Device::kCuda), {sum, Tensor(), on_gain}, {Tensor(), y, rstd},
                        {});
        EXPECT_EQ(y.fetch().bits(), f.y.bits());
        EXPECT_EQ(rstd.fetch().bits(), f.rstd.bits());
      }
    }
  }
}

TEST_F(RmsNormCudaTest, OutputsMayOverwriteInputs) {
  for (const DType dtype : kFloats) {
    for (const std::int64_t cols : {40, 2064, 33000}) {
      const Problem p{{300, cols}, dtype, {}};
      if (cols > 3000 && dtype == DType::kFloat32) continue;
      const Forward f = forward(p, Residual::kYes);
      const Backward b = backward(p, f.rstd, Residual::kYes);
      const RmsNormPlan plan = p.plan(Device::kCuda);
      const GpuScratch scratch(gpu(), plan.workspace_bytes);
      const GuardedTensor gain = p.gain(), spare(DType::kFloat32, {300}), y = p.empty();
      const OnGpu on_gain(gpu(), gain), on_spare(gpu(), spare), on_y(gpu(), y);
      for (const int which : {0, 1}) {
        const GuardedTensor x = p.matrix("x", -3, 3), residual = p.matrix("residual", -3, 3);
        const OnGpu on_x(gpu(), x), on_residual(gpu(), residual);
        const OnGpu& sum = which == 0 ? on_x : on_residual;
        rmsnorm_forward(gpu(), plan, {on_x, on_residual, on_gain}, {sum, on_y, on_spare}, {});
        EXPECT_EQ(sum.fetch().bits(), f.sum.bits());
        EXPECT_EQ(on_y.fetch().bits(), f.y.bits());

        const GuardedTensor dy = p.matrix("dy"), d_sum = p.matrix("d_sum");
        const GuardedTensor in = p.matrix("sum", -3, 3);
        const OnGpu on_dy(gpu(), dy), on_d_sum(gpu(), d_sum), on_in(gpu(), in);
        const OnGpu rstd(gpu(), f.rstd), &dx = which == 0 ? on_dy : on_d_sum;
        const GuardedTensor dgain = random_tensor("dgain", DType::kFloat32, {cols});
        const OnGpu on_dgain(gpu(), dgain);
        rmsnorm_backward(gpu(), plan, {on_dy, on_in, on_gain, rstd, on_d_sum}, {dx, on_dgain},
                         scratch.workspace());
        EXPECT_EQ(dx.fetch().bits(), b.dx.bits());
        EXPECT_EQ(on_dgain.fetch().bits(), b.dgain.bits());
      }
    }
  }
}

TEST_F(RmsNormCudaTest, AFrozenGainNeedsNoGradient) {
  const Problem p{{70, 520}, DType::kBFloat16, {}};
  const Forward f = forward(p, Residual::kNo);
  const Backward b = backward(p, f.rstd, Residual::kNo);
  const RmsNormPlan plan = p.plan(Device::kCuda);
  const GpuScratch scratch(gpu(), plan.workspace_bytes);
  const GuardedTensor dy = p.matrix("dy"), sum = p.matrix("sum", -3, 3), gain = p.gain();
  const GuardedTensor dx = p.empty();
  const OnGpu on_dy(gpu(), dy), on_sum(gpu(), sum), on_gain(gpu(), gain), rstd(gpu(), f.rstd);
  const OnGpu on_dx(gpu(), dx);
  rmsnorm_backward(gpu(), plan, {on_dy, on_sum, on_gain, rstd, {}}, {on_dx, {}},
                   scratch.workspace());
  EXPECT_EQ(on_dx.fetch().bits(), b.dx.bits());
}

TEST_F(RmsNormCudaTest, RefusesWhatDoesNotFit) {
  const ErrorKind usage = ErrorKind::kUsage;
  EXPECT_TRUE(throws_error(
      [] {
        rmsnorm_plan({.rows = 1, .cols = 4, .dtype = DType::kFloat64, .device = Device::kCuda});
      },
      usage, {"rmsnorm", "fp64 runs on the CPU only"}));
  const Problem p{{2, 4}, DType::kFloat32, {}};
  const RmsNormPlan plan = p.plan(Device::kCuda);
  const GuardedTensor x = p.matrix("x"), y = p.empty(), gain = p.gain();
  const GuardedTensor rstd(DType::kFloat32, {2});
  const OnGpu on_x(gpu(), x), on_y(gpu(), y), on_gain(gpu(), gain), on_rstd(gpu(), rstd);
  EXPECT_TRUE(
      throws_error([&] { rmsnorm_forward(gpu(), plan, {on_x, {}, gain}, {{}, on_y, on_rstd}, {}); },
                   usage, {"gain_D is in host memory"}));
  EXPECT_TRUE(throws_error(
      [&] { rmsnorm_forward(gpu(), plan, {on_x, x, on_gain}, {on_x, on_y, on_rstd}, {}); }, usage,
      {"residual_ND is in host memory"}));
  EXPECT_TRUE(throws_error(
      [&] { rmsnorm_backward(gpu(), plan, {on_y, on_x, on_gain, on_rstd, {}}, {on_y, {}}, {}); },
      usage, {"workspace of 0 bytes", "needs " + std::to_string(plan.workspace_bytes.n)}));
}

}  // namespace
}  // namespace k25::kernels
