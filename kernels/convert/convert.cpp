#include "kernels/convert/convert.h"

#include <cstring>
#include <functional>
#include <string>

#include "kernels/convert/convert_cpu.h"
#include "kernels/convert/convert_cuda.h"
#include "kernels/core/operand.h"

namespace k25::kernels {
namespace {

constexpr std::int64_t kGrain = 1 << 16;

void check(const ConstTensor& x, const Tensor& y) {
  const std::int64_t n = x.numel();
  if (y.numel() != n) {
    fail(ErrorKind::kUsage, "convert: x has " + std::to_string(n) + " elements " +
                                shape_string(x.shape()) + ", y " + std::to_string(y.numel()) + " " +
                                shape_string(y.shape()) + "; they must have as many");
  }
  if (n == 0) return;
  check_built_for("convert", x.device());
  check_flat("convert", "x", x, x.dtype(), n, x.device());
  check_flat("convert", "y", y, y.dtype(), n, x.device());
  if (overlap(x, y) && !(x.raw() == y.raw() && x.dtype() == y.dtype())) {
    fail(ErrorKind::kUsage,
         "convert: x and y overlap without being the same view; use separate memory");
  }
}

void check_pair(DType x, DType y) {
  const auto is = [&](DType from, DType to) { return x == from && y == to; };
  if (x == y || is(DType::kFloat32, DType::kBFloat16) || is(DType::kBFloat16, DType::kFloat32) ||
      is(DType::kFloat32, DType::kFloat64) || is(DType::kFloat64, DType::kFloat32)) {
    return;
  }
  fail(ErrorKind::kUsage, "convert: no conversion from " + std::string(dtype_name(x)) + " to " +
                              std::string(dtype_name(y)) +
                              "; there are fp32 <-> bf16, fp32 <-> fp64 and plain copies");
}

template <class X, class Y, class Kernel>
void run(Context& ctx, const ConstTensor& x, const Tensor& y, Kernel kernel) {
  const X* from = x.data<X>();
  Y* to = y.data<Y>();
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    kernel(from + begin, to + begin, end - begin);
  };
  // std::ref: a std::function of the lambda itself would allocate.
  parallel_for(ctx.threads, x.numel(), kGrain, std::ref(body));
}

void copy(Context& ctx, const ConstTensor& x, const Tensor& y) {
  if (x.raw() == y.raw()) return;
  const auto* from = static_cast<const char*>(x.raw());
  auto* to = static_cast<char*>(y.raw());
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    std::memcpy(to + begin, from + begin, static_cast<std::size_t>(end - begin));
  };
  parallel_for(ctx.threads, x.bytes().n, kGrain * 4, std::ref(body));
}

}  // namespace

void convert(Context& ctx, const ConstTensor& x, const Tensor& y) {
  check(x, y);
  if (x.numel() == 0) return;
  check_pair(x.dtype(), y.dtype());
  if constexpr (kWithCuda) {
    if (x.device() == Device::kCuda) return convert_cuda(ctx, x, y);
  }
  if (x.dtype() == y.dtype()) return copy(ctx, x, y);

  const CpuIsa isa = ctx.isa;
  if (y.dtype() == DType::kBFloat16) {
    return run<float, BFloat16>(ctx, x, y, [isa](const float* a, BFloat16* b, std::int64_t n) {
      K25_ISA_CALL(isa, convert_f32_to_bf16, a, b, n);
    });
  }
  if (x.dtype() == DType::kBFloat16) {
    return run<BFloat16, float>(ctx, x, y, [isa](const BFloat16* a, float* b, std::int64_t n) {
      K25_ISA_CALL(isa, convert_bf16_to_f32, a, b, n);
    });
  }
  if (y.dtype() == DType::kFloat64) {
    return run<float, double>(ctx, x, y, [isa](const float* a, double* b, std::int64_t n) {
      K25_ISA_CALL(isa, convert_f32_to_f64, a, b, n);
    });
  }
  run<double, float>(ctx, x, y, [isa](const double* a, float* b, std::int64_t n) {
    K25_ISA_CALL(isa, convert_f64_to_f32, a, b, n);
  });
}

}  // namespace k25::kernels
