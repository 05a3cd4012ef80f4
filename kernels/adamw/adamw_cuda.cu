#include "kernels/adamw/adamw_cuda.h"
#include "kernels/core/cuda_check.h"
#include "kernels/core/cuda_math.cuh"

namespace k25::kernels {
namespace {

struct AdamWOp {
  const float* old_master;
  const float* old_m;
  const float* old_v;
  float* master;
  float* m;
  float* v;
  const float* grad;
  BFloat16* copy_out;  ///< may be null
  AdamWScalars scalars;

  template <int N>
  struct In {
    cuda::Vec<float, N> master, m, v, grad;
  };
  template <int N>
  __device__ In<N> load(std::int64_t i) const {
    return {cuda::load_aligned<float, N>(old_master + i), cuda::load_aligned<float, N>(old_m + i),
            cuda::load_aligned<float, N>(old_v + i), cuda::load_aligned<float, N>(grad + i)};
  }
  template <int N>
  __device__ void finish(std::int64_t i, const In<N>& in) const {
    float next_master[N], next_m[N], next_v[N];
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const AdamWState next = ::k25::adamw_update({in.master.get(j), in.m.get(j), in.v.get(j)},
                                                  in.grad.get(j), scalars);
      next_master[j] = next.master;
      next_m[j] = next.m;
      next_v[j] = next.v;
    }
    using Floats = cuda::Vec<float, N>;
    cuda::store_aligned(master + i, Floats::narrow(next_master));
    cuda::store_aligned(m + i, Floats::narrow(next_m));
    cuda::store_aligned(v + i, Floats::narrow(next_v));
    if (copy_out != nullptr) {
      cuda::store_aligned(copy_out + i, cuda::Vec<BFloat16, N>::narrow(next_master));
    }
  }
};

}  // namespace

void adamw_update_cuda(Context& ctx, const AdamWIn& in, const AdamWOut& out) {
  const bool in_place = !in.old_master_n;
  const AdamWOp op{
      .old_master = (in_place ? out.master_n : in.old_master_n).data<float>(),
      .old_m = (in_place ? out.m_n : in.old_m_n).data<float>(),
      .old_v = (in_place ? out.v_n : in.old_v_n).data<float>(),
      .master = out.master_n.data<float>(),
      .m = out.m_n.data<float>(),
      .v = out.v_n.data<float>(),
      .grad = in.grad_n.data<float>(),
      .copy_out = out.copy_out_n ? out.copy_out_n.data<BFloat16>() : nullptr,
      .scalars = in.scalars,
  };
  constexpr int kWidth = 4;
  const bool aligned = cuda::all_aligned(cuda::kVectorBytes, op.master, op.m, op.v, op.grad) &&
                       cuda::all_aligned(cuda::kVectorBytes, op.old_master, op.old_m, op.old_v) &&
                       cuda::all_aligned(kWidth * sizeof(BFloat16), op.copy_out);
  cuda::launch_flat<kWidth, 1>(ctx, op, in.grad_n.dim(0), aligned);
  K25_CUDA_CHECK_LAUNCH();
}

}  // namespace k25::kernels
