#include "kernels/core/cuda_check.h"
#include "kernels/core/cuda_math.cuh"
#include "kernels/residual/residual_cuda.h"

namespace k25::kernels {
namespace {

template <class T>
struct AddOp {
  const T* a;
  const T* b;
  T* y;

  template <int N>
  struct In {
    cuda::Vec<T, N> a, b;
  };
  template <int N>
  __device__ In<N> load(std::int64_t i) const {
    return {cuda::load_aligned<T, N>(a + i), cuda::load_aligned<T, N>(b + i)};
  }
  template <int N>
  __device__ void finish(std::int64_t i, const In<N>& in) const {
    float sum[N];
#pragma unroll
    for (int j = 0; j < N; ++j) sum[j] = in.a.get(j) + in.b.get(j);
    cuda::store_aligned(y + i, cuda::Vec<T, N>::narrow(sum));
  }
};

template <class T>
void run(Context& ctx, const ResidualIn& in, const ResidualOut& out, std::int64_t count) {
  const AddOp<T> op{in.a.data<T>(), in.b.data<T>(), out.y.data<T>()};
  cuda::launch_flat<cuda::kVectorOf<T>, 2>(ctx, op, count,
                                           cuda::all_aligned(cuda::kVectorBytes, op.a, op.b, op.y));
  K25_CUDA_CHECK_LAUNCH();
}

}  // namespace

void residual_forward_cuda(Context& ctx, const ResidualPlan& plan, const ResidualIn& in,
                           const ResidualOut& out) {
  if (plan.desc.dtype == DType::kBFloat16) return run<BFloat16>(ctx, in, out, plan.desc.count);
  run<float>(ctx, in, out, plan.desc.count);
}

}  // namespace k25::kernels
