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

void check(const AdamWIn& in, const AdamWOut& out) {
  if (in.grad_n.ndim() != 1) {
    fail(ErrorKind::kUsage, std::string(kOp) + ": grad_n is " + shape_string(in.grad_n.shape()) +
                                ", expected one dimension");
  }
  const std::int64_t n = in.grad_n.dim(0);
  const Device device = in.grad_n.device();
  check_built_for(kOp, device);
  const auto fp32 = [&](const char* name, const ConstTensor& tensor) {
    check_operand(kOp, name, tensor, DType::kFloat32, {n}, Density::kContiguous, device);
  };
  fp32("grad_n", in.grad_n);
  fp32("master_n", out.master_n);
  fp32("m_n", out.m_n);
  fp32("v_n", out.v_n);
  if (in.old_master_n || in.old_m_n || in.old_v_n) {
    fp32("old_master_n", in.old_master_n);
    fp32("old_m_n", in.old_m_n);
    fp32("old_v_n", in.old_v_n);
  }
  if (out.copy_out_n) {
    check_operand(kOp, "copy_out_n", out.copy_out_n, DType::kBFloat16, {n}, Density::kContiguous,
                  device);
  }
}

}  // namespace

void adamw_update(Context& ctx, const AdamWIn& in, const AdamWOut& out) {
  check(in, out);
  const std::int64_t n = in.grad_n.dim(0);
  if (n == 0) return;
  if constexpr (kWithCuda) {
    if (in.grad_n.device() == Device::kCuda) return adamw_update_cuda(ctx, in, out);
  }
  const bool in_place = !in.old_master_n;
  const AdamWRange all{
      .old_master = (in_place ? out.master_n : in.old_master_n).data<float>(),
      .old_m = (in_place ? out.m_n : in.old_m_n).data<float>(),
      .old_v = (in_place ? out.v_n : in.old_v_n).data<float>(),
      .master = out.master_n.data<float>(),
      .m = out.m_n.data<float>(),
      .v = out.v_n.data<float>(),
      .grad = in.grad_n.data<float>(),
      .copy_out = out.copy_out_n ? out.copy_out_n.data<BFloat16>() : nullptr,
      .count = n,
  };
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    const AdamWRange range{
        .old_master = all.old_master + begin,
        .old_m = all.old_m + begin,
        .old_v = all.old_v + begin,
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
