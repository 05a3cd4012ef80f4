#include "kernels/cross_entropy/cross_entropy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/kernels/cross_entropy/cross_entropy_oracle.h"

namespace k25 {
namespace {

using cross_entropy_test::desc_of;
using cross_entropy_test::expect_hand_computed;
using cross_entropy_test::expect_same_bits;
using cross_entropy_test::hand_computed;
using cross_entropy_test::Naive;
using cross_entropy_test::Problem;
using kernels::cross_entropy_backward;
using kernels::cross_entropy_forward;
using kernels::cross_entropy_plan;
using kernels::CrossEntropyDesc;
using kernels::kIgnoredLabel;
using op_test::all_near;
using op_test::for_each_context;
using op_test::for_each_isa;
using op_test::gradient_near;
using op_test::low_precision_near;
using op_test::make_context;
using op_test::Scratch;
using op_test::throws_error;

/// Both directions and the argmax against the naive formula in fp64.
void expect_exact(Context& ctx, Problem& p) {
  p.forward(ctx);
  p.backward(ctx);
  const Naive expected = p.naive<double>();
  EXPECT_TRUE(all_near(p.nll.get(), expected.nll, 1e-12));
  EXPECT_TRUE(all_near(p.lse.get(), expected.lse, 1e-12));
  EXPECT_TRUE(all_near(p.dx.get(), expected.dx, 1e-12));
  EXPECT_TRUE(all_near(p.dweight.get(), expected.dweight, 1e-12));
  EXPECT_TRUE(p.guards_intact());
}

TEST(CrossEntropy, HandComputed) {
  for_each_isa([](Context& ctx) {
    Problem p = hand_computed();
    p.forward(ctx);
    p.backward(ctx);
    expect_hand_computed(p);
  });
}

TEST(CrossEntropy, ShapesAndChunks) {
  for_each_context([](Context& ctx) {
    for (const std::int64_t rows : {0, 1, 6, 33}) {
      for (const std::int64_t vocab : {1, 2, 15, 16, 17, 70}) {
        for (const std::int64_t chunk : {0, 1, 16, 69}) {
          SCOPED_TRACE("rows " + std::to_string(rows) + ", vocab " + std::to_string(vocab) +
                       ", chunk " + std::to_string(chunk));
          Problem p(desc_of(rows, 5, vocab, DType::kFloat64, chunk), {3, 1});
          expect_exact(ctx, p);
        }
      }
    }
  });
}

// More rows than a row tile, more classes than the plan's own chunk.
TEST(CrossEntropy, ManyTiles) {
  const auto plan = cross_entropy_plan(desc_of(600, 3, 1040));
  ASSERT_LT(plan.row_tile, 600);
  ASSERT_LT(plan.vocab_chunk, 1040);
  for_each_isa([&](Context& ctx) {
    for (const std::int64_t rows : {plan.row_tile - 1, plan.row_tile, plan.row_tile + 1}) {
      Problem p(desc_of(rows, 3, 1040));
      expect_exact(ctx, p);
    }
  });
}

// One chunk, several, several row tiles, tiles without labels.
TEST(CrossEntropy, TrainHasTheBitsOfTheTwoCalls) {
  for_each_context([](Context& ctx) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat64}) {
      for (const auto& [rows, vocab] : {std::pair{0, 7}, {7, 70}, {600, 40}, {70, 1040}}) {
        Problem two(desc_of(rows, 5, vocab, dtype), {3, 1}),
            one(desc_of(rows, 5, vocab, dtype), {3, 1});
        for (Problem* p : {&two, &one}) {
          for (std::int64_t n = 0; n < std::min<std::int64_t>(rows, 64); ++n) {
            if (rows > 64) p->label.set(n, kIgnoredLabel);
          }
        }
        two.forward(ctx);
        two.backward(ctx);
        one.train(ctx);
        expect_same_bits(one, two);
      }
    }
  });
}

TEST(CrossEntropy, FiniteDifferences) {
  Problem p(desc_of(7, 4, 9, DType::kFloat64, 4));
  Context ctx = make_context();
  p.forward(ctx);
  p.backward(ctx);
  const auto dx = p.dx.get(), dweight = p.dweight.get();
  const auto loss = [&] {
    p.forward(ctx);
    double sum = 0;
    for (const double nll : p.nll.get()) sum += nll;
    return sum;
  };
  EXPECT_TRUE(gradient_near(p.x, dx, loss));
  EXPECT_TRUE(gradient_near(p.weight, dweight, loss));
}

template <class Low>
void expect_low_precision(DType dtype, double floor) {
  const Problem operands(desc_of(40, 24, 130, dtype));
  const Naive low = operands.naive<Low>(), ref = operands.naive<double>();
  for_each_context([&](Context& ctx) {
    for (const std::int64_t chunk : {0, 48}) {
      Problem p(desc_of(40, 24, 130, dtype, chunk));
      p.forward(ctx);
      p.backward(ctx);
      EXPECT_TRUE(low_precision_near(p.nll.get(), low.nll, ref.nll, floor));
      EXPECT_TRUE(low_precision_near(p.lse.get(), low.lse, ref.lse, floor));
      EXPECT_TRUE(low_precision_near(p.dx.get(), low.dx, ref.dx, floor));
      EXPECT_TRUE(low_precision_near(p.dweight.get(), low.dweight, ref.dweight, floor));
      EXPECT_TRUE(p.guards_intact());
    }
  });
}
TEST(CrossEntropy, Fp32) { expect_low_precision<float>(DType::kFloat32, 1e-6); }
TEST(CrossEntropy, Bf16) { expect_low_precision<op_test::NaiveBf16>(DType::kBFloat16, 1e-4); }

// Loss and gradients of bf16 storage are computed in fp32: far closer than bf16 arithmetic.
TEST(CrossEntropy, Bf16LossIsComputedInFp32) {
  Context ctx = make_context();
  Problem p(desc_of(40, 24, 130, DType::kBFloat16, 48));
  p.forward(ctx);
  const Naive ref = p.naive<double>();
  EXPECT_TRUE(all_near(p.nll.get(), ref.nll, 2e-6));
  EXPECT_TRUE(all_near(p.lse.get(), ref.lse, 2e-6));
}

// Logits of +-1e4 overflow exp without the running maximum, which here changes in every chunk.
TEST(CrossEntropy, LargeLogits) {
  for_each_isa([](Context& ctx) {
    for (const double slope : {1000.0, -1000.0}) {
      Problem p(desc_of(1, 1, 20, DType::kFloat32, 4));
      p.x.set({1});
      for (std::int64_t v = 0; v < 20; ++v) p.weight.set(v, slope * static_cast<double>(v - 10));
      p.label.set({3});
      p.forward(ctx);
      p.backward(ctx);
      const std::int64_t best = slope > 0 ? 19 : 0;
      EXPECT_EQ(p.lse.get(0), slope * static_cast<double>(best - 10));
      EXPECT_EQ(p.nll.get(0), slope * static_cast<double>(best - 3));
      EXPECT_EQ(p.argmax.get(0), static_cast<double>(best));
      for (std::int64_t v = 0; v < 20; ++v) {
        EXPECT_EQ(p.dweight.get(v), v == 3 ? -1.0 : v == best ? 1.0 : 0.0);
      }
    }
  });
}

TEST(CrossEntropy, ArgmaxTiesGoToTheLowestClass) {
  for_each_isa([](Context& ctx) {
    for (const std::int64_t chunk : {0, 1, 7, 64, 100}) {
      Problem p(desc_of(4, 1, 150, DType::kFloat32, chunk));
      p.x.set({1, -1, 0, 2});
      p.weight.fill(0.5);
      for (const std::int64_t v : {40, 41, 77, 149}) p.weight.set(v, 3.0);
      for (const std::int64_t v : {13, 130}) p.weight.set(v, -3.0);
      p.label.fill(kIgnoredLabel);
      p.forward(ctx);
      EXPECT_TRUE(all_near(p.argmax.get(), {40, 13, 0, 40}, 0)) << "chunk " << chunk;
    }
  });
}

TEST(CrossEntropy, RowsWithoutLabelsGiveNothing) {
  for_each_isa([](Context& ctx) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      Problem p(desc_of(9, 4, 30, dtype, 16), {2, 0});
      p.label.fill(kIgnoredLabel);
      p.dweight.fill(2.5);
      p.forward(ctx);
      p.backward(ctx);
      EXPECT_EQ(p.nll.get(), std::vector<double>(9, 0.0));
      EXPECT_EQ(p.dx.get(), std::vector<double>(36, 0.0));
      EXPECT_EQ(p.dweight.get(), std::vector<double>(120, 2.5));
      EXPECT_TRUE(all_near(p.lse.get(), p.naive<double>().lse, 1e-5));
      EXPECT_TRUE(p.guards_intact());
    }
  });
}

TEST(CrossEntropy, DweightIsAddedToAndOptional) {
  Context ctx = make_context();
  Problem once(desc_of(20, 6, 40, DType::kFloat32, 16)), twice(once.desc), frozen(once.desc);
  once.forward(ctx);
  once.backward(ctx);
  twice.forward(ctx);
  twice.backward(ctx);
  twice.backward(ctx);
  std::vector<double> doubled = once.dweight.get();
  for (double& value : doubled) value *= 2;
  EXPECT_TRUE(all_near(twice.dweight.get(), doubled, 1e-6));
  EXPECT_EQ(twice.dx.bits(), once.dx.bits());

  const auto plan = cross_entropy_plan(once.desc);
  const Scratch scratch(plan.workspace_bytes);
  cross_entropy_forward(ctx, plan, {frozen.x, frozen.weight, frozen.label},
                        {frozen.nll, frozen.lse, {}}, scratch.workspace());
  cross_entropy_backward(ctx, plan, {frozen.x, frozen.weight, frozen.label, frozen.lse},
                         {frozen.dx, {}}, scratch.workspace());
  EXPECT_EQ(frozen.nll.bits(), once.nll.bits());
  EXPECT_EQ(frozen.dx.bits(), once.dx.bits());
}

// NaN was there, and tiles without labels come first, in between and last, or are all there is.
TEST(CrossEntropy, DweightIsWrittenWhereThatIsAsked) {
  for_each_isa([](Context& ctx) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      for (const std::int64_t rows : {0, 3, 2500}) {
        for (const std::int64_t labelled : {0, 1}) {
          const CrossEntropyDesc d = desc_of(rows, 5, 40, dtype, 16);
          Problem added(d, {3, 1}), written(d, {3, 1}), trained(d, {3, 1});
          for (Problem* p : {&added, &written, &trained}) {
            for (std::int64_t n = 0; n < rows; ++n) {
              if (labelled == 0 || n / 1024 != 1) p->label.set(n, kIgnoredLabel);
            }
            p->forward(ctx);
          }
          written.dweight.fill(NAN);
          trained.dweight.fill(NAN);
          added.backward(ctx);
          written.backward(ctx, kernels::Accumulate::kOverwrite);
          trained.train(ctx, kernels::Accumulate::kOverwrite);
          EXPECT_EQ(written.dweight.bits(), added.dweight.bits());
          EXPECT_EQ(trained.dweight.bits(), added.dweight.bits());
          EXPECT_EQ(written.dx.bits(), added.dx.bits());
          EXPECT_TRUE(written.guards_intact() && trained.guards_intact());
        }
      }
    }
  });
}

TEST(CrossEntropy, BitsDoNotDependOnThreadsOrAlignment) {
  ThreadPool pool(3);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for_each_isa([&](Context& ctx) {
      const CrossEntropyDesc d = desc_of(300, 33, 170, dtype, 100);
      Problem one(d), three(d, {3, 5});
      Context threaded = make_context(ctx.isa, &pool);
      one.forward(ctx);
      one.backward(ctx);
      three.forward(threaded);
      three.backward(threaded);
      EXPECT_EQ(one.nll.bits(), three.nll.bits());
      EXPECT_EQ(one.lse.bits(), three.lse.bits());
      EXPECT_EQ(one.argmax.bits(), three.argmax.bits());
      EXPECT_EQ(one.dx.bits(), three.dx.bits());
      EXPECT_EQ(one.dweight.bits(), three.dweight.bits());
    });
  }
}

// The [rows, vocab] logits would be 8 TB here.
TEST(CrossEntropy, WorkspaceIsBounded) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat64}) {
    const auto bytes = [&](std::int64_t rows, std::int64_t vocab) {
      return cross_entropy_plan(desc_of(rows, 64, vocab, dtype)).workspace_bytes.n;
    };
    EXPECT_EQ(bytes(1 << 12, 1 << 16), bytes(1 << 12, 1 << 20));
    EXPECT_EQ(bytes(1 << 12, 1 << 16), bytes(1 << 24, 1 << 16));
    EXPECT_LT(bytes(1 << 24, 163840), std::int64_t{16} << 20);
  }
  EXPECT_EQ(cross_entropy_plan(desc_of(10, 4, 30, DType::kBFloat16)).saved_bytes.n, 40);
}

TEST(CrossEntropy, BadPlans) {
  const auto refused = [](const CrossEntropyDesc& d, std::string_view part) {
    return throws_error([&] { cross_entropy_plan(d); }, ErrorKind::kUsage, {"cross_entropy", part});
  };
  EXPECT_TRUE(refused(desc_of(-1, 4, 4), "rows -1"));
  EXPECT_TRUE(refused(desc_of(1, 0, 4), "hidden 0"));
  EXPECT_TRUE(refused(desc_of(1, 4, 0), "vocab 0"));
  EXPECT_TRUE(refused(desc_of(1, 4, std::int64_t{1} << 31), "vocab 2147483648"));
  EXPECT_TRUE(refused(desc_of(1, 4, 4, DType::kFloat32, -1), "vocab_chunk -1"));
  EXPECT_TRUE(refused(desc_of(1, 4, 4, DType::kInt32), "int32"));
}

TEST(CrossEntropy, BadLabelsAndOperands) {
  Context ctx = make_context();
  for (const double bad : {-2.0, 12.0, 2147483647.0}) {
    Problem p(desc_of(4, 3, 12));
    p.label.set(2, bad);
    const std::string text = "row 2 has label " + std::to_string(static_cast<int>(bad));
    EXPECT_TRUE(throws_error([&] { p.forward(ctx); }, ErrorKind::kUsage,
                             {"cross_entropy", text, "[0, 12)"}));
    EXPECT_TRUE(throws_error([&] { p.backward(ctx); }, ErrorKind::kUsage, {text, "[0, 12)"}));
  }
  Problem p(desc_of(4, 3, 12, DType::kFloat32));
  const auto plan = cross_entropy_plan(p.desc);
  const Scratch scratch(plan.workspace_bytes);
  const auto refused = [&](kernels::CrossEntropyForwardIn in, kernels::CrossEntropyForwardOut out,
                           Workspace workspace, std::string_view part) {
    return throws_error([&] { cross_entropy_forward(ctx, plan, in, out, workspace); },
                        ErrorKind::kUsage, {"cross_entropy", part});
  };
  const kernels::CrossEntropyForwardIn in{p.x, p.weight, p.label};
  const kernels::CrossEntropyForwardOut out{p.nll, p.lse, p.argmax};
  const Workspace enough = scratch.workspace();
  EXPECT_TRUE(refused({p.weight, p.weight, p.label}, out, enough, "x is fp32 [12, 3]"));
  EXPECT_TRUE(refused({p.x, {}, p.label}, out, enough, "weight is missing"));
  EXPECT_TRUE(refused({p.x, p.weight, p.nll}, out, enough, "label is fp32"));
  EXPECT_TRUE(refused(in, {p.nll, p.lse, p.nll}, enough, "argmax is fp32"));
  EXPECT_TRUE(refused(in, {p.x, p.lse, p.argmax}, enough, "nll is"));
  EXPECT_TRUE(refused(in, out, {}, "workspace of 0 bytes"));
  const ConstTensor cuda(p.x.tensor().raw(), DType::kFloat32, {4, 3}, Device::kCuda);
  EXPECT_TRUE(refused({cuda, p.weight, p.label}, out, enough, "is on the GPU"));
  EXPECT_TRUE(throws_error(
      [&] {
        cross_entropy_backward(ctx, plan, {p.x, p.weight, p.label, p.lse}, {p.dx, p.dx}, enough);
      },
      ErrorKind::kUsage, {"cross_entropy", "dweight is fp32 [4, 3], expected fp32 [12, 3]"}));
}

}  // namespace
}  // namespace k25
