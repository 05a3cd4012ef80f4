// beta and its gradient, element by element.

#include "kernels/core/cuda_check.h"
#include "kernels/core/cuda_math.cuh"
#include "kernels/kda_gate/kda_gate_cuda.h"

namespace k25::kernels {
namespace {

using cuda::Access;

constexpr int kUnroll = 2;

__device__ __forceinline__ float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }

template <class T>
struct Forward {
  const T* b;
  std::int64_t b_stride;
  float* beta;
  std::int64_t beta_stride;
  float top;

  template <int N>
  using In = cuda::Vec<T, N>;
  template <int N>
  __device__ __forceinline__ In<N> load(std::int64_t r, std::int64_t c) const {
    return cuda::load_aligned<T, N>(b + r * b_stride + c);
  }
  template <int N>
  __device__ __forceinline__ void finish(std::int64_t r, std::int64_t c, const In<N>& in) const {
    float out[N];
#pragma unroll
    for (int j = 0; j < N; ++j) out[j] = top * sigmoid(in.get(j));
    cuda::store_aligned(beta + r * beta_stride + c, cuda::Vec<float, N>::narrow(out));
  }
};

template <class T>
struct Backward {
  const float* dbeta;
  std::int64_t dbeta_stride;
  const T* b;
  std::int64_t b_stride;
  T* db;
  std::int64_t db_stride;
  float top;

  template <int N>
  struct In {
    cuda::Vec<float, N> dbeta;
    cuda::Vec<T, N> b;
  };
  template <int N>
  __device__ __forceinline__ In<N> load(std::int64_t r, std::int64_t c) const {
    return {cuda::load_aligned<float, N>(dbeta + r * dbeta_stride + c),
            cuda::load_aligned<T, N>(b + r * b_stride + c)};
  }
  template <int N>
  __device__ __forceinline__ void finish(std::int64_t r, std::int64_t c, const In<N>& in) const {
    float out[N];
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float s = sigmoid(in.b.get(j));
      out[j] = in.dbeta.get(j) * top * s * (1.f - s);
    }
    cuda::store_aligned(db + r * db_stride + c, cuda::Vec<T, N>::narrow(out));
  }
};

float top_of(const KdaBetaDesc& d) { return d.range == KdaBetaRange::kTwo ? 2.f : 1.f; }

template <class T>
void forward(Context& ctx, const KdaBetaDesc& d, const KdaBetaForwardIn& in,
             const KdaBetaForwardOut& out) {
  constexpr int N = cuda::kVectorOf<T>;
  const Forward<T> op{in.b_NM.data<T>(), in.b_NM.stride(0), out.beta_NM.data<float>(),
                      out.beta_NM.stride(0), top_of(d)};
  const bool aligned = cuda::all_aligned(cuda::kVectorBytes, op.b, op.beta) &&
                       cuda::vector_rows<T>(d.rows, d.heads, op.b_stride, op.beta_stride);
  cuda::launch_rows<N, kUnroll>(ctx, op, d.rows, d.heads, aligned);
  K25_CUDA_CHECK_LAUNCH();
}

template <class T>
void backward(Context& ctx, const KdaBetaDesc& d, const KdaBetaBackwardIn& in,
              const KdaBetaBackwardOut& out) {
  constexpr int N = cuda::kVectorOf<T>;
  const Backward<T> op{
      in.dbeta_NM.data<float>(), in.dbeta_NM.stride(0), in.b_NM.data<T>(), in.b_NM.stride(0),
      out.db_NM.data<T>(),       out.db_NM.stride(0),   top_of(d)};
  const bool aligned =
      cuda::all_aligned(cuda::kVectorBytes, op.dbeta, op.b, op.db) &&
      cuda::vector_rows<T>(d.rows, d.heads, op.dbeta_stride, op.b_stride, op.db_stride);
  cuda::launch_rows<N, kUnroll>(ctx, op, d.rows, d.heads, aligned);
  K25_CUDA_CHECK_LAUNCH();
}

}  // namespace

void kda_beta_forward_cuda(Context& ctx, const KdaBetaPlan& plan, const KdaBetaForwardIn& in,
                           const KdaBetaForwardOut& out) {
  if (plan.desc.dtype == DType::kBFloat16) return forward<BFloat16>(ctx, plan.desc, in, out);
  forward<float>(ctx, plan.desc, in, out);
}

void kda_beta_backward_cuda(Context& ctx, const KdaBetaPlan& plan, const KdaBetaBackwardIn& in,
                            const KdaBetaBackwardOut& out) {
  if (plan.desc.dtype == DType::kBFloat16) return backward<BFloat16>(ctx, plan.desc, in, out);
  backward<float>(ctx, plan.desc, in, out);
}

}  // namespace k25::kernels
