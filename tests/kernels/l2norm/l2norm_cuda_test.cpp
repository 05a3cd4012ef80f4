#include <limits>
#include <string>
#include <vector>

#include "kernels/l2norm/l2norm.h"
#include "tests/kernels/cuda_twin.h"
#include "tests/kernels/l2norm/l2norm_problem.h"

namespace k25::kernels::l2norm_test {
namespace {

using op_test::bits_of;
using op_test::OnGpu;
using op_test::throws_error;
using op_test::twin_near;

// Less than a vector, parts of a warp, a warp, and rows longer than a warp's vectors.
constexpr Sizes kSizes[] = {{0, 2, 4},   {1, 1, 1},    {3, 2, 7},    {33, 3, 8},
                            {7, 5, 17},  {130, 2, 64}, {1000, 9, 3}, {65, 4, 128},
                            {5, 3, 256}, {4, 2, 264},  {3, 2, 1030}};

class L2NormCudaTest : public op_test::CudaTest {
 protected:
  L2NormPlan plan_of(const Problem& p) const {
    L2NormDesc d = p.desc;
    d.device = Device::kCuda;
    return l2norm_plan(d);
  }
  void forward(const Problem& p) {
    const OnGpu x(gpu(), p.x), y(gpu(), p.y), rstd(gpu(), p.rstd);
    l2norm_forward(gpu(), plan_of(p), {x}, {y, rstd}, {});
    for (const OnGpu* t : {&y, &rstd}) EXPECT_TRUE(t->fetch().guards_intact());
  }
  void backward(const Problem& p) {
    const OnGpu dy(gpu(), p.dy), y(gpu(), p.y), rstd(gpu(), p.rstd), dx(gpu(), p.dx);
    l2norm_backward(gpu(), plan_of(p), {dy, y, rstd}, {dx}, {});
    EXPECT_TRUE(dx.fetch().guards_intact());
  }
};

TEST_F(L2NormCudaTest, MatchesItsTwinInEveryShape) {
  for (const DType dtype : op_test::kGpuFloats) {
    for (const Sizes& s : kSizes) {
      SCOPED_TRACE(std::to_string(s.rows) + " x " + std::to_string(s.heads) + " x " +
                   std::to_string(s.cols) + " " + std::string(dtype_name(dtype)));
      const Problem twin(s, dtype);
      Problem ref(s);
      ref.x.set(twin.x.get());
      ref.dy.set(twin.dy.get());
      twin.forward(cpu());
      twin.backward(cpu());
      ref.forward(cpu());
      const std::vector<double> y = ref.y.get(), rstd = ref.rstd.get();
      ref.y.set(twin.y.get());  // backward starts from what is stored
      ref.rstd.set(twin.rstd.get());
      ref.backward(cpu());
      ref.y.set(y);
      ref.rstd.set(rstd);
      std::vector<std::uint8_t> first;
      for (const Layout layout : op_test::kGpuLayouts) {
        Problem p(s, dtype, layout);
        forward(p);
        EXPECT_TRUE(twin_near(p.y, twin.y, ref.y));
        EXPECT_TRUE(twin_near(p.rstd, twin.rstd, ref.rstd));
        const std::vector<std::uint8_t> bits = bits_of({&p.y, &p.rstd});
        p.y.set(twin.y.get());
        p.rstd.set(twin.rstd.get());
        backward(p);
        EXPECT_TRUE(twin_near(p.dx, twin.dx, ref.dx));
        std::vector<std::uint8_t> all = bits_of({&p.dx});
        all.insert(all.end(), bits.begin(), bits.end());
        if (first.empty()) first = all;
        EXPECT_EQ(all, first) << "bits depend on the layout or the run";
      }
    }
  }
}

TEST_F(L2NormCudaTest, OverItsInput) {
  for (const std::int64_t cols : {33, 128, 1000}) {
    const Problem apart({40, 2, cols}, DType::kBFloat16);
    forward(apart);
    backward(apart);
    const Problem in_place({40, 2, cols}, DType::kBFloat16);
    const OnGpu on_x(gpu(), in_place.x), rstd(gpu(), in_place.rstd), dy(gpu(), in_place.dy);
    l2norm_forward(gpu(), plan_of(apart), {on_x}, {on_x, rstd}, {});
    EXPECT_EQ(on_x.fetch().bits(), apart.y.bits());
    l2norm_backward(gpu(), plan_of(apart), {dy, on_x, rstd}, {dy}, {});
    EXPECT_EQ(dy.fetch().bits(), apart.dx.bits());
  }
}

TEST_F(L2NormCudaTest, ZeroRowsAndNan) {
  Problem p({2, 1, 20}, DType::kFloat32);
  p.x.fill(0);
  p.x.set(25, std::numeric_limits<double>::quiet_NaN());
  forward(p);
  backward(p);
  for (std::int64_t i = 0; i < 20; ++i) {
    EXPECT_EQ(p.y.get(i), 0);
    EXPECT_TRUE(std::isfinite(p.dx.get(i)));
    EXPECT_TRUE(std::isnan(p.y.get(20 + i)));
  }
}

TEST_F(L2NormCudaTest, RefusesHostMemory) {
  const Problem p({2, 3, 4}, DType::kBFloat16);
  const OnGpu x(gpu(), p.x), y(gpu(), p.y), rstd(gpu(), p.rstd);
  EXPECT_TRUE(throws_error([&] { l2norm_forward(gpu(), plan_of(p), {p.x}, {y, rstd}, {}); },
                           ErrorKind::kUsage, {"l2norm: x_NHD is in host memory"}));
  EXPECT_TRUE(throws_error([&] { l2norm_backward(gpu(), plan_of(p), {x, y, p.rstd}, {x}, {}); },
                           ErrorKind::kUsage, {"rstd_NH is in host memory"}));
}

}  // namespace
}  // namespace k25::kernels::l2norm_test
