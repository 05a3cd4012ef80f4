#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/gemm/gemm_algorithms.h"
#include "tests/kernels/cross_entropy/cross_entropy_oracle.h"
#include "tests/kernels/cuda_test.h"

namespace k25 {
namespace {

using cross_entropy_test::desc_of;
using cross_entropy_test::expect_hand_computed;
using cross_entropy_test::expect_same_bits;
using cross_entropy_test::hand_computed;
using cross_entropy_test::Naive;
using cross_entropy_test::Problem;
using kernels::Accumulate;
using kernels::cross_entropy_backward;
using kernels::cross_entropy_forward;
using kernels::cross_entropy_plan;
using kernels::CrossEntropyDesc;
using kernels::kIgnoredLabel;
using op_test::all_near;
using op_test::GpuScratch;
using op_test::GuardedTensor;
using op_test::low_precision_near;
using op_test::OnGpu;
using op_test::throws_error;

CrossEntropyDesc on_gpu(CrossEntropyDesc d) {
  d.device = Device::kCuda;
  return d;
}

/// A problem's operands in device memory; each direction brings its outputs back into the problem.
class GpuRun {
 public:
  GpuRun(Context& ctx, const Problem& p)
      : ctx_(ctx),
        plan_(cross_entropy_plan(on_gpu(p.desc))),
        x(ctx, p.x),
        weight(ctx, p.weight),
        label(ctx, p.label),
        nll(ctx, p.nll),
        lse(ctx, p.lse),
        argmax(ctx, p.argmax),
        dx(ctx, p.dx),
        dweight(ctx, p.dweight) {}

  void forward() {
    const GpuScratch scratch(ctx_, plan_.workspace_bytes);
    cross_entropy_forward(ctx_, plan_, {x, weight, label}, {nll, lse, argmax}, scratch.workspace());
    for (const OnGpu* t : {&nll, &lse, &argmax}) t->fetch();
  }
  void backward(Accumulate mode = Accumulate::kAdd) {
    const GpuScratch scratch(ctx_, plan_.workspace_bytes);
    cross_entropy_backward(ctx_, plan_, {x, weight, label, lse}, {dx, dweight, mode},
                           scratch.workspace());
    for (const OnGpu* t : {&dx, &dweight}) t->fetch();
  }
  void train(Accumulate mode = Accumulate::kAdd) {
    const GpuScratch scratch(ctx_, plan_.workspace_bytes);
    cross_entropy_train(ctx_, plan_, {x, weight, label}, {nll, lse, argmax, dx, dweight, mode},
                        scratch.workspace());
    for (const OnGpu* t : {&nll, &lse, &argmax, &dx, &dweight}) t->fetch();
  }

 private:
  Context& ctx_;
  kernels::CrossEntropyPlan plan_;

 public:
  const OnGpu x, weight, label, nll, lse, argmax, dx, dweight;
};

class CrossEntropyCudaTest : public op_test::CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    gpu().gemm_algorithms = &algorithms_;
  }

  void both(const Problem& p) {
    GpuRun run(gpu(), p);
    run.forward();
    run.backward();
  }
  /// Both directions against the naive formula, in `Low` and in fp64.
  template <class Low>
  void expect_low_precision(const CrossEntropyDesc& d, op_test::Layout layout, double floor) {
    const Problem p(d, layout);
    const Naive low = p.naive<Low>(), ref = p.naive<double>();
    both(p);
    EXPECT_TRUE(low_precision_near(p.nll.get(), low.nll, ref.nll, floor));
    EXPECT_TRUE(low_precision_near(p.lse.get(), low.lse, ref.lse, floor));
    EXPECT_TRUE(low_precision_near(p.dx.get(), low.dx, ref.dx, floor));
    EXPECT_TRUE(low_precision_near(p.dweight.get(), low.dweight, ref.dweight, floor));
    EXPECT_TRUE(p.guards_intact());
  }
  void expect_as_cpu(const CrossEntropyDesc& d);

 private:
  kernels::GemmAlgorithms algorithms_;
};

/// Logit of row n and class v in fp64.
double logit(const Problem& p, std::int64_t n, std::int64_t v) {
  double z = 0;
  for (std::int64_t i = 0; i < p.desc.hidden; ++i) {
    z += p.x.get(n * p.desc.hidden + i) * p.weight.get(v * p.desc.hidden + i);
  }
  return z;
}

void CrossEntropyCudaTest::expect_as_cpu(const CrossEntropyDesc& d) {
  const Problem ours(d, {8, 0});
  Problem twin(d, {8, 0});
  both(ours);
  twin.forward(cpu());
  twin.backward(cpu());
  const bool bf16 = d.dtype == DType::kBFloat16;
  EXPECT_TRUE(all_near(ours.nll.get(), twin.nll.get(), 2e-6));
  EXPECT_TRUE(all_near(ours.lse.get(), twin.lse.get(), 2e-6));
  // A bf16 dz or dx may round to the neighbour: 2^-9 relative, of terms of at most 1 x 2.
  EXPECT_TRUE(all_near(ours.dx.get(), twin.dx.get(), bf16 ? 1.0 / 128 : 1e-5));
  EXPECT_TRUE(all_near(ours.dweight.get(), twin.dweight.get(), bf16 ? 1.0 / 128 : 1e-4));
  for (std::int64_t n = 0; n < d.rows; ++n) {
    const auto best = static_cast<std::int64_t>(ours.argmax.get(n));
    const auto expected = static_cast<std::int64_t>(twin.argmax.get(n));
    ASSERT_TRUE(best >= 0 && best < d.vocab) << "row " << n << ", argmax " << best;
    if (best != expected) {  // logits equal up to rounding
      ASSERT_NEAR(logit(ours, n, best), logit(ours, n, expected), 1e-5) << "row " << n;
    }
  }
  EXPECT_TRUE(ours.guards_intact());
}

// One chunk and several.
TEST_F(CrossEntropyCudaTest, TrainHasTheBitsOfTheTwoCalls) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const std::int64_t chunk : {0, 48}) {
      const Problem two(desc_of(70, 24, 136, dtype, chunk), {8, 0});
      const Problem one(desc_of(70, 24, 136, dtype, chunk), {8, 0});
      both(two);
      GpuRun(gpu(), one).train();
      expect_same_bits(one, two);
    }
  }
}

TEST_F(CrossEntropyCudaTest, HandComputed) {
  Problem p = hand_computed();
  both(p);
  expect_hand_computed(p);
}

TEST_F(CrossEntropyCudaTest, ShapesAndChunks) {
  for (const std::int64_t rows : {0, 1, 33}) {
    for (const std::int64_t vocab : {1, 17, 64, 70}) {
      for (const std::int64_t chunk : {0, 1, 16, 69}) {
        SCOPED_TRACE("rows " + std::to_string(rows) + ", vocab " + std::to_string(vocab) +
                     ", chunk " + std::to_string(chunk));
        expect_low_precision<float>(desc_of(rows, 5, vocab, DType::kFloat32, chunk), {3, 1}, 2e-6);
        expect_low_precision<op_test::NaiveBf16>(desc_of(rows, 5, vocab, DType::kBFloat16, chunk),
                                                 {3, 1}, 1e-4);
      }
    }
  }
}

TEST_F(CrossEntropyCudaTest, LowPrecision) {
  for (const std::int64_t chunk : {0, 48}) {
    expect_low_precision<float>(desc_of(40, 24, 130, DType::kFloat32, chunk), {}, 2e-6);
    expect_low_precision<op_test::NaiveBf16>(desc_of(40, 24, 130, DType::kBFloat16, chunk), {},
                                             1e-4);
  }
}

// A thread takes 16 logits at a time, a block 2048.
TEST_F(CrossEntropyCudaTest, BordersOfABlock) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const std::int64_t chunk : {1023, 2047, 2048, 2049, 4097, 0}) {
      SCOPED_TRACE("chunk " + std::to_string(chunk));
      expect_as_cpu(desc_of(9, 16, 8195, dtype, chunk));
    }
  }
}

// More rows than a row tile and than blocks, more classes than the plan's own chunk.
TEST_F(CrossEntropyCudaTest, ManyTiles) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const auto rows = desc_of(8300, 8, 200, dtype), classes = desc_of(70, 8, 130000, dtype);
    ASSERT_LT(cross_entropy_plan(on_gpu(rows)).row_tile, 8300);
    ASSERT_LT(cross_entropy_plan(on_gpu(classes)).vocab_chunk, 130000);
    expect_as_cpu(rows);
    expect_as_cpu(classes);
  }
}

TEST_F(CrossEntropyCudaTest, LargeLogits) {
  for (const double slope : {1000.0, -1000.0}) {
    Problem p(desc_of(1, 1, 20, DType::kFloat32, 4));
    p.x.set({1});
    for (std::int64_t v = 0; v < 20; ++v) p.weight.set(v, slope * static_cast<double>(v - 10));
    p.label.set({3});
    both(p);
    const std::int64_t best = slope > 0 ? 19 : 0;
    EXPECT_EQ(p.lse.get(0), slope * static_cast<double>(best - 10));
    EXPECT_EQ(p.nll.get(0), slope * static_cast<double>(best - 3));
    EXPECT_EQ(p.argmax.get(0), static_cast<double>(best));
    for (std::int64_t v = 0; v < 20; ++v) {
      EXPECT_EQ(p.dweight.get(v), v == 3 ? -1.0 : v == best ? 1.0 : 0.0);
    }
  }
}

TEST_F(CrossEntropyCudaTest, ArgmaxTiesGoToTheLowestClass) {
  // Far apart: other threads, warps and turns of the loop.
  for (const std::int64_t chunk : {0, 1000, 5000}) {
    Problem p(desc_of(4, 1, 10000, DType::kFloat32, chunk));
    p.x.set({1, -1, 0, 2});
    p.weight.fill(0.5);
    for (const std::int64_t v : {40, 41, 77, 1063, 4136, 9999}) p.weight.set(v, 3.0);
    for (const std::int64_t v : {2013, 6130, 6109}) p.weight.set(v, -3.0);
    p.label.fill(kIgnoredLabel);
    GpuRun(gpu(), p).forward();
    EXPECT_TRUE(all_near(p.argmax.get(), {40, 2013, 0, 40}, 0)) << "chunk " << chunk;
  }
}

TEST_F(CrossEntropyCudaTest, RowsWithoutLabelsGiveNothing) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Problem p(desc_of(9, 4, 30, dtype, 16), {2, 0});
    p.label.fill(kIgnoredLabel);
    p.dweight.fill(2.5);
    both(p);
    EXPECT_EQ(p.nll.get(), std::vector<double>(9, 0.0));
    EXPECT_EQ(p.dx.get(), std::vector<double>(36, 0.0));
    EXPECT_EQ(p.dweight.get(), std::vector<double>(120, 2.5));
    EXPECT_TRUE(all_near(p.lse.get(), p.naive<double>().lse, 1e-5));
    EXPECT_TRUE(p.guards_intact());
  }
}

TEST_F(CrossEntropyCudaTest, DweightIsAddedToAndOptional) {
  const CrossEntropyDesc d = desc_of(20, 6, 40, DType::kFloat32, 16);
  Problem once(d), twice(d), frozen(d);
  both(once);
  GpuRun run(gpu(), twice);
  run.forward();
  run.backward();
  run.backward();
  std::vector<double> doubled = once.dweight.get();
  for (double& value : doubled) value *= 2;
  EXPECT_TRUE(all_near(twice.dweight.get(), doubled, 1e-6));
  EXPECT_EQ(twice.dx.bits(), once.dx.bits());

  const auto plan = cross_entropy_plan(on_gpu(d));
  const GpuScratch scratch(gpu(), plan.workspace_bytes);
  const GpuRun f(gpu(), frozen);
  cross_entropy_forward(gpu(), plan, {f.x, f.weight, f.label}, {f.nll, f.lse, {}},
                        scratch.workspace());
  cross_entropy_backward(gpu(), plan, {f.x, f.weight, f.label, f.lse}, {f.dx, {}},
                         scratch.workspace());
  EXPECT_EQ(f.nll.fetch().bits(), once.nll.bits());
  EXPECT_EQ(f.dx.fetch().bits(), once.dx.bits());
}

// Over several tiles of rows and chunks of classes, none at all, and whole vocabularies: the values
// of an addition to zeros, whatever was there (a product that is -0 stays -0).
TEST_F(CrossEntropyCudaTest, DweightIsWrittenWhereThatIsAsked) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const std::int64_t rows : {0, 40, 9000}) {
      for (const std::int64_t chunk : {0, 16}) {
        const CrossEntropyDesc d = desc_of(rows, 8, 40, dtype, chunk);
        Problem added(d), written(d), trained(d);
        written.dweight.fill(NAN);
        trained.dweight.fill(NAN);
        both(added);
        GpuRun run(gpu(), written), train(gpu(), trained);
        run.forward();
        run.backward(Accumulate::kOverwrite);
        train.train(Accumulate::kOverwrite);
        EXPECT_TRUE(all_near(written.dweight.get(), added.dweight.get(), 0));
        EXPECT_TRUE(all_near(trained.dweight.get(), added.dweight.get(), 0));
        EXPECT_TRUE(written.guards_intact() && trained.guards_intact());
      }
    }
  }
}

TEST_F(CrossEntropyCudaTest, TwoRunsGiveTheSameBits) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const CrossEntropyDesc d = desc_of(700, 64, 9000, dtype);
    const Problem one(d, {8, 0}), two(d, {8, 0});
    both(one);
    both(two);
    EXPECT_EQ(one.nll.bits(), two.nll.bits());
    EXPECT_EQ(one.lse.bits(), two.lse.bits());
    EXPECT_EQ(one.argmax.bits(), two.argmax.bits());
    EXPECT_EQ(one.dx.bits(), two.dx.bits());
    EXPECT_EQ(one.dweight.bits(), two.dweight.bits());
  }
}

TEST_F(CrossEntropyCudaTest, WrongLabelsSpoilTheirRowsAlone) {
  for (const double bad : {-2.0, 40.0, 2147483647.0, -2147483648.0}) {
    Problem p(desc_of(20, 6, 40, DType::kBFloat16, 16)), ignored(p.desc);
    for (const std::int64_t n : {0, 7, 19}) {
      p.label.set(n, bad);
      ignored.label.set(n, kIgnoredLabel);
    }
    both(p);
    both(ignored);
    std::vector<double> nll = ignored.nll.get();
    for (const std::size_t n : {0u, 7u, 19u}) nll[n] = std::nan("");
    EXPECT_TRUE(all_near(p.nll.get(), nll, 0));
    EXPECT_EQ(p.lse.bits(), ignored.lse.bits());
    EXPECT_EQ(p.dx.bits(), ignored.dx.bits());
    EXPECT_EQ(p.dweight.bits(), ignored.dweight.bits());
    EXPECT_TRUE(p.guards_intact());
    EXPECT_TRUE(throws_error([&] { kernels::cross_entropy_check_labels(p.desc, p.label); },
                             ErrorKind::kUsage, {"row 0 has label", "[0, 40)"}));
    EXPECT_NO_THROW(kernels::cross_entropy_check_labels(p.desc, ignored.label));
  }
}

TEST_F(CrossEntropyCudaTest, NonFiniteRowsStayAlone) {
  for (const double bad : {std::nan(""), HUGE_VAL}) {
    Problem p(desc_of(6, 4, 5000, DType::kFloat32)), clean(p.desc);
    p.x.set(2 * 4 + 1, bad);
    p.label.set({1, 2, 3, 4, 5, 6});
    clean.label.set({1, 2, 3, 4, 5, 6});
    GpuRun(gpu(), p).forward();
    GpuRun(gpu(), clean).forward();
    std::vector<double> nll = clean.nll.get();
    nll[2] = std::nan("");
    EXPECT_TRUE(all_near(p.nll.get(), nll, 0));
    EXPECT_TRUE(p.argmax.get(2) >= 0 && p.argmax.get(2) < 5000);
  }
}

// The [rows, vocab] logits would be 8 TB here.
TEST_F(CrossEntropyCudaTest, WorkspaceIsBounded) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const std::int64_t hidden : {64, 2048, 7168}) {
      const auto plan = [&](std::int64_t rows, std::int64_t vocab) {
        return cross_entropy_plan(on_gpu(desc_of(rows, hidden, vocab, dtype)));
      };
      const std::int64_t limit = std::int64_t{1} << 30;
      EXPECT_LT(plan(1 << 24, 1 << 20).workspace_bytes.n, limit);
      EXPECT_LT(plan(8192, 163840).workspace_bytes.n, limit);
      EXPECT_GE(plan(8192, 163840).row_tile, 4096);
    }
  }
}

TEST_F(CrossEntropyCudaTest, Errors) {
  const auto usage = ErrorKind::kUsage;
  EXPECT_TRUE(throws_error([] { cross_entropy_plan(on_gpu(desc_of(4, 3, 12))); }, usage,
                           {"cross_entropy", "fp64 runs on the CPU only"}));
  const Problem p(desc_of(4, 3, 12, DType::kFloat32));
  const GpuRun g(gpu(), p);
  const auto plan = cross_entropy_plan(on_gpu(p.desc));
  const GpuScratch scratch(gpu(), plan.workspace_bytes);
  const auto refused = [&](kernels::CrossEntropyForwardIn in, kernels::CrossEntropyForwardOut out,
                           Workspace workspace, std::string_view part) {
    return throws_error([&] { cross_entropy_forward(gpu(), plan, in, out, workspace); }, usage,
                        {"cross_entropy", part});
  };
  const kernels::CrossEntropyForwardIn in{g.x, g.weight, g.label};
  const kernels::CrossEntropyForwardOut out{g.nll, g.lse, g.argmax};
  const Workspace enough = scratch.workspace();
  EXPECT_TRUE(refused({p.x, g.weight, g.label}, out, enough, "x is in host memory"));
  EXPECT_TRUE(refused({g.x, p.weight, g.label}, out, enough, "weight is in host memory"));
  EXPECT_TRUE(refused({g.x, g.weight, p.label}, out, enough, "label is in host memory"));
  EXPECT_TRUE(refused(in, {p.nll, g.lse, g.argmax}, enough, "nll is in host memory"));
  EXPECT_TRUE(refused(in, {g.nll, g.lse, p.argmax}, enough, "argmax is in host memory"));
  EXPECT_TRUE(refused(in, out, {}, "workspace of 0 bytes"));
  const auto backward = [&](kernels::CrossEntropyBackwardIn from,
                            kernels::CrossEntropyBackwardOut to, std::string_view part) {
    return throws_error([&] { cross_entropy_backward(gpu(), plan, from, to, enough); }, usage,
                        {"cross_entropy", part});
  };
  EXPECT_TRUE(backward({g.x, g.weight, g.label, p.lse}, {g.dx, g.dweight}, "lse is in host"));
  EXPECT_TRUE(backward({g.x, g.weight, g.label, g.lse}, {p.dx, g.dweight}, "dx is in host"));
  EXPECT_TRUE(backward({g.x, g.weight, g.label, g.lse}, {g.dx, p.dweight}, "dweight is in host"));
}

}  // namespace
}  // namespace k25
