#include <string>
#include <vector>

#include "kernels/gated_rmsnorm/gated_rmsnorm.h"
#include "tests/kernels/cuda_twin.h"
#include "tests/kernels/gated_rmsnorm/gated_rmsnorm_problem.h"

namespace k25::kernels::gated_rmsnorm_test {
namespace {

using op_test::GpuScratch;
using op_test::OnGpu;
using op_test::throws_error;
using op_test::twin_near;

// Less than a vector, parts of a warp, a warp, rows longer than a warp's vectors, many blocks.
constexpr Sizes kSizes[] = {{0, 2, 4},   {1, 1, 1},    {3, 2, 7},   {33, 3, 8},
                            {7, 5, 17},  {1030, 2, 3}, {65, 4, 64}, {70, 4, 128},
                            {5, 3, 256}, {40, 2, 264}, {9, 3, 1030}};

class GatedRmsNormCudaTest : public op_test::CudaTest {
 protected:
  GatedRmsNormPlan plan_of(const Problem& p) const {
    GatedRmsNormDesc d = p.desc;
    d.device = Device::kCuda;
    return gated_rmsnorm_plan(d);
  }
  void forward(const Problem& p) {
    const OnGpu x(gpu(), p.x), gate(gpu(), p.gate), gain(gpu(), p.gain);
    const OnGpu y(gpu(), p.y), rstd(gpu(), p.rstd);
    gated_rmsnorm_forward(gpu(), plan_of(p), {x, gate, gain}, {y, rstd}, {});
    for (const OnGpu* t : {&y, &rstd}) EXPECT_TRUE(t->fetch().guards_intact());
  }
  void backward(const Problem& p) {
    const GatedRmsNormPlan plan = plan_of(p);
    const GpuScratch scratch(gpu(), plan.workspace_bytes);
    const OnGpu dy(gpu(), p.dy), x(gpu(), p.x), gate(gpu(), p.gate), gain(gpu(), p.gain);
    const OnGpu rstd(gpu(), p.rstd), dx(gpu(), p.dx), dgate(gpu(), p.dgate), dgain(gpu(), p.dgain);
    gated_rmsnorm_backward(gpu(), plan, {dy, x, gate, gain, rstd}, {dx, dgate, dgain},
                           scratch.workspace());
    for (const OnGpu* t : {&dx, &dgate, &dgain}) EXPECT_TRUE(t->fetch().guards_intact());
  }
};

TEST_F(GatedRmsNormCudaTest, MatchesItsTwinInEveryShape) {
  for (const DType dtype : op_test::kGpuFloats) {
    for (const Sizes& s : kSizes) {
      SCOPED_TRACE(std::to_string(s.rows) + " x " + std::to_string(s.heads) + " x " +
                   std::to_string(s.cols) + " " + std::string(dtype_name(dtype)));
      Problem twin(s, dtype), ref(s);
      ref.x.set(twin.x.get());
      ref.gate.set(twin.gate.get());
      ref.gain.set(twin.gain.get());
      ref.dy.set(twin.dy.get());
      for (Problem* p : {&twin, &ref}) {
        p->dgain.fill(0.5);
        p->forward(cpu());
        p->backward(cpu());
      }
      std::vector<std::uint8_t> first;
      for (const Layout layout : op_test::kGpuLayouts) {
        Problem p(s, dtype, layout);
        p.dgain.fill(0.5);
        forward(p);
        backward(p);
        EXPECT_TRUE(twin_near(p.y, twin.y, ref.y));
        EXPECT_TRUE(twin_near(p.rstd, twin.rstd, ref.rstd));
        EXPECT_TRUE(twin_near(p.dx, twin.dx, ref.dx));
        EXPECT_TRUE(twin_near(p.dgate, twin.dgate, ref.dgate));
        EXPECT_TRUE(twin_near(p.dgain, twin.dgain, ref.dgain));
        const auto bits = op_test::bits_of({&p.y, &p.rstd, &p.dx, &p.dgate, &p.dgain});
        if (first.empty()) first = bits;
        EXPECT_EQ(bits, first) << "bits depend on the layout or the run";
      }
    }
  }
}

TEST_F(GatedRmsNormCudaTest, OutputsMayOverwriteInputs) {
  for (const std::int64_t cols : {33, 128, 1000}) {
    const Problem apart({40, 2, cols}, DType::kBFloat16);
    forward(apart);
    backward(apart);
    const GatedRmsNormPlan plan = plan_of(apart);
    const GpuScratch scratch(gpu(), plan.workspace_bytes);
    const OnGpu gain(gpu(), apart.gain), rstd(gpu(), apart.rstd);
    for (const int which : {0, 1}) {
      const Problem in_place({40, 2, cols}, DType::kBFloat16);
      const OnGpu x(gpu(), in_place.x), gate(gpu(), in_place.gate), dy(gpu(), in_place.dy);
      // dx over dy and dgate over gate; or dx over x and dgate over dy.
      const OnGpu& dx = which == 0 ? dy : x;
      const OnGpu& dgate = which == 0 ? gate : dy;
      gated_rmsnorm_backward(gpu(), plan, {dy, x, gate, gain, rstd}, {dx, dgate, {}},
                             scratch.workspace());
      EXPECT_EQ(dx.fetch().bits(), apart.dx.bits());
      EXPECT_EQ(dgate.fetch().bits(), apart.dgate.bits());
    }
  }
}

TEST_F(GatedRmsNormCudaTest, RefusesWhatDoesNotFit) {
  const Problem p({2, 3, 4}, DType::kBFloat16);
  const GatedRmsNormPlan plan = plan_of(p);
  const OnGpu x(gpu(), p.x), gain(gpu(), p.gain), rstd(gpu(), p.rstd);
  EXPECT_TRUE(
      throws_error([&] { gated_rmsnorm_forward(gpu(), plan, {x, p.gate, gain}, {x, rstd}, {}); },
                   ErrorKind::kUsage, {"gated_rmsnorm: gate_NHD is in host memory"}));
  EXPECT_TRUE(throws_error(
      [&] { gated_rmsnorm_backward(gpu(), plan, {x, x, x, gain, rstd}, {x, x, {}}, {}); },
      ErrorKind::kUsage, {"workspace of 0 bytes"}));
}

}  // namespace
}  // namespace k25::kernels::gated_rmsnorm_test
