#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kernels/kda_gate/kda_gate.h"
#include "tests/kernels/cuda_twin.h"
#include "tests/kernels/kda_gate/kda_gate_problem.h"

namespace k25::kernels::kda_gate_test {
namespace {

using op_test::GpuScratch;
using op_test::OnGpu;
using op_test::throws_error;
using op_test::twin_near;

// Less than a vector, parts of a warp, a warp, two tiles, several pieces of rows.
constexpr Sizes kSizes[] = {{0, 2, 4},   {1, 1, 1},   {3, 2, 15},   {33, 3, 17}, {1030, 2, 16},
                            {70, 4, 64}, {9, 3, 128}, {20, 2, 132}, {5, 1, 301}};

class KdaGateCudaTest : public op_test::CudaTest {
 protected:
  KdaGatePlan plan_of(const Problem& p) const {
    KdaGateDesc d = p.desc;
    d.device = Device::kCuda;
    return kda_gate_plan(d);
  }
  void run(const Problem& p) {
    const KdaGatePlan plan = plan_of(p);
    const GpuScratch scratch(gpu(), plan.workspace_bytes);
    const OnGpu f(gpu(), p.f), a_log(gpu(), p.a_log), dt_bias(gpu(), p.dt_bias), g(gpu(), p.g);
    const OnGpu dg(gpu(), p.dg), df(gpu(), p.df), da_log(gpu(), p.da_log);
    const OnGpu ddt_bias(gpu(), p.ddt_bias);
    const bool has = p.kind != Kind::kLowerBoundWithoutA;
    const ConstTensor rate = has ? a_log.tensor() : Tensor();
    kda_gate_forward(gpu(), plan, {f, rate, dt_bias}, {g}, {});
    kda_gate_backward(gpu(), plan, {dg, f, rate, dt_bias},
                      {df, has ? da_log.tensor() : Tensor(), ddt_bias}, scratch.workspace());
    for (const OnGpu* t : {&g, &df, &da_log, &ddt_bias}) EXPECT_TRUE(t->fetch().guards_intact());
  }
};

TEST_F(KdaGateCudaTest, MatchesItsTwinInEveryShape) {
  for (const DType dtype : op_test::kGpuFloats) {
    for (const Sizes& s : kSizes) {
      for (const Kind kind : kKinds) {
        SCOPED_TRACE(std::to_string(s.rows) + " x " + std::to_string(s.heads) + " x " +
                     std::to_string(s.cols) + " " + std::string(dtype_name(dtype)) + ", kind " +
                     std::to_string(static_cast<int>(kind)));
        Problem twin(kind, s, dtype), ref(kind, s);
        ref.f.set(twin.f.get());
        ref.a_log.set(twin.a_log.get());
        ref.dt_bias.set(twin.dt_bias.get());
        ref.dg.set(twin.dg.get());
        for (Problem* p : {&twin, &ref}) {
          p->da_log.fill(0.5);
          p->ddt_bias.fill(0.25);
          p->forward(cpu());
          p->backward(cpu());
        }
        std::vector<std::uint8_t> first;
        for (const Layout layout : op_test::kGpuLayouts) {
          Problem p(kind, s, dtype, layout);
          p.da_log.fill(0.5);
          p.ddt_bias.fill(0.25);
          run(p);
          EXPECT_TRUE(twin_near(p.g, twin.g, ref.g));
          EXPECT_TRUE(twin_near(p.df, twin.df, ref.df));
          EXPECT_TRUE(twin_near(p.da_log, twin.da_log, ref.da_log));
          EXPECT_TRUE(twin_near(p.ddt_bias, twin.ddt_bias, ref.ddt_bias));
          const auto bits = op_test::bits_of({&p.g, &p.df, &p.da_log, &p.ddt_bias});
          if (first.empty()) first = bits;
          EXPECT_EQ(bits, first) << "bits depend on the layout or the run";
        }
      }
    }
  }
}

TEST_F(KdaGateCudaTest, NothingOverflows) {
  for (const Kind kind : kKinds) {
    Problem p(kind, {1, 4, 4}, DType::kFloat32);
    p.a_log.set({-1000, 0, 88, 1000});
    p.f.set({-1000, -1, 1, 1000, -1000, -1, 1, 1000, -1000, -1, 1, 1000, -1000, -1, 1, 1000});
    p.dt_bias.fill(0);
    run(p);
    for (const GuardedTensor* t : {&p.df, &p.da_log, &p.ddt_bias}) {
      for (const double x : t->get()) EXPECT_FALSE(std::isnan(x));
    }
    for (const double x : p.g.get()) EXPECT_TRUE(x <= 0);
    p.f.set(5, std::numeric_limits<double>::quiet_NaN());
    run(p);
    EXPECT_TRUE(std::isnan(p.g.get(5)));
    EXPECT_FALSE(std::isnan(p.g.get(4)));
  }
}

TEST_F(KdaGateCudaTest, BetaMatchesItsTwin) {
  for (const DType dtype : op_test::kGpuFloats) {
    for (const auto& [rows, heads] :
         std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 2}, {1, 1}, {70, 3}, {33, 32}}) {
      for (const KdaBetaRange range : {KdaBetaRange::kOne, KdaBetaRange::kTwo}) {
        std::vector<std::uint8_t> first;
        for (const Layout layout : op_test::kGpuLayouts) {
          const std::vector<std::int64_t> shape{rows, heads};
          const GuardedTensor b = op_test::random_tensor("b", dtype, shape, layout, -6, 6);
          const GuardedTensor dbeta =
              op_test::random_tensor("dbeta", DType::kFloat32, shape, layout);
          const GuardedTensor beta(DType::kFloat32, shape, layout), db(dtype, shape, layout);
          const KdaBetaPlan plan = kda_beta_plan({.rows = rows,
                                                  .heads = heads,
                                                  .range = range,
                                                  .dtype = dtype,
                                                  .device = Device::kCuda});
          const OnGpu on_b(gpu(), b), on_dbeta(gpu(), dbeta), on_beta(gpu(), beta),
              on_db(gpu(), db);
          kda_beta_forward(gpu(), plan, {on_b}, {on_beta}, {});
          kda_beta_backward(gpu(), plan, {on_dbeta, on_b}, {on_db}, {});
          for (const OnGpu* t : {&on_beta, &on_db}) EXPECT_TRUE(t->fetch().guards_intact());
          const double top = range == KdaBetaRange::kTwo ? 2 : 1;
          for (std::int64_t i = 0; i < b.count(); ++i) {
            const double s = 1 / (1 + std::exp(-b.get(i)));
            EXPECT_NEAR(beta.get(i), top * s, 1e-6);
            const double d = dbeta.get(i) * top * s * (1 - s);
            EXPECT_NEAR(db.get(i), d,
                        (dtype == DType::kBFloat16 ? 0x1p-8 : 0) * std::abs(d) + 1e-6);
          }
          const auto bits = op_test::bits_of({&beta, &db});
          if (first.empty()) first = bits;
          EXPECT_EQ(bits, first);
        }
      }
    }
  }
}

TEST_F(KdaGateCudaTest, TheGradientMayOverwriteItsInput) {
  const Problem apart(Kind::kSoftplus, {40, 2, 36}, DType::kBFloat16);
  run(apart);
  const KdaGatePlan plan = plan_of(apart);
  const GpuScratch scratch(gpu(), plan.workspace_bytes);
  const OnGpu f(gpu(), apart.f), a_log(gpu(), apart.a_log), dt_bias(gpu(), apart.dt_bias);
  const OnGpu dg(gpu(), apart.dg);
  kda_gate_backward(gpu(), plan, {dg, f, a_log, dt_bias}, {f, {}, {}}, scratch.workspace());
  EXPECT_EQ(f.fetch().bits(), apart.df.bits());
}

TEST_F(KdaGateCudaTest, RefusesWhatDoesNotFit) {
  const Problem p(Kind::kSoftplus, {2, 3, 4}, DType::kBFloat16);
  const KdaGatePlan plan = plan_of(p);
  const OnGpu f(gpu(), p.f), a_log(gpu(), p.a_log), dt_bias(gpu(), p.dt_bias), g(gpu(), p.g);
  EXPECT_TRUE(throws_error([&] { kda_gate_forward(gpu(), plan, {f, p.a_log, dt_bias}, {g}, {}); },
                           ErrorKind::kUsage, {"kda_gate: a_log_M is in host memory"}));
  EXPECT_TRUE(
      throws_error([&] { kda_gate_backward(gpu(), plan, {g, f, a_log, dt_bias}, {f, {}, {}}, {}); },
                   ErrorKind::kUsage, {"workspace of 0 bytes"}));
}

}  // namespace
}  // namespace k25::kernels::kda_gate_test
