#include <bit>
#include <utility>
#include <vector>

#include "kernels/convert/convert.h"
#include "tests/kernels/cuda_test.h"

namespace k25::kernels {
namespace {

using ConvertCudaTest = op_test::CudaTest;
using op_test::GuardedTensor;
using op_test::Layout;
using op_test::OnGpu;
using op_test::random_tensor;
using op_test::throws_error;

/// The same conversion on both devices.
void expect_same(Context& cpu, Context& gpu, const GuardedTensor& x, DType to, Layout layout) {
  const GuardedTensor want(to, {x.count()}), y(to, {x.count()}, layout);
  convert(cpu, x, want);
  const OnGpu on_x(gpu, x), on_y(gpu, y);
  convert(gpu, on_x, on_y);
  EXPECT_EQ(on_y.fetch().bits(), want.bits()) << dtype_name(x.dtype()) << dtype_name(to);
  EXPECT_TRUE(y.guards_intact());
}

// Every bf16, half a step above it and one bit either side of both; NaN payloads too.
TEST_F(ConvertCudaTest, EveryPatternRoundsAsOnTheCpu) {
  std::vector<float> patterns;
  for (std::uint32_t high = 0; high < 0x10000u; ++high) {
    for (const std::uint32_t low : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      patterns.push_back(std::bit_cast<float>(high << 16 | low));
    }
  }
  const auto n = static_cast<std::int64_t>(patterns.size());
  GuardedTensor x(DType::kFloat32, {n});
  std::memcpy(x.tensor().raw(), patterns.data(), patterns.size() * sizeof(float));
  expect_same(cpu(), gpu(), x, DType::kBFloat16, {});
  expect_same(cpu(), gpu(), x, DType::kBFloat16, {.shift = 1});

  GuardedTensor low(DType::kBFloat16, {0x10000});
  auto* bits = static_cast<std::uint16_t*>(low.tensor().raw());
  for (std::uint32_t i = 0; i < 0x10000u; ++i) bits[i] = static_cast<std::uint16_t>(i);
  expect_same(cpu(), gpu(), low, DType::kFloat32, {});
  expect_same(cpu(), gpu(), low, DType::kFloat32, {.shift = 1});
}

TEST_F(ConvertCudaTest, EverySizeAndShiftStaysInside) {
  const std::pair<DType, DType> pairs[] = {
      {DType::kFloat32, DType::kBFloat16}, {DType::kBFloat16, DType::kFloat32},
      {DType::kFloat32, DType::kFloat64},  {DType::kFloat64, DType::kFloat32},
      {DType::kFloat32, DType::kFloat32},  {DType::kInt32, DType::kInt32},
      {DType::kUInt8, DType::kUInt8}};
  for (const auto& [from, to] : pairs) {
    for (const std::int64_t n : {0, 1, 3, 4, 5, 255, 1024, 4095, 4096, 4097, 200001}) {
      for (const std::int64_t shift : {0, 1, 4}) {
        const GuardedTensor x = random_tensor("x", from, {n}, Layout{.shift = shift}, 0, 200);
        expect_same(cpu(), gpu(), x, to, {.shift = shift});
        expect_same(cpu(), gpu(), x, to, {.shift = 3});
      }
    }
  }
}

TEST_F(ConvertCudaTest, TheSameViewIsLeftAlone) {
  const GuardedTensor x = random_tensor("x", DType::kFloat32, {100});
  const std::vector<std::uint8_t> before = x.bits();
  const OnGpu on_x(gpu(), x);
  convert(gpu(), on_x, on_x);
  EXPECT_EQ(on_x.fetch().bits(), before);
}

TEST_F(ConvertCudaTest, RefusesWhatDoesNotFit) {
  const ErrorKind usage = ErrorKind::kUsage;
  const GuardedTensor x(DType::kFloat32, {8}), low(DType::kBFloat16, {8}),
      wide(DType::kFloat64, {8});
  const OnGpu on_x(gpu(), x), on_low(gpu(), low), on_wide(gpu(), wide);
  EXPECT_TRUE(throws_error([&] { convert(gpu(), on_x, low); }, usage,
                           {"y is in host memory", "runs on the GPU"}));
  EXPECT_TRUE(throws_error([&] { convert(gpu(), x, on_low); }, usage,
                           {"y is on the GPU", "runs on the CPU"}));
  EXPECT_TRUE(throws_error([&] { convert(gpu(), on_low, on_wide); }, usage,
                           {"no conversion from bf16 to fp64"}));
}

}  // namespace
}  // namespace k25::kernels
