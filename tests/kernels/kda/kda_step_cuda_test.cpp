#include <string>
#include <vector>

#include "kernels/kda/kda_step.h"
#include "tests/kernels/cuda_twin.h"
#include "tests/kernels/kda/kda_cuda_problem.h"

namespace k25::kda_test {
namespace {

using kernels::KdaStepDesc;
using kernels::KdaStepPlan;
using op_test::all_near;
using op_test::throws_error;
using Bits = std::vector<std::uint8_t>;

constexpr std::int64_t kTokens = 7, kSequences = 3;

/// Uniform in (-4, 0), often near 0.
double gate(std::int64_t, double u) { return -4 * u * u; }

Shape shape_of(std::int64_t key, std::int64_t value) {
  return {.batch = kSequences,
          .tokens = kTokens,
          .heads = 2,
          .value_heads = 4,
          .key_dim = key,
          .value_dim = value};
}

KdaStepPlan plan_of(const KdaDesc& d, std::int64_t tokens) {
  return kernels::kda_step_plan({.sequences = d.batch,
                                 .tokens = tokens,
                                 .heads = d.heads,
                                 .value_heads = d.value_heads,
                                 .key_dim = d.key_dim,
                                 .value_dim = d.value_dim,
                                 .scale = d.scale,
                                 .dtype = d.dtype,
                                 .device = Device::kCuda});
}

class KdaStepCudaTest : public op_test::CudaTest {
 protected:
  /// Decodes the first `count` tokens, `size` to a call, into p.out and p.initial.
  void decode(const Problem& p, std::int64_t count, std::int64_t size) {
    const GpuProblem on_gpu(gpu(), p);
    for (std::int64_t t = 0; t < count; t += size) {
      const std::int64_t end = std::min(count, t + size);
      const auto cut = [&](const OnGpu& x) { return x.tensor().slice(1, t, end); };
      const KdaStepPlan plan = plan_of(p.desc, end - t);
      const GpuScratch scratch(gpu(), plan.workspace_bytes);
      kernels::kda_decode(
          gpu(), plan,
          {cut(on_gpu.q), cut(on_gpu.k), cut(on_gpu.v), cut(on_gpu.g), cut(on_gpu.beta)},
          {cut(on_gpu.out), on_gpu.initial}, scratch.workspace());
    }
    for (const OnGpu* t : {&on_gpu.out, &on_gpu.initial}) {
      EXPECT_TRUE(t->fetch().guards_intact());
    }
  }
};

TEST_F(KdaStepCudaTest, DecodeIsTheRecurrence) {
  for (const DType dtype : op_test::kGpuFloats) {
    for (const std::int64_t key : {64, 128}) {
      for (const std::int64_t value : {64, 128}) {
        const Problem p(desc_of(shape_of(key, value), dtype), gate, {}, {},
                        {.row_padding = 3, .shift = 1});
        const Naive exact = p.naive<double>();
        decode(p, kTokens, 1);
        EXPECT_TRUE(all_near(p.initial.get(), exact.final, 1e-5));
        const bool is_bf16 = dtype == DType::kBFloat16;
        std::vector<double> rounded = exact.out;
        for (double& x : rounded) x = op_test::round_to(dtype, x);
        EXPECT_TRUE(
            op_test::low_precision_near(p.out.get(), rounded, exact.out, is_bf16 ? 1e-4 : 1e-5));
      }
    }
  }
}

TEST_F(KdaStepCudaTest, TokensMayBeDividedOverCallsAtWill) {
  for (const DType dtype : op_test::kGpuFloats) {
    Bits first;
    for (const std::int64_t size : {1, 3, 7, 7}) {
      const Problem p(desc_of(shape_of(128, 64), dtype), gate);
      decode(p, kTokens, size);
      const Bits bits = op_test::bits_of({&p.out, &p.initial});
      if (first.empty()) first = bits;
      EXPECT_EQ(bits, first);
    }
  }
}

TEST_F(KdaStepCudaTest, VerifyAndCommitAreDecodeForEveryAcceptedLength) {
  for (const DType dtype : op_test::kGpuFloats) {
    const KdaDesc d = desc_of(shape_of(64, 128), dtype);
    const Problem p(d, gate, {}, {}, {.row_padding = 1, .shift = 3});
    const GuardedTensor u(DType::kFloat32, {kSequences, kTokens, 4, 128}, Layout{.row_padding = 5});
    const GpuProblem on_gpu(gpu(), p);
    const OnGpu on_u(gpu(), u);
    const KdaStepPlan plan = plan_of(d, kTokens);
    const GpuScratch scratch(gpu(), plan.workspace_bytes);
    const Bits before = p.initial.bits();
    kernels::kda_verify(gpu(), plan,
                        {on_gpu.q, on_gpu.k, on_gpu.v, on_gpu.g, on_gpu.beta, on_gpu.initial},
                        {on_gpu.out, on_u}, scratch.workspace());
    for (const OnGpu* t : {&on_gpu.out, &on_gpu.initial, &on_u}) {
      EXPECT_TRUE(t->fetch().guards_intact());
    }
    EXPECT_EQ(p.initial.bits(), before);
    const Problem all(d, gate);
    decode(all, kTokens, kTokens);
    EXPECT_EQ(p.out.bits(), all.out.bits());
    for (std::int64_t n = 0; n <= kTokens; ++n) {
      SCOPED_TRACE(n);
      // The sequences accept different numbers; what is out of range is bounded.
      GuardedTensor accepted(DType::kInt32, {kSequences});
      accepted.set({static_cast<double>(n), -3, 1000});
      const Problem fresh(d, gate);
      const OnGpu state(gpu(), fresh.initial), on_accepted(gpu(), accepted);
      kernels::kda_commit(gpu(), plan, {on_gpu.k, on_gpu.g, on_u, on_accepted}, {state},
                          scratch.workspace());
      EXPECT_TRUE(state.fetch().guards_intact());
      const Problem decoded(d, gate), untouched(d, gate);
      if (n > 0) decode(decoded, n, n);
      const std::int64_t size = fresh.initial.count() / kSequences;
      for (std::int64_t e = 0; e < size; ++e) {
        ASSERT_EQ(fresh.initial.get(e), decoded.initial.get(e));
        ASSERT_EQ(fresh.initial.get(size + e), untouched.initial.get(size + e));
        ASSERT_EQ(fresh.initial.get(2 * size + e), all.initial.get(2 * size + e));
      }
    }
  }
}

TEST_F(KdaStepCudaTest, WithoutTokensNothingHappens) {
  KdaDesc d = desc_of(shape_of(64, 64), DType::kFloat32);
  d.tokens = 0;
  const Problem p(d, gate);
  const Bits before = p.initial.bits();
  decode(p, 0, 1);
  const GpuProblem on_gpu(gpu(), p);
  kernels::kda_decode(gpu(), plan_of(d, 0), {on_gpu.q, on_gpu.k, on_gpu.v, on_gpu.g, on_gpu.beta},
                      {on_gpu.out, on_gpu.initial}, {});
  EXPECT_EQ(on_gpu.initial.fetch().bits(), before);
}

TEST_F(KdaStepCudaTest, RefusesWhatDoesNotFit) {
  const KdaDesc d = desc_of(shape_of(64, 64), DType::kFloat32);
  EXPECT_TRUE(throws_error([&] { plan_of(desc_of(shape_of(32, 64), DType::kFloat32), 1); },
                           ErrorKind::kUsage, {"kda_step: key_dim 32", "64 or 128"}));
  const Problem p(d, gate);
  const GpuProblem on_gpu(gpu(), p);
  EXPECT_TRUE(throws_error(
      [&] {
        kernels::kda_decode(gpu(), plan_of(d, kTokens),
                            {on_gpu.q, on_gpu.k, on_gpu.v, on_gpu.g, on_gpu.beta},
                            {on_gpu.out, p.initial}, {});
      },
      ErrorKind::kUsage, {"state_SMKV is in host memory"}));
}

}  // namespace
}  // namespace k25::kda_test
