#include "kernels/core/cuda_check.h"
#include "kernels/core/cuda_math.cuh"
#include "kernels/embedding/embedding_cuda.h"

namespace k25::kernels {
namespace {

template <class T>
struct LookUpOp {
  const std::int32_t* token;
  std::int64_t vocab;
  const T* table;
  std::int64_t table_stride;
  T* out;
  std::int64_t out_stride;

  template <int N>
  using In = cuda::Vec<T, N>;
  template <int N>
  __device__ In<N> load(std::int64_t n, std::int64_t c) const {
    const std::int32_t t = token[n];
    if (t >= 0 && t < vocab) return cuda::load_aligned<T, N>(table + t * table_stride + c);
    float nan[N];
#pragma unroll
    for (int j = 0; j < N; ++j) nan[j] = cuda::nan_value();
    return In<N>::narrow(nan);
  }
  template <int N>
  __device__ void finish(std::int64_t n, std::int64_t c, const In<N>& in) const {
    cuda::store_aligned(out + n * out_stride + c, in);
  }
};

template <class T>
void forward(Context& ctx, const EmbeddingDesc& d, const EmbeddingForwardIn& in,
             const EmbeddingForwardOut& out) {
  const LookUpOp<T> op{
      .token = in.token_N.data<std::int32_t>(),
      .vocab = d.vocab,
      .table = d.vocab == 0 ? nullptr : in.table_VD.data<T>(),
      .table_stride = d.vocab == 0 ? 0 : in.table_VD.stride(0),
      .out = out.out_ND.data<T>(),
      .out_stride = out.out_ND.stride(0),
  };
  const bool aligned = cuda::all_aligned(cuda::kVectorBytes, op.table, op.out) &&
                       cuda::vector_rows<T>(d.vocab, d.hidden, op.table_stride) &&
                       cuda::vector_rows<T>(d.tokens, d.hidden, op.out_stride);
  cuda::launch_rows<cuda::kVectorOf<T>, 4>(ctx, op, d.tokens, d.hidden, aligned);
  K25_CUDA_CHECK_LAUNCH();
}

}  // namespace

void embedding_forward_cuda(Context& ctx, const EmbeddingPlan& plan, const EmbeddingForwardIn& in,
                            const EmbeddingForwardOut& out) {
  if (plan.desc.dtype == DType::kBFloat16) return forward<BFloat16>(ctx, plan.desc, in, out);
  forward<float>(ctx, plan.desc, in, out);
}

}  // namespace k25::kernels
