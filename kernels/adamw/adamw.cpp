#include "kernels/adamw/adamw.h"

#include <functional>
#include <string>

#include "kernels/adamw/adamw_cpu.h"
#include "kernels/adamw/adamw_cuda.h"
#include "kernels/core/operand.h"

namespace k25::kernels {
namespace {

constexpr std::int64_t kGrain = 1 << 14;
constexpr const char* kOp = "adamw_update";

}  // namespace

void adamw_update(Context& ctx, const AdamWIn& in, const AdamWOut& out) {
  if (in.grad_n.ndim() != 1) {
    fail(ErrorKind::kUsage, std::string(kOp) + ": grad_n is " + shape_string(in.grad_n.shape()) +
                                ", expected one dimension");
  }
  const std::int64_t n = in.grad_n.dim(0);
  const Device device = in.grad_n.device();
  check_built_for(kOp, device);
  check_operand(kOp, "grad_n", in.grad_n, DType::kFloat32, {n}, Density::kContiguous, device);
  check_operand(kOp, "master_n", out.master_n, DType::kFloat32, {n}, Density::kContiguous, device);
  check_operand(kOp, "m_n", out.m_n, DType::kFloat32, {n}, Density::kContiguous, device);
  check_operand(kOp, "v_n", out.v_n, DType::kFloat32, {n}, Density::kContiguous, device);
  if (out.copy_out_n) {
    check_operand(kOp, "copy_out_n", out.copy_out_n, DType::kBFloat16, {n}, Density::kContiguous,
                  device);
  }
  if (n == 0) return;
  if constexpr (kWithCuda) {
    if (device == Device::kCuda) return adamw_update_cuda(ctx, in, out);
  }
  const AdamWRange all{
      .master = out.master_n.data<float>(),
      .m = out.m_n.data<float>(),
      .v = out.v_n.data<float>(),
      .grad = in.grad_n.data<float>(),
      .copy_out = out.copy_out_n ? out.copy_out_n.data<BFloat16>() : nullptr,
      .count = n,
  };
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    const AdamWRange range{
        .master = all.master + begin,
        .m = all.m + begin,
        .v = all.v + begin,
        .grad = all.grad + begin,
        .copy_out = all.copy_out == nullptr ? nullptr : all.copy_out + begin,
        .count = end - begin,
    };
    K25_ISA_CALL(ctx.isa, adamw_cpu, range, in.scalars);
  };
  parallel_for(ctx.threads, n, kGrain, std::ref(body));
}

}  // namespace k25::kernels
