// Uses the installed kernel library through find_package(k25) alone: a matrix product and an
// RMSNorm, checked against values worked out by hand. Prints "consumer ok" and exits 0, or says
// what differs.

#include <cmath>
#include <cstdio>
#include <vector>

#include "kernels/core/buffer.h"
#include "kernels/core/check.h"
#include "kernels/core/context.h"
#include "kernels/gemm/gemm.h"
#include "kernels/rmsnorm/rmsnorm.h"

namespace {

using k25::Buffer;
using k25::Bytes;
using k25::Context;
using k25::DType;
using k25::Tensor;

bool near(const char* what, const std::vector<float>& ours, const std::vector<float>& expected) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (!(std::abs(ours[i] - expected[i]) <= 1e-5f)) {
      std::printf("%s: element %zu is %g, expected %g\n", what, i, static_cast<double>(ours[i]),
                  static_cast<double>(expected[i]));
      return false;
    }
  }
  return true;
}

/// [1 2 3; 4 5 6] [1 0; 0 1; 2 -1] = [7 -1; 16 -1].
bool gemm_works(Context& ctx, k25::Allocator& allocator) {
  std::vector<float> a{1, 2, 3, 4, 5, 6};
  std::vector<float> b{1, 0, 0, 1, 2, -1};
  std::vector<float> d(4);
  const k25::kernels::GemmPlan plan = k25::kernels::gemm_plan({.m = 2, .n = 2, .k = 3});
  const Buffer scratch(plan.workspace_bytes, allocator);
  k25::kernels::gemm_forward(ctx, plan,
                             {.a = Tensor(a.data(), DType::kFloat32, {2, 3}),
                              .b = Tensor(b.data(), DType::kFloat32, {3, 2})},
                             {.d = Tensor(d.data(), DType::kFloat32, {2, 2})},
                             {scratch.data(), scratch.size()});
  return near("gemm", d, {7, -1, 16, -1});
}

/// s = (1, 1) + (2, -5) = (3, -4), mean square 12.5: y = s / sqrt(12.5) * (1, 2).
bool rmsnorm_works(Context& ctx, k25::Allocator& allocator) {
  std::vector<float> x{1, 1};
  std::vector<float> residual{2, -5};
  std::vector<float> gain{1, 2};
  std::vector<float> sum(2);
  std::vector<float> y(2);
  std::vector<float> rstd(1);
  const k25::kernels::RmsNormPlan plan = k25::kernels::rmsnorm_plan({.rows = 1, .cols = 2});
  const Buffer scratch(plan.workspace_bytes, allocator);
  k25::kernels::rmsnorm_forward(ctx, plan,
                                {.x_ND = Tensor(x.data(), DType::kFloat32, {1, 2}),
                                 .residual_ND = Tensor(residual.data(), DType::kFloat32, {1, 2}),
                                 .gain_D = Tensor(gain.data(), DType::kFloat32, {2})},
                                {.sum_ND = Tensor(sum.data(), DType::kFloat32, {1, 2}),
                                 .y_ND = Tensor(y.data(), DType::kFloat32, {1, 2}),
                                 .rstd_N = Tensor(rstd.data(), DType::kFloat32, {1})},
                                {scratch.data(), scratch.size()});
  return near("rmsnorm sum", sum, {3, -4}) && near("rmsnorm y", y, {0.848528f, -2.262742f});
}

}  // namespace

int main() {
  try {
    k25::HostAllocator allocator;
    Context ctx;
    ctx.isa = k25::detect_cpu_isa();
    if (!gemm_works(ctx, allocator) || !rmsnorm_works(ctx, allocator)) return 1;
  } catch (const k25::Error& e) {
    std::printf("%s\n", e.what());
    return 1;
  }
  std::printf("consumer ok\n");
  return 0;
}
