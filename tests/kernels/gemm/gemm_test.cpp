#include "kernels/gemm/gemm.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "tests/kernels/gemm/gemm_oracle.h"

namespace k25::kernels {
namespace {

using gemm_test::describe;
using gemm_test::naive;
using gemm_test::old_d;
using gemm_test::operand_a;
using gemm_test::operand_b;
using op_test::GuardedTensor;
using op_test::Layout;
using op_test::Scratch;

GuardedTensor filled(DType t, std::vector<std::int64_t> shape, const std::vector<double>& values) {
  return GuardedTensor(t, std::move(shape), values);
}

void run(Context& ctx, const GemmDesc& desc, const GuardedTensor& a, const GuardedTensor& b,
         const GuardedTensor& d) {
  const GemmPlan plan = gemm_plan(desc);
  const Scratch scratch(plan.workspace_bytes);
  gemm_forward(ctx, plan, {.a = a, .b = b}, {.d = d}, scratch.workspace());
}

TEST(Gemm, HandComputedProduct) {
  // [1 2; 3 4; 5 6] [1 0 -1; 2 1 0] = [5 2 -1; 11 4 -3; 17 6 -5]
  op_test::for_each_context([](Context& ctx) {
    for (const DType t : {DType::kFloat32, DType::kBFloat16, DType::kFloat64}) {
      const GemmDesc desc{.m = 3, .n = 3, .k = 2, .dtype_ab = t, .dtype_d = t};
      const GuardedTensor a(t, {3, 2}, {1, 2, 3, 4, 5, 6});
      const GuardedTensor b(t, {2, 3}, {1, 0, -1, 2, 1, 0});
      const GuardedTensor d(t, {3, 3});
      run(ctx, desc, a, b, d);
      EXPECT_EQ(d.get(), (std::vector<double>{5, 2, -1, 11, 4, -3, 17, 6, -5}));
    }
  });
}

// The two products that a layer's backward takes, with the transposes it gives them: dX = dY W^T,
// dW += X^T dY.
TEST(Gemm, GradientsMatchFiniteDifferences) {
  op_test::for_each_isa([](Context& ctx) {
    constexpr std::int64_t kM = 5, kN = 4, kK = 3;
    const DType t = DType::kFloat64;
    const GemmDesc forward{.m = kM, .n = kN, .k = kK, .dtype_ab = t, .dtype_d = t};
    const GemmDesc input_gradient{
        .m = kM, .n = kK, .k = kN, .transpose_b = Transpose::kYes, .dtype_ab = t, .dtype_d = t};
    const GemmDesc weight_gradient{.m = kK,
                                   .n = kN,
                                   .k = kM,
                                   .transpose_a = Transpose::kYes,
                                   .dtype_ab = t,
                                   .dtype_d = t,
                                   .accumulate = Accumulate::kAdd};
    GuardedTensor x(t, {kM, kK}, op_test::random_values("x", kM * kK));
    GuardedTensor w(t, {kK, kN}, op_test::random_values("w", kK * kN));
    const std::vector<double> dy_values = op_test::random_values("dy", kM * kN);
    const GuardedTensor dy(t, {kM, kN}, dy_values), dx(t, {kM, kK});
    const GuardedTensor dw(t, {kK, kN}, std::vector<double>(kK * kN, 0.0));
    run(ctx, input_gradient, dy, w, dx);
    run(ctx, weight_gradient, x, dy, dw);
    const auto loss = [&] {
      const GuardedTensor y(t, {kM, kN});
      run(ctx, forward, x, w, y);
      return op_test::weighted_sum(dy_values, y.get());
    };
    EXPECT_TRUE(op_test::gradient_near(x, dx.get(), loss));
    EXPECT_TRUE(op_test::gradient_near(w, dw.get(), loss));
  });
}

TEST(Gemm, HandComputedTransposedSum) {
  // A^T is stored [1 3 5; 2 4 6], B^T is stored [1 2; 0 1; -1 0]; D starts at 100.
  op_test::for_each_context([](Context& ctx) {
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
    run(ctx, desc, a, b, d);
    EXPECT_EQ(d.get(), (std::vector<double>{105, 102, 99, 111, 104, 97, 117, 106, 95}));
  });
}

/// Every dtype pair, transpose, accumulate mode and layout of one shape, on every instruction set,
/// with one thread and three: right values, guards intact, threads bit-equal.
void check_shape(std::int64_t m, std::int64_t n, std::int64_t k) {
  ThreadPool pool(3);
  for (int variant = 0; variant < gemm_test::kVariants; ++variant) {
    const GemmDesc desc = gemm_test::variant_of(m, n, k, variant);
    SCOPED_TRACE(describe(desc));
    // Padded rows and a start off the 64-byte border, differently for each operand.
    const Layout odd{.row_padding = 3, .shift = 1};
    const GuardedTensor a = operand_a(desc, (variant & 1) != 0 ? odd : Layout{});
    const GuardedTensor b = operand_b(desc, (variant & 2) != 0 ? Layout{} : odd);
    const Layout d_layout = (variant & 4) != 0 ? odd : Layout{.row_padding = 5, .shift = 2};
    const GuardedTensor before = old_d(desc, d_layout);
    const std::vector<double> ref = naive<double>(desc, a, b, before);
    std::vector<double> low = ref;
    if (desc.dtype_ab != DType::kFloat64) low = naive<float>(desc, a, b, before);
    for (double& x : low) x = op_test::round_to(desc.dtype_d, x);
    for (const CpuIsa isa : op_test::available_isas()) {
      SCOPED_TRACE(cpu_isa_name(isa));
      std::vector<std::uint8_t> one_thread;
      for (ThreadPool* threads : {static_cast<ThreadPool*>(nullptr), &pool}) {
        Context ctx = op_test::make_context(isa, threads);
        const GuardedTensor d = old_d(desc, d_layout);
        run(ctx, desc, a, b, d);
        const double floor = desc.dtype_ab == DType::kFloat64 ? 1e-13 : 1e-6;
        ASSERT_TRUE(op_test::low_precision_near(d.get(), low, ref, floor));
        ASSERT_TRUE(d.guards_intact() && a.guards_intact() && b.guards_intact());
        if (threads == nullptr) {
          one_thread = d.bits();
        } else {
          ASSERT_EQ(d.bits(), one_thread) << "three threads give other bits than one";
        }
      }
    }
  }
}

// Borders: register tiles of 48, 24, 12 columns and 4 rows, blocks of 64 rows, 96 columns and 128
// terms, spans of 2048 rows, 512 columns and 1024 terms.
TEST(Gemm, SingleElement) { check_shape(1, 1, 1); }
TEST(Gemm, SmallOddSizes) { check_shape(3, 5, 7); }
TEST(Gemm, OneRow) { check_shape(1, 97, 33); }
TEST(Gemm, OneColumn) { check_shape(97, 1, 33); }
TEST(Gemm, OneTerm) { check_shape(66, 50, 1); }
TEST(Gemm, BelowTheBlocks) { check_shape(63, 47, 127); }
TEST(Gemm, ExactlyTheBlocks) { check_shape(64, 96, 128); }
TEST(Gemm, AboveTheBlocks) { check_shape(65, 97, 129); }
TEST(Gemm, EveryRemainderOfTheColumnTile) {
  for (std::int64_t n = 96; n < 144; n += 5) check_shape(6, n, 9);
}
TEST(Gemm, AboveTheColumnSpan) { check_shape(5, 513, 17); }
TEST(Gemm, AboveTheRowSpan) { check_shape(2049, 3, 5); }
TEST(Gemm, AboveTheDepthSpan) { check_shape(9, 7, 1025); }

TEST(Gemm, EmptyResultTouchesNothing) {
  op_test::for_each_context([](Context& ctx) {
    for (const auto& [m, n, k] :
         std::vector<std::array<std::int64_t, 3>>{{0, 4, 3}, {4, 0, 3}, {0, 0, 0}, {0, 4, 0}}) {
      const GemmDesc desc{.m = m, .n = n, .k = k};
      EXPECT_EQ(gemm_plan(desc).workspace_bytes, Bytes{0});
      const GuardedTensor d(DType::kFloat32, {m, n});
      run(ctx, desc, operand_a(desc), operand_b(desc), d);
      EXPECT_TRUE(d.guards_intact());
    }
  });
}

TEST(Gemm, SumOverNoTermsIsZero) {
  op_test::for_each_context([](Context& ctx) {
    for (const DType t : {DType::kFloat32, DType::kBFloat16, DType::kFloat64}) {
      GemmDesc desc{.m = 3, .n = 5, .k = 0, .dtype_ab = t, .dtype_d = t};
      const GuardedTensor d = old_d(desc, {.row_padding = 2});
      run(ctx, desc, operand_a(desc), operand_b(desc), d);
      EXPECT_EQ(d.get(), std::vector<double>(15, 0.0));
      EXPECT_TRUE(d.guards_intact());

      desc.accumulate = Accumulate::kAdd;
      const GuardedTensor kept = old_d(desc);
      run(ctx, desc, operand_a(desc), operand_b(desc), kept);
      EXPECT_EQ(kept.get(), old_d(desc).get());
    }
  });
}

TEST(Gemm, OverwriteIgnoresWhatDHeld) {
  op_test::for_each_context([](Context& ctx) {
    for (const DType t : {DType::kFloat32, DType::kBFloat16, DType::kFloat64}) {
      const GemmDesc desc{.m = 2, .n = 2, .k = 1, .dtype_ab = t, .dtype_d = t};
      GuardedTensor d(t, {2, 2});
      d.fill(std::nan(""));
      run(ctx, desc, filled(t, {2, 1}, {1, 2}), filled(t, {1, 2}, {3, 4}), d);
      EXPECT_EQ(d.get(), (std::vector<double>{3, 4, 6, 8}));
    }
  });
}

TEST(Gemm, NonFiniteOperandsReachD) {
  // A zero times infinity is NaN; a skipped zero row would hide it.
  op_test::for_each_context([](Context& ctx) {
    const GemmDesc desc{.m = 2, .n = 1, .k = 2};
    const GuardedTensor d(DType::kFloat32, {2, 1});
    run(ctx, desc, filled(DType::kFloat32, {2, 2}, {0, 0, 1, 0}),
        filled(DType::kFloat32, {2, 1}, {INFINITY, 1}), d);
    EXPECT_TRUE(std::isnan(d.get(0)));
    EXPECT_EQ(d.get(1), INFINITY);
  });
}

TEST(Gemm, BFloat16ResultIsRoundedOnce) {
  // 256 + 1 + 1: rounding after each term would stay at 256 (its spacing is 2).
  op_test::for_each_context([](Context& ctx) {
    const DType t = DType::kBFloat16;
    GemmDesc desc{.m = 1, .n = 1, .k = 1025, .dtype_ab = t, .dtype_d = t};
    std::vector<double> ones(1025, 0.0);
    ones[0] = 256;
    ones[1] = 1;
    ones[1024] = 1;  // in another span of the sum
    const GuardedTensor a(t, {1, 1025}, ones);
    GuardedTensor b(t, {1025, 1});
    b.fill(1);
    const GuardedTensor d(t, {1, 1});
    run(ctx, desc, a, b, d);
    EXPECT_EQ(d.get(0), 258);
  });
}

TEST(Gemm, BitsDoNotDependOnAlignmentOrStride) {
  op_test::for_each_isa([](Context& ctx) {
    for (const DType t : {DType::kFloat32, DType::kBFloat16, DType::kFloat64}) {
      const GemmDesc desc{.m = 37, .n = 101, .k = 150, .dtype_ab = t, .dtype_d = t};
      const GuardedTensor d = old_d(desc), moved = old_d(desc, {.row_padding = 7, .shift = 3});
      run(ctx, desc, operand_a(desc), operand_b(desc), d);
      run(ctx, desc, operand_a(desc, {.row_padding = 1, .shift = 5}),
          operand_b(desc, {.row_padding = 2, .shift = 1}), moved);
      EXPECT_EQ(d.bits(), moved.bits());
    }
  });
}

TEST(Gemm, WorkspaceIsBounded) {
  // The scratch of a huge product is that of its spans.
  const GemmDesc large{.m = 1 << 24, .n = 1 << 20, .k = 1 << 20, .dtype_d = DType::kBFloat16};
  EXPECT_LT(gemm_plan(large).workspace_bytes.n, 16 << 20);
  EXPECT_GT(gemm_plan(large).workspace_bytes.n, 0);
}

TEST(GemmErrors, Plan) {
  EXPECT_TRUE(op_test::throws_error([] { gemm_plan({.m = 2, .n = -1, .k = 3}); }, ErrorKind::kUsage,
                                    {"must not be negative", "n=-1"}));
  for (const auto& [ab, d] : std::vector<std::array<DType, 2>>{{DType::kFloat32, DType::kFloat64},
                                                               {DType::kFloat64, DType::kFloat32},
                                                               {DType::kBFloat16, DType::kFloat64},
                                                               {DType::kInt32, DType::kInt32},
                                                               {DType::kFloat32, DType::kUInt8}}) {
    EXPECT_TRUE(op_test::throws_error(
        [ab = ab, d = d] { gemm_plan({.m = 1, .n = 1, .k = 1, .dtype_ab = ab, .dtype_d = d}); },
        ErrorKind::kUsage, {"no product of", dtype_name(ab), dtype_name(d), "fp64 gives fp64"}));
  }
}

class GemmCallErrors : public ::testing::Test {
 protected:
  ::testing::AssertionResult refused(std::initializer_list<std::string_view> parts) {
    return op_test::throws_error(
        [this] { gemm_forward(ctx_, gemm_plan(desc_), in_, out_, workspace_); }, ErrorKind::kUsage,
        parts);
  }

  GemmDesc desc_{.m = 2, .n = 3, .k = 4};
  GuardedTensor a_ = operand_a(desc_), b_ = operand_b(desc_), d_ = old_d(desc_);
  Scratch scratch_{gemm_plan(desc_).workspace_bytes};
  Context ctx_ = op_test::make_context();
  GemmIn in_{.a = a_, .b = b_};
  GemmOut out_{.d = d_};
  Workspace workspace_ = scratch_.workspace();
};

TEST_F(GemmCallErrors, TheFixtureItselfRuns) {
  EXPECT_NO_THROW(gemm_forward(ctx_, gemm_plan(desc_), in_, out_, workspace_));
}

TEST_F(GemmCallErrors, Shapes) {
  in_.a = b_;
  EXPECT_TRUE(refused({"A is fp32 [4, 3]", "expects fp32 [2, 4]"}));
  in_ = {.a = a_, .b = a_};
  EXPECT_TRUE(refused({"B is fp32 [2, 4]", "expects fp32 [4, 3]"}));
  in_ = {.a = a_, .b = b_};
  out_.d = d_.tensor().slice(1, 0, 2);
  EXPECT_TRUE(refused({"D is fp32 [2, 2]", "expects fp32 [2, 3]"}));
  out_.d = d_.tensor().split_dim(0, 2, 1);
  EXPECT_TRUE(refused({"D is fp32 [2, 1, 3]"}));
}

TEST_F(GemmCallErrors, TransposedShapesAreThoseStored) {
  desc_.transpose_a = Transpose::kYes;
  EXPECT_TRUE(refused({"A is fp32 [2, 4]", "expects fp32 [4, 2]"}));
  desc_.transpose_a = Transpose::kNo;
  desc_.transpose_b = Transpose::kYes;
  EXPECT_TRUE(refused({"B is fp32 [4, 3]", "expects fp32 [3, 4]"}));
}

TEST_F(GemmCallErrors, DTypes) {
  const GuardedTensor wide(DType::kFloat64, {2, 4});
  in_.a = wide;
  EXPECT_TRUE(refused({"A is fp64 [2, 4]", "expects fp32"}));
}

TEST_F(GemmCallErrors, LastDimensionMustBeDense) {
  const GuardedTensor pairs(DType::kFloat32, {2, 4, 2});
  in_.a = pairs.tensor().select(2, 0);  // [2, 4], every second element of its rows
  EXPECT_TRUE(refused({"A is fp32 [2, 4]", "stride 2", "must be dense"}));
}

TEST_F(GemmCallErrors, AbsentOperands) {
  in_.b = ConstTensor(nullptr, DType::kFloat32, {4, 3});
  EXPECT_TRUE(refused({"B is fp32 [4, 3]", "null pointer"}));
  in_.b = {};
  EXPECT_TRUE(refused({"B is fp32 []", "expects fp32 [4, 3]"}));
  in_.b = b_;
  out_.d = Tensor(nullptr, DType::kFloat32, {2, 3});
  EXPECT_TRUE(refused({"D is fp32 [2, 3]", "null pointer"}));
}

TEST_F(GemmCallErrors, DMustNotBeAnOperand) {
  desc_ = {.m = 4, .n = 4, .k = 4};
  const GuardedTensor square = old_d(desc_), other = old_d(desc_);
  const Scratch scratch(gemm_plan(desc_).workspace_bytes);
  workspace_ = scratch.workspace();
  in_ = {.a = square, .b = other};
  out_.d = square;
  EXPECT_TRUE(refused({"must not overlap A or B"}));
  out_.d = other;
  EXPECT_TRUE(refused({"must not overlap A or B"}));
}

TEST_F(GemmCallErrors, Workspace) {
  workspace_.size.n -= 1;
  EXPECT_TRUE(refused({"the workspace has", "the plan needs"}));
  workspace_ = {nullptr, gemm_plan(desc_).workspace_bytes};
  EXPECT_TRUE(refused({"the workspace has"}));
  workspace_ = scratch_.workspace();
  workspace_.data = static_cast<char*>(workspace_.data) + 32;
  EXPECT_TRUE(refused({"aligned to 64 bytes"}));
}

TEST_F(GemmCallErrors, DeviceMemory) {
  in_.a = ConstTensor(a_.tensor().raw(), DType::kFloat32, {2, 4}, Device::kCuda);
  EXPECT_TRUE(refused({"is on the GPU", "A is on the GPU"}));
}

}  // namespace
}  // namespace k25::kernels
