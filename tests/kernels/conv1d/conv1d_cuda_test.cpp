#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kernels/conv1d/conv1d.h"
#include "tests/kernels/conv1d/conv1d_problem.h"
#include "tests/kernels/cuda_twin.h"

namespace k25::kernels::conv1d_test {
namespace {

using op_test::GpuScratch;
using op_test::OnGpu;
using op_test::throws_error;
using op_test::twin_near;

/// A problem's operands in device memory.
struct Operands {
  OnGpu x, weight, initial, y, final, dy, dfinal, dx, dweight, dinitial, border, begin, end;

  Operands(const Context& ctx, const Problem& p)
      : x(ctx, p.x),
        weight(ctx, p.weight),
        initial(ctx, p.initial),
        y(ctx, p.y),
        final(ctx, p.final),
        dy(ctx, p.dy),
        dfinal(ctx, p.dfinal),
        dx(ctx, p.dx),
        dweight(ctx, p.dweight),
        dinitial(ctx, p.dinitial),
        border(ctx, p.border),
        begin(ctx, p.doc_begin),
        end(ctx, p.doc_end) {}

  SequenceBorders borders(const Problem& p) const {
    SequenceBorders b;
    if (!p.packed.empty()) b.border_S1 = border;
    if (!p.documents.empty()) {
      b.doc_begin_BT = begin;
      b.doc_end_BT = end;
    }
    return b;
  }
};

class Conv1dCudaTest : public op_test::CudaTest {
 protected:
  Conv1dPlan plan_of(const Problem& p) const {
    Conv1dDesc d = p.desc;
    d.device = Device::kCuda;
    return conv1d_plan(d);
  }
  void run(const Problem& p) {
    const Conv1dPlan plan = plan_of(p);
    const GpuScratch scratch(gpu(), plan.workspace_bytes);
    const Operands o(gpu(), p);
    conv1d_forward(gpu(), plan, {o.x, o.weight, o.borders(p), o.initial}, {o.y, o.final}, {});
    conv1d_backward(gpu(), plan, {o.dy, o.x, o.weight, o.borders(p), o.initial, o.dfinal},
                    {o.dx, o.dweight, o.dinitial}, scratch.workspace());
    for (const OnGpu* t : {&o.y, &o.final, &o.dx, &o.dweight, &o.dinitial}) {
      EXPECT_TRUE(t->fetch().guards_intact());
    }
  }
  void check(const Conv1dDesc& shape, const Lengths& packed = {}, const Lengths& documents = {});
};

void Conv1dCudaTest::check(const Conv1dDesc& shape, const Lengths& packed,
                           const Lengths& documents) {
  for (const DType dtype : op_test::kGpuFloats) {
    SCOPED_TRACE(std::to_string(shape.batch) + " x " + std::to_string(shape.tokens) + " x " +
                 std::to_string(shape.channels) + " " + std::string(dtype_name(dtype)));
    Conv1dDesc d = shape;
    d.dtype = dtype;
    Problem twin(d, packed, documents);
    d.dtype = DType::kFloat64;
    Problem ref(d, packed, documents);
    ref.x.set(twin.x.get());
    ref.weight.set(twin.weight.get());
    ref.initial.set(twin.initial.get());
    ref.dy.set(twin.dy.get());
    ref.dfinal.set(twin.dfinal.get());
    for (Problem* p : {&twin, &ref}) {
      p->dweight.fill(0.5);
      p->forward(cpu());
      p->backward(cpu());
    }
    std::vector<std::uint8_t> first;
    for (const Layout layout : op_test::kGpuLayouts) {
      d.dtype = dtype;
      Problem p(d, packed, documents, layout);
      p.dweight.fill(0.5);
      run(p);
      const auto ours = p.results(), twins = twin.results(), refs = ref.results();
      for (std::size_t i = 0; i < ours.size(); ++i) {
        EXPECT_TRUE(twin_near(*ours[i], *twins[i], *refs[i])) << "result " << i;
      }
      EXPECT_EQ(p.final.get(), twin.final.get());
      if (first.empty()) first = op_test::bits_of(ours);
      EXPECT_EQ(op_test::bits_of(ours), first) << "bits depend on the layout or the run";
    }
  }
}

TEST_F(Conv1dCudaTest, MatchesItsTwinInEveryShape) {
  for (const std::int64_t tokens : {0, 1, 2, 3, 4, 5, 63, 64, 65, 66, 67, 68, 150}) {
    check(desc_of(2, tokens, 8));
  }
  for (const std::int64_t channels : {1, 3, 4, 5, 63, 513, 520}) check(desc_of(2, 70, channels));
  check(desc_of(300, 5, 8));  // more tiles than partial sums
  check(desc_of(0, 5, 8));
}

TEST_F(Conv1dCudaTest, PackedSequencesAndDocuments) {
  for (const Lengths& lengths : std::vector<Lengths>{
           {5, 0, 1, 2, 3, 4, 0, 20}, {0}, {1}, {2, 2}, {0, 0, 64, 1, 66, 0}, {63, 2, 130}}) {
    std::int64_t tokens = 0;
    for (const std::int64_t n : lengths) tokens += n;
    check(desc_of(1, tokens, 12), lengths);
  }
  for (const Lengths& lengths :
       std::vector<Lengths>{{5, 1, 2, 3, 4, 20}, {1, 1}, {2, 3}, {62, 3, 64, 1, 70}, {2, 64}}) {
    std::int64_t tokens = 0;
    for (const std::int64_t n : lengths) tokens += n;
    check(desc_of(1, tokens, 12), {}, lengths);
  }
}

TEST_F(Conv1dCudaTest, ANeighboursNanStaysThere) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Lengths lengths{3, 60, 5, 70};
  Problem clean(desc_of(1, 138, 8, DType::kBFloat16), lengths);
  run(clean);
  for (std::int64_t bad = 0; bad < 4; ++bad) {
    Problem p(desc_of(1, 138, 8, DType::kBFloat16), lengths);
    const auto from = static_cast<std::int64_t>(p.border.get(bad)) * 8;
    const auto to = static_cast<std::int64_t>(p.border.get(bad + 1)) * 8;
    for (std::int64_t i = from; i < to; ++i) {
      p.x.set(i, nan);
      p.dy.set(i, nan);
    }
    for (std::int64_t i = bad * 24; i < (bad + 1) * 24; ++i) {
      p.initial.set(i, nan);
      p.dfinal.set(i, nan);
    }
    run(p);
    for (std::int64_t i = 0; i < p.y.count(); ++i) {
      if (i >= from && i < to) continue;
      ASSERT_EQ(p.y.get(i), clean.y.get(i));
      ASSERT_EQ(p.dx.get(i), clean.dx.get(i));
    }
    for (std::int64_t i = 0; i < p.final.count(); ++i) {
      if (i / 24 == bad) continue;
      ASSERT_EQ(p.final.get(i), clean.final.get(i));
      ASSERT_EQ(p.dinitial.get(i), clean.dinitial.get(i));
    }
  }
}

TEST_F(Conv1dCudaTest, TokenByTokenIsTheWholeSequence) {
  const Problem whole(desc_of(2, 9, 20, DType::kBFloat16));
  run(whole);
  Conv1dDesc d = whole.desc;
  d.tokens = 1;
  d.device = Device::kCuda;
  const Conv1dPlan plan = conv1d_plan(d);
  const OnGpu weight(gpu(), whole.weight), state(gpu(), whole.initial), x(gpu(), whole.x);
  const GuardedTensor result(DType::kBFloat16, {2, 9, 20});
  const OnGpu y(gpu(), result);
  for (std::int64_t t = 0; t < 9; ++t) {
    conv1d_forward(gpu(), plan, {x.tensor().slice(1, t, t + 1), weight, {}, state},
                   {y.tensor().slice(1, t, t + 1), state}, {});
  }
  EXPECT_EQ(y.fetch().bits(), whole.y.bits());
  EXPECT_EQ(state.fetch().bits(), whole.final.bits());
}

TEST_F(Conv1dCudaTest, AbsentStatesAreZero) {
  Problem zero(desc_of(2, 70, 8, DType::kFloat32)), absent(desc_of(2, 70, 8, DType::kFloat32));
  zero.initial.fill(0);
  zero.dfinal.fill(0);
  run(zero);
  const Conv1dPlan plan = plan_of(absent);
  const GpuScratch scratch(gpu(), plan.workspace_bytes);
  const Operands o(gpu(), absent);
  conv1d_forward(gpu(), plan, {o.x, o.weight, {}, {}}, {o.y, {}}, {});
  conv1d_backward(gpu(), plan, {o.dy, o.x, o.weight, {}, {}, {}}, {o.dx, o.dweight, {}},
                  scratch.workspace());
  EXPECT_EQ(o.y.fetch().bits(), zero.y.bits());
  EXPECT_EQ(o.dx.fetch().bits(), zero.dx.bits());
  EXPECT_EQ(o.dweight.fetch().bits(), zero.dweight.bits());
}

TEST_F(Conv1dCudaTest, WrongBordersTouchNothingForeign) {
  for (const auto& borders :
       std::vector<std::vector<double>>{{-5, 1000, 30}, {7, 3, 2}, {2e9, -2e9, 2e9}}) {
    Problem p(desc_of(1, 30, 8, DType::kFloat32), {10, 20});
    p.border.set(borders);
    run(p);  // which looks at the guard bands
  }
}

TEST_F(Conv1dCudaTest, RefusesWhatDoesNotFit) {
  const Problem p(desc_of(1, 4, 8, DType::kFloat32), {1, 3});
  const Conv1dPlan plan = plan_of(p);
  const Operands o(gpu(), p);
  SequenceBorders on_host;
  on_host.border_S1 = p.border;
  EXPECT_TRUE(throws_error(
      [&] { conv1d_forward(gpu(), plan, {o.x, o.weight, on_host, {}}, {o.y, {}}, {}); },
      ErrorKind::kUsage, {"conv1d: border_S1 is in host memory"}));
  EXPECT_TRUE(throws_error(
      [&] {
        conv1d_backward(gpu(), plan, {o.dy, o.x, o.weight, o.borders(p), {}, {}}, {o.dx, {}, {}},
                        {});
      },
      ErrorKind::kUsage, {"workspace of 0 bytes"}));
}

}  // namespace
}  // namespace k25::kernels::conv1d_test
