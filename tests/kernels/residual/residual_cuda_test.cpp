#include <vector>

#include "kernels/residual/residual.h"
#include "tests/kernels/cuda_test.h"

namespace k25::kernels {
namespace {

using op_test::GuardedTensor;
using op_test::Layout;
using op_test::OnGpu;
using op_test::random_tensor;
using op_test::throws_error;

constexpr DType kFloats[] = {DType::kFloat32, DType::kBFloat16};

class ResidualCudaTest : public op_test::CudaTest {
 protected:
  static ResidualPlan plan_of(std::int64_t count, DType dtype, Device device) {
    return residual_plan({.count = count, .dtype = dtype, .device = device});
  }
  /// Bits of a + b on the CPU.
  std::vector<std::uint8_t> expected(const GuardedTensor& a, const GuardedTensor& b) {
    const GuardedTensor y(a.dtype(), {a.count()});
    residual_forward(cpu(), plan_of(a.count(), a.dtype(), Device::kCpu), {a, b}, {y}, {});
    return y.bits();
  }
};

TEST_F(ResidualCudaTest, EqualsTheCpuForEverySizeAndShift) {
  for (const DType dtype : kFloats) {
    for (const std::int64_t n : {0, 1, 3, 4, 7, 8, 9, 1023, 2048, 2049, 300001}) {
      for (const Layout layout : {Layout{}, Layout{.shift = 1}, Layout{.shift = 8}}) {
        const GuardedTensor a = random_tensor("a", dtype, {n}, layout, -100, 100);
        const GuardedTensor b = random_tensor("b", dtype, {n}, Layout{.shift = 4}, -100, 100);
        const GuardedTensor y(dtype, {n}, layout);
        const OnGpu on_a(gpu(), a), on_b(gpu(), b), on_y(gpu(), y);
        residual_forward(gpu(), plan_of(n, dtype, Device::kCuda), {on_a, on_b}, {on_y}, {});
        EXPECT_EQ(on_y.fetch().bits(), expected(a, b)) << n << " " << dtype_name(dtype);
        EXPECT_TRUE(y.guards_intact());
      }
    }
  }
}

TEST_F(ResidualCudaTest, ResultMayBeEitherInput) {
  for (const DType dtype : kFloats) {
    const GuardedTensor a = random_tensor("a", dtype, {5000}),
                        b = random_tensor("b", dtype, {5000});
    const std::vector<std::uint8_t> want = expected(a, b);
    const ResidualPlan plan = plan_of(5000, dtype, Device::kCuda);
    {
      const OnGpu on_a(gpu(), a), on_b(gpu(), b);
      residual_forward(gpu(), plan, {on_a, on_b}, {on_b}, {});
      EXPECT_EQ(on_b.fetch().bits(), want);
    }
    const GuardedTensor fresh = random_tensor("b", dtype, {5000});
    const OnGpu on_a(gpu(), a), on_b(gpu(), fresh);
    residual_forward(gpu(), plan, {on_a, on_b}, {on_a}, {});
    EXPECT_EQ(on_a.fetch().bits(), want);
  }
}

TEST_F(ResidualCudaTest, RefusesWhatDoesNotFit) {
  const ErrorKind usage = ErrorKind::kUsage;
  EXPECT_TRUE(throws_error([] { plan_of(1, DType::kFloat64, Device::kCuda); }, usage,
                           {"residual", "fp64 runs on the CPU only"}));
  const GuardedTensor a(DType::kFloat32, {6}), b(DType::kFloat32, {6}), y(DType::kFloat32, {6});
  const OnGpu on_a(gpu(), a), on_y(gpu(), y);
  const ResidualPlan plan = plan_of(6, DType::kFloat32, Device::kCuda);
  EXPECT_TRUE(throws_error([&] { residual_forward(gpu(), plan, {on_a, b}, {on_y}, {}); }, usage,
                           {"b is in host memory", "runs on the GPU"}));
  EXPECT_TRUE(throws_error([&] { residual_forward(cpu(), plan, {on_a, on_a}, {on_y}, {}); }, usage,
                           {"no GPU", "attach"}));
  const ResidualPlan on_cpu = plan_of(6, DType::kFloat32, Device::kCpu);
  EXPECT_TRUE(throws_error([&] { residual_forward(gpu(), on_cpu, {a, b}, {on_y}, {}); }, usage,
                           {"y is on the GPU", "runs on the CPU"}));
}

}  // namespace
}  // namespace k25::kernels
