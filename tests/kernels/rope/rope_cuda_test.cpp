#include <cmath>
#include <string>
#include <vector>

#include "kernels/rope/rope.h"
#include "tests/kernels/cuda_test.h"
#include "tests/kernels/rope/rope_oracle.h"

namespace k25 {
namespace {

using kernels::rope_backward;
using kernels::rope_forward;
using kernels::rope_plan;
using kernels::RopeDesc;
using op_test::GuardedTensor;
using op_test::Layout;
using op_test::low_precision_near;
using op_test::OnGpu;
using op_test::throws_error;
using rope_test::desc_of;
using rope_test::Problem;

class RopeCudaTest : public op_test::CudaTest {
 protected:
  enum class Way { kForward, kBackward };

  /// The problem on the GPU; its y on the host afterwards.
  void run(const Problem& p, Way way) {
    RopeDesc desc = p.desc;
    desc.device = Device::kCuda;
    const OnGpu x(gpu(), p.x), y(gpu(), p.y), position(gpu(), p.position), table(gpu(), p.table);
    const auto apply = way == Way::kForward ? rope_forward : rope_backward;
    apply(gpu(), rope_plan(desc), {x, position, table}, {y}, {});
    y.fetch();
  }
};

TEST_F(RopeCudaTest, ShapesEqualTheCpuAndTheFormula) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const std::int64_t rows : {0, 1, 7, 600}) {
      for (const std::int64_t heads : {0, 1, 3, 24, 70}) {
        for (const std::int64_t dim : {2, 6, 16, 34, 64, 128, 1040}) {
          if (rows * heads * dim > 2000000) continue;
          for (const Layout layout : {Layout{}, Layout{5, 3}, Layout{8, 8}}) {
            SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(heads) + " x " +
                         std::to_string(dim) + " " + std::string(dtype_name(dtype)));
            Problem on_cpu(desc_of(rows, heads, dim, dtype)), p(on_cpu.desc, layout);
            on_cpu.forward(cpu());
            run(p, Way::kForward);
            EXPECT_EQ(p.y.bits(), on_cpu.y.bits());
            EXPECT_TRUE(p.y.guards_intact());
            on_cpu.backward(cpu());
            run(p, Way::kBackward);
            EXPECT_EQ(p.y.bits(), on_cpu.y.bits());
          }
        }
      }
    }
    Problem p(desc_of(90, 2, 32, dtype));
    run(p, Way::kForward);
    const bool is_bf16 = dtype == DType::kBFloat16;
    EXPECT_TRUE(low_precision_near(p.y.get(),
                                   is_bf16 ? p.naive<op_test::NaiveBf16>(1) : p.naive<float>(1),
                                   p.naive<double>(1), is_bf16 ? 1e-4 : 1e-7));
  }
}

// Heads of q inside the [rows, (H + 2K) E] matrix of one projection, in place.
TEST_F(RopeCudaTest, InPlaceInASliceOfAFusedMatrix) {
  Problem p(desc_of(9, 2, 8, DType::kFloat32));
  p.forward(cpu());
  GuardedTensor fused(DType::kFloat32, {9, 32});
  fused.fill(7.0);
  for (std::int64_t n = 0; n < 9; ++n) {
    for (std::int64_t i = 0; i < 16; ++i) fused.set(n * 32 + 8 + i, p.x.get(n * 16 + i));
  }
  RopeDesc desc = p.desc;
  desc.device = Device::kCuda;
  const OnGpu on_fused(gpu(), fused), position(gpu(), p.position), table(gpu(), p.table);
  const Tensor q = on_fused.tensor().slice(1, 8, 24).split_dim(1, 2, 8);
  rope_forward(gpu(), rope_plan(desc), {q, position, table}, {q}, {});
  on_fused.fetch();
  for (std::int64_t n = 0; n < 9; ++n) {
    for (std::int64_t i = 0; i < 32; ++i) {
      const bool inside = i >= 8 && i < 24;
      EXPECT_EQ(fused.get(n * 32 + i), inside ? p.y.get(n * 16 + i - 8) : 7.0);
    }
  }
}

TEST_F(RopeCudaTest, ABadPositionMakesItsRowNanAndNoOther) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const std::int64_t dim : {6, 64}) {
      Problem p(desc_of(5, 3, dim, dtype));
      p.forward(cpu());
      const std::vector<double> want = p.y.get();
      p.position.set(1, -1);
      p.position.set(3, 300);
      run(p, Way::kForward);
      for (std::int64_t i = 0; i < p.y.count(); ++i) {
        const std::int64_t row = i / (3 * dim);
        if (row == 1 || row == 3) {
          EXPECT_TRUE(std::isnan(p.y.get(i))) << i;
        } else {
          EXPECT_EQ(p.y.get(i), want[static_cast<std::size_t>(i)]);
        }
      }
      EXPECT_TRUE(p.y.guards_intact());
      EXPECT_TRUE(throws_error([&] { kernels::rope_check_positions(p.desc, p.position); },
                               ErrorKind::kUsage, {"row 1 has position -1", "[0, 300)"}));
    }
  }
}

TEST_F(RopeCudaTest, Errors) {
  RopeDesc desc = desc_of(4, 2, 8, DType::kFloat64);
  desc.device = Device::kCuda;
  EXPECT_TRUE(throws_error([&] { rope_plan(desc); }, ErrorKind::kUsage,
                           {"rope", "fp64 runs on the CPU only"}));
  desc.dtype = DType::kFloat32;
  Problem p(desc_of(4, 2, 8, DType::kFloat32));
  const OnGpu x(gpu(), p.x), position(gpu(), p.position), table(gpu(), p.table);
  const auto call = [&](kernels::RopeIn in, kernels::RopeOut out, std::string_view part) {
    return throws_error([&] { rope_forward(gpu(), rope_plan(desc), in, out, {}); },
                        ErrorKind::kUsage, {"rope", part, "in host memory"});
  };
  EXPECT_TRUE(call({p.x, position, table}, {x}, "x is"));
  EXPECT_TRUE(call({x, p.position, table}, {x}, "position is"));
  EXPECT_TRUE(call({x, position, p.table}, {x}, "table is"));
  EXPECT_TRUE(call({x, position, table}, {p.y}, "y is"));
  kernels::rope_fill_table(desc, p.table);  // host memory, whatever the device
}

}  // namespace
}  // namespace k25
