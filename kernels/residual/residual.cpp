#include "kernels/residual/residual.h"

#include <algorithm>
#include <functional>
#include <string>

#include "kernels/core/operand.h"
#include "kernels/residual/residual_cpu.h"
#include "kernels/residual/residual_cuda.h"

namespace k25::kernels {
namespace {

constexpr std::int64_t kGrain = 1 << 15;

void check(const ResidualPlan& plan, const ResidualIn& in, const ResidualOut& out) {
  const ResidualDesc& d = plan.desc;
  check_flat("residual", "a", in.a, d.dtype, d.count, d.device);
  check_flat("residual", "b", in.b, d.dtype, d.count, d.device);
  check_flat("residual", "y", out.y, d.dtype, d.count, d.device);
  if (d.count == 0) return;
  if (!std::ranges::equal(in.a.shape(), in.b.shape()) ||
      !std::ranges::equal(in.a.shape(), out.y.shape())) {
    fail(ErrorKind::kUsage, "residual: a " + shape_string(in.a.shape()) + ", b " +
                                shape_string(in.b.shape()) + " and y " +
                                shape_string(out.y.shape()) + " must have one shape");
  }
  for (const ConstTensor& t : {in.a, in.b}) {
    if (t.raw() != out.y.raw() && overlap(t, out.y)) {
      fail(ErrorKind::kUsage, "residual: y overlaps an input in part; y may be a, b, or apart");
    }
  }
}

template <class T>
void run(Context& ctx, const ResidualIn& in, const ResidualOut& out, std::int64_t count) {
  const T* a = in.a.data<T>();
  const T* b = in.b.data<T>();
  T* y = out.y.data<T>();
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    K25_ISA_CALL(ctx.isa, residual_cpu, a + begin, b + begin, y + begin, end - begin);
  };
  parallel_for(ctx.threads, count, kGrain, std::ref(body));
}

}  // namespace

ResidualPlan residual_plan(const ResidualDesc& desc) {
  if (desc.count < 0) {
    fail(ErrorKind::kUsage,
         "residual: count is " + std::to_string(desc.count) + ", it must not be negative");
  }
  check_float_dtype("residual", desc.dtype, desc.device);
  return {.desc = desc, .workspace_bytes = Bytes{0}};
}

void residual_forward(Context& ctx, const ResidualPlan& plan, const ResidualIn& in,
                      const ResidualOut& out, Workspace /*workspace*/) {
  check(plan, in, out);
  const std::int64_t count = plan.desc.count;
  if (count == 0) return;
  if constexpr (kWithCuda) {
    if (plan.desc.device == Device::kCuda) return residual_forward_cuda(ctx, plan, in, out);
  }
  switch (plan.desc.dtype) {
    case DType::kFloat32:
      return run<float>(ctx, in, out, count);
    case DType::kBFloat16:
      return run<BFloat16>(ctx, in, out, count);
    default:
      return run<double>(ctx, in, out, count);
  }
}

}  // namespace k25::kernels
