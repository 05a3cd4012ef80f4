#include "kernels/convert/convert_cuda.h"
#include "kernels/core/cuda_check.h"
#include "kernels/core/cuda_math.cuh"
#include "kernels/core/device.h"

namespace k25::kernels {
namespace {

/// fp32 and bf16.
template <class X, class Y>
struct RoundOp {
  const X* x;
  Y* y;

  template <int N>
  using In = cuda::Vec<X, N>;
  template <int N>
  __device__ In<N> load(std::int64_t i) const {
    return cuda::load_aligned<X, N>(x + i);
  }
  template <int N>
  __device__ void finish(std::int64_t i, const In<N>& in) const {
    float values[N];
    in.widen(values);
    cuda::store_aligned(y + i, cuda::Vec<Y, N>::narrow(values));
  }
};

/// With fp64 on one side, one element a thread.
template <class X, class Y>
struct CastOp {
  const X* x;
  Y* y;

  template <int N>
  using In = X;
  template <int N>
  __device__ X load(std::int64_t i) const {
    return x[i];
  }
  template <int N>
  __device__ void finish(std::int64_t i, const X& in) const {
    y[i] = static_cast<Y>(in);
  }
};

template <class X, class Y>
void round(Context& ctx, const ConstTensor& x, const Tensor& y) {
  constexpr int kWidth = 4;
  const RoundOp<X, Y> op{x.data<X>(), y.data<Y>()};
  const bool aligned =
      cuda::all_aligned(kWidth * sizeof(X), op.x) && cuda::all_aligned(kWidth * sizeof(Y), op.y);
  cuda::launch_flat<kWidth, 4>(ctx, op, x.numel(), aligned);
  K25_CUDA_CHECK_LAUNCH();
}

template <class X, class Y>
void cast(Context& ctx, const ConstTensor& x, const Tensor& y) {
  cuda::launch_flat<1, 4>(ctx, CastOp<X, Y>{x.data<X>(), y.data<Y>()}, x.numel(), true);
  K25_CUDA_CHECK_LAUNCH();
}

}  // namespace

void convert_cuda(Context& ctx, const ConstTensor& x, const Tensor& y) {
  if (x.dtype() == y.dtype()) {
    if (x.raw() != y.raw()) copy_bytes(ctx, x.raw(), y.raw(), y.bytes());
    return;
  }
  if (y.dtype() == DType::kBFloat16) return round<float, BFloat16>(ctx, x, y);
  if (x.dtype() == DType::kBFloat16) return round<BFloat16, float>(ctx, x, y);
  if (y.dtype() == DType::kFloat64) return cast<float, double>(ctx, x, y);
  cast<double, float>(ctx, x, y);
}

}  // namespace k25::kernels
