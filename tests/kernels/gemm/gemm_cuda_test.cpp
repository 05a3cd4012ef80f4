#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_algorithms.h"
#include "tests/kernels/cuda_test.h"
#include "tests/kernels/gemm/gemm_oracle.h"

namespace k25::kernels {
namespace {

using gemm_test::describe;
using gemm_test::naive;
using gemm_test::old_d;
using gemm_test::operand_a;
using gemm_test::operand_b;
using op_test::GpuScratch;
using op_test::GuardedTensor;
using op_test::Layout;
using op_test::OnGpu;
using op_test::Scratch;
using op_test::throws_error;
using Bits = std::vector<std::uint8_t>;

constexpr int kGpuVariants = 8 * 4;  // all but fp64

/// Tensor cores cut each partial sum of 16 bf16 products to fp32 towards zero (gemm.h).
double floor_of(const GemmDesc& d, const std::vector<double>& ref) {
  double largest = 1;
  for (const double x : ref) largest = std::max(largest, std::abs(x));
  const double cuts = d.dtype_ab == DType::kBFloat16 ? std::ceil(static_cast<double>(d.k) / 16) : 0;
  return 1e-6 + cuts * 0x1p-23 * largest;
}

class GemmCudaTest : public op_test::CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    gpu().gemm_algorithms = &algorithms_;
  }

  /// D on the host afterwards.
  void run(GemmDesc desc, const GuardedTensor& a, const GuardedTensor& b, const GuardedTensor& d) {
    desc.device = Device::kCuda;
    const GemmPlan plan = gemm_plan(desc);
    const GpuScratch scratch(gpu(), plan.workspace_bytes);
    const OnGpu on_a(gpu(), a), on_b(gpu(), b), on_d(gpu(), d);
    gemm_forward(gpu(), plan, {.a = on_a, .b = on_b}, {.d = on_d}, scratch.workspace());
    on_d.fetch();
  }

  /// Every dtype pair, transpose and accumulate mode of one shape.
  void check_shape(std::int64_t m, std::int64_t n, std::int64_t k, bool dense);

  GemmAlgorithms algorithms_;
};

void GemmCudaTest::check_shape(std::int64_t m, std::int64_t n, std::int64_t k, bool dense) {
  for (int variant = 0; variant < kGpuVariants; ++variant) {
    const GemmDesc desc = gemm_test::variant_of(m, n, k, variant);
    SCOPED_TRACE(describe(desc) + (dense ? "" : ", odd strides and borders"));
    const Layout odd = dense ? Layout{} : Layout{.row_padding = 3, .shift = 1};
    const Layout even = dense ? Layout{} : Layout{.row_padding = 4, .shift = 2};
    const GuardedTensor a = operand_a(desc, (variant & 1) != 0 ? odd : even);
    const GuardedTensor b = operand_b(desc, (variant & 2) != 0 ? even : odd);
    const Layout d_layout = (variant & 4) != 0 ? odd : even;
    const GuardedTensor d = old_d(desc, d_layout), again = old_d(desc, d_layout);
    const std::vector<double> ref = naive<double>(desc, a, b, d);
    std::vector<double> low = naive<float>(desc, a, b, d);
    for (double& x : low) x = op_test::round_to(desc.dtype_d, x);
    run(desc, a, b, d);
    run(desc, a, b, again);
    ASSERT_TRUE(op_test::low_precision_near(d.get(), low, ref, floor_of(desc, ref)));
    ASSERT_TRUE(d.guards_intact() && again.guards_intact());
    ASSERT_EQ(d.bits(), again.bits()) << "two runs differ";
  }
}

TEST_F(GemmCudaTest, HandComputedTransposedSum) {
  // A^T is stored [1 3 5; 2 4 6], B^T is stored [1 2; 0 1; -1 0]; D starts at 100.
  const GemmDesc desc{.m = 3,
                      .n = 3,
                      .k = 2,
                      .transpose_a = Transpose::kYes,
                      .transpose_b = Transpose::kYes,
                      .accumulate = Accumulate::kAdd};
  const GuardedTensor a(DType::kFloat32, {2, 3}, {1, 3, 5, 2, 4, 6});
  const GuardedTensor b(DType::kFloat32, {3, 2}, {1, 2, 0, 1, -1, 0});
  GuardedTensor d(DType::kFloat32, {3, 3});
  d.fill(100);
  run(desc, a, b, d);
  EXPECT_EQ(d.get(), (std::vector<double>{105, 102, 99, 111, 104, 97, 117, 106, 95}));
}

TEST_F(GemmCudaTest, Shapes) {
  for (const bool dense : {true, false}) {
    check_shape(1, 1, 1, dense);
    check_shape(3, 5, 7, dense);
    check_shape(1, 97, 33, dense);
    check_shape(97, 1, 33, dense);
    check_shape(66, 50, 1, dense);
    check_shape(63, 47, 127, dense);
    check_shape(64, 64, 64, dense);
    check_shape(128, 256, 64, dense);
    check_shape(129, 257, 65, dense);
    check_shape(2, 3, 5000, dense);  // where a library likes to cut the sum
  }
}

TEST_F(GemmCudaTest, AsTheCpu) {
  for (int variant = 0; variant < kGpuVariants; ++variant) {
    GemmDesc desc = gemm_test::variant_of(300, 530, 1100, variant);
    SCOPED_TRACE(describe(desc));
    const GuardedTensor a = operand_a(desc), b = operand_b(desc);
    const GuardedTensor d = old_d(desc), twin = old_d(desc);
    run(desc, a, b, d);
    const GemmPlan plan = gemm_plan(desc);
    const Scratch scratch(plan.workspace_bytes);
    gemm_forward(cpu(), plan, {.a = a, .b = b}, {.d = twin}, scratch.workspace());
    // Elements reach 40; one rounding to bf16 apart at most.
    const double tolerance = desc.dtype_d == DType::kBFloat16 ? 1.0 / 128 : 2e-5;
    ASSERT_TRUE(op_test::all_near(d.get(), twin.get(), tolerance));
  }
}

// Cut in rows and columns: D = fp32 parts of 1024 x 16384, rounded.
TEST_F(GemmCudaTest, BFloat16OfWideOperandsInParts) {
  for (const Accumulate mode : {Accumulate::kOverwrite, Accumulate::kAdd}) {
    for (const auto& [m, n] : {std::array<std::int64_t, 2>{1025, 3}, {3, 16385}}) {
      const GemmDesc desc{.m = m,
                          .n = n,
                          .k = 2,
                          .transpose_a = Transpose::kYes,
                          .dtype_d = DType::kBFloat16,
                          .accumulate = mode};
      SCOPED_TRACE(describe(desc));
      const GuardedTensor a = operand_a(desc), b = operand_b(desc);
      const GuardedTensor d = old_d(desc, {.row_padding = 1});
      std::vector<double> low = naive<float>(desc, a, b, d);
      for (double& x : low) x = op_test::round_to(DType::kBFloat16, x);
      const std::vector<double> ref = naive<double>(desc, a, b, d);
      run(desc, a, b, d);
      EXPECT_TRUE(op_test::low_precision_near(d.get(), low, ref, 0));
      EXPECT_TRUE(d.guards_intact());
    }
  }
}

TEST_F(GemmCudaTest, Fp32IsNoTf32) {
  // 1 + 2^-20 has 20 bits after the point, tf32 keeps 10.
  const double fine = 1 + 0x1p-20;
  for (const std::int64_t size : {1, 128, 512}) {
    const GemmDesc desc{.m = size, .n = size, .k = size};
    GuardedTensor a(DType::kFloat32, {size, size}), b(DType::kFloat32, {size, size});
    a.fill(0);
    for (std::int64_t i = 0; i < size; ++i) a.set(i * size + i, fine);
    b.fill(fine);
    const GuardedTensor d(DType::kFloat32, {size, size});
    run(desc, a, b, d);
    EXPECT_EQ(d.get(), std::vector<double>(static_cast<std::size_t>(size * size),
                                           static_cast<float>(fine * fine)));
  }
}

TEST_F(GemmCudaTest, BFloat16ResultIsRoundedOnce) {
  // 256 + 1 + 1: a rounding in between would stay at 256 (its spacing is 2).
  const DType t = DType::kBFloat16;
  for (const std::int64_t k : {2, 1024, 65536}) {
    const GemmDesc desc{
        .m = 1, .n = 1, .k = k, .dtype_ab = t, .dtype_d = t, .accumulate = Accumulate::kAdd};
    GuardedTensor a(t, {1, k}), b(t, {k, 1}), d(t, {1, 1});
    a.fill(0);
    a.set(0, 1);
    a.set(k - 1, 1);
    b.fill(1);
    d.fill(256);
    run(desc, a, b, d);
    EXPECT_EQ(d.get(0), 258);
  }
}

TEST_F(GemmCudaTest, EmptyResultsAndSums) {
  for (int variant = 0; variant < kGpuVariants; ++variant) {
    for (const auto& [m, n, k] :
         {std::array<std::int64_t, 3>{0, 4, 3}, {4, 0, 3}, {0, 0, 0}, {3, 5, 0}, {1, 5, 0}}) {
      GemmDesc desc = gemm_test::variant_of(m, n, k, variant);
      SCOPED_TRACE(describe(desc));
      desc.device = Device::kCuda;
      EXPECT_EQ(gemm_plan(desc).workspace_bytes, Bytes{0});
      const GuardedTensor d = old_d(desc, {.row_padding = 2, .shift = 1});
      std::vector<double> expected(static_cast<std::size_t>(m * n), 0.0);
      if (desc.accumulate == Accumulate::kAdd) expected = d.get();
      run(desc, operand_a(desc), operand_b(desc), d);
      EXPECT_EQ(d.get(), expected);
      EXPECT_TRUE(d.guards_intact());
    }
  }
  EXPECT_EQ(algorithms_.size(), 0u);
}

TEST_F(GemmCudaTest, OverwriteIgnoresWhatDHeld) {
  for (const DType t : {DType::kFloat32, DType::kBFloat16}) {
    const GemmDesc desc{.m = 40, .n = 40, .k = 3, .dtype_ab = t, .dtype_d = t};
    GuardedTensor a(t, {40, 3}), b(t, {3, 40}), d(t, {40, 40});
    a.fill(2);
    b.fill(4);
    d.fill(std::nan(""));
    run(desc, a, b, d);
    EXPECT_EQ(d.get(), std::vector<double>(1600, 24));
  }
}

// The algorithm follows the alignment class of the stride, not the stride.
TEST_F(GemmCudaTest, BitsDoNotDependOnStride) {
  for (const DType t : {DType::kFloat32, DType::kBFloat16}) {
    const GemmDesc desc{.m = 136, .n = 264, .k = 520, .dtype_ab = t, .dtype_d = t};
    const GuardedTensor d = old_d(desc), moved = old_d(desc, {.row_padding = 40, .shift = 8});
    run(desc, operand_a(desc), operand_b(desc), d);
    run(desc, operand_a(desc, {.row_padding = 8, .shift = 16}),
        operand_b(desc, {.row_padding = 24}), moved);
    EXPECT_EQ(d.bits(), moved.bits());
  }
  EXPECT_EQ(algorithms_.size(), 2u);
}

TEST_F(GemmCudaTest, AnAlgorithmIsChosenOnceAndServesARestoredTable) {
  const auto all = [&] {
    std::vector<Bits> results;
    for (int variant = 0; variant < 24; ++variant) {  // without the widened pair
      const GemmDesc desc = gemm_test::variant_of(70, 90, 3000, variant);
      const GuardedTensor d = old_d(desc);
      run(desc, operand_a(desc), operand_b(desc), d);
      results.push_back(d.bits());
    }
    return results;
  };
  const std::vector<Bits> first = all();
  const std::vector<std::string> stored = algorithms_.to_strings();
  EXPECT_EQ(stored.size(), 24u);
  EXPECT_EQ(all(), first);
  EXPECT_EQ(algorithms_.to_strings(), stored);

  GemmAlgorithms restored;
  restored.load(stored);
  gpu().gemm_algorithms = &restored;
  EXPECT_EQ(all(), first);
  EXPECT_EQ(restored.to_strings(), stored);
}

TEST_F(GemmCudaTest, StoredAlgorithmsThatCannotServeAreNamed) {
  const GemmDesc desc{.m = 64, .n = 64, .k = 64};
  const GuardedTensor a = operand_a(desc), b = operand_b(desc), d = old_d(desc);
  run(desc, a, b, d);
  const std::string good = algorithms_.to_strings().at(0);
  const Bits bits = d.bits();
  const auto refused = [&](const std::string& entry, std::string_view why) {
    GemmAlgorithms table;
    table.load(std::vector<std::string>{entry});
    gpu().gemm_algorithms = &table;
    const GuardedTensor result = old_d(desc);
    return throws_error([&] { run(desc, a, b, result); }, ErrorKind::kUsage,
                        {"stored GEMM algorithm '" + entry + "'", why, "chosen anew"});
  };
  const std::string head = good.substr(0, good.size() - 128);
  EXPECT_TRUE(refused(head + std::string(128, 'f'), "refuses it"));
  const std::size_t at = good.find("cublaslt=") + 9;
  std::string other = good;
  other[at] = other[at] == '9' ? '8' : '9';
  EXPECT_TRUE(refused(other, "this is cuBLASLt " + good.substr(at, good.find(' ', at) - at)));

  gpu().gemm_algorithms = &algorithms_;
  run(desc, a, b, d);
  EXPECT_EQ(d.bits(), bits);
}

TEST_F(GemmCudaTest, MoreElementsThanAnInt) {
  constexpr std::int64_t kCols = 4096, kRows = (std::int64_t{1} << 31) / kCols + 1;
  const DType t = DType::kBFloat16;
  const GemmDesc desc{
      .m = kRows, .n = kCols, .k = 8, .dtype_ab = t, .dtype_d = t, .device = Device::kCuda};
  DeviceAllocator allocator(0);
  const Buffer a(Bytes{kRows * 8 * 2}, allocator), b(Bytes{8 * kCols * 2}, allocator);
  const Buffer d(Bytes{kRows * kCols * 2}, allocator);
  fill_bytes(gpu(), a.data(), 0x40, a.size());  // bf16 0x4040 is 3
  fill_bytes(gpu(), b.data(), 0x40, b.size());
  const GpuScratch scratch(gpu(), gemm_plan(desc).workspace_bytes);
  gemm_forward(gpu(), gemm_plan(desc), {a.view(t, {kRows, 8}), b.view(t, {8, kCols})},
               {d.view(t, {kRows, kCols})}, scratch.workspace());
  std::vector<BFloat16> row(kCols);
  for (const std::int64_t r : {std::int64_t{0}, kRows / 2, kRows - 1}) {
    copy_bytes(gpu(), static_cast<const char*>(d.data()) + r * kCols * 2, row.data(),
               Bytes{kCols * 2});
    synchronize(gpu());
    for (const BFloat16 x : row) ASSERT_EQ(static_cast<float>(x), 72.f) << "row " << r;
  }
}

TEST_F(GemmCudaTest, Errors) {
  const auto usage = ErrorKind::kUsage;
  GemmDesc desc{.m = 2, .n = 3, .k = 4, .device = Device::kCuda};
  const GuardedTensor a = operand_a(desc), b = operand_b(desc), d = old_d(desc);
  const OnGpu on_a(gpu(), a), on_b(gpu(), b), on_d(gpu(), d);
  const GpuScratch scratch(gpu(), gemm_plan(desc).workspace_bytes);
  const auto refused = [&](const GemmIn& in, const GemmOut& out,
                           std::initializer_list<std::string_view> parts) {
    return throws_error([&] { gemm_forward(gpu(), gemm_plan(desc), in, out, scratch.workspace()); },
                        usage, parts);
  };
  EXPECT_NO_THROW(gemm_forward(gpu(), gemm_plan(desc), {on_a, on_b}, {on_d}, scratch.workspace()));
  EXPECT_TRUE(refused({a, on_b}, {on_d}, {"gemm: A is in host memory"}));
  EXPECT_TRUE(refused({on_a, b}, {on_d}, {"gemm: B is in host memory"}));
  EXPECT_TRUE(refused({on_a, on_b}, {d}, {"gemm: D is in host memory"}));
  EXPECT_TRUE(refused({on_b, on_b}, {on_d}, {"A is fp32 [4, 3]", "expects fp32 [2, 4]"}));
  EXPECT_TRUE(throws_error([&] { gemm_forward(gpu(), gemm_plan(desc), {on_a, on_b}, {on_d}, {}); },
                           usage, {"the workspace has 0 bytes", "the plan needs 33554688"}));
  desc.device = Device::kCpu;
  EXPECT_TRUE(refused({on_a, b}, {d}, {"gemm: A is on the GPU", "host memory"}));
  desc.device = Device::kCuda;
  gpu().gemm_algorithms = nullptr;
  EXPECT_TRUE(refused({on_a, on_b}, {on_d}, {"gemm", "Context::gemm_algorithms"}));
  EXPECT_TRUE(throws_error(
      [] {
        gemm_plan({.m = 1,
                   .n = 1,
                   .k = 1,
                   .dtype_ab = DType::kFloat64,
                   .dtype_d = DType::kFloat64,
                   .device = Device::kCuda});
      },
      usage, {"fp64 runs on the CPU only"}));
}

}  // namespace
}  // namespace k25::kernels
