// A head is read by part of a warp, twice: the second time it comes from the cache. Lane g of G
// holds vectors g, g + G, ...

#include "kernels/core/cuda_check.h"
#include "kernels/core/cuda_rows.cuh"
#include "kernels/core/operand.h"
#include "kernels/l2norm/l2norm_cuda.h"

namespace k25::kernels {
namespace {

using cuda::Access;
using cuda::row_at;

constexpr int kThreads = 256;

template <class T>
struct ForwardArgs {
  std::int64_t items, heads, cols;
  float eps;
  StridedRows<const T> x;
  StridedRows<T> y;
  float* rstd;
};

template <class T>
struct BackwardArgs {
  std::int64_t items, heads, cols;
  StridedRows<const T> dy, y;
  const float* rstd;
  StridedRows<T> dx;
};

/// sum of a b over a row of `cols` (0: no row), which all lanes of the group receive.
template <Access kAccess, class T>
__device__ __forceinline__ float row_dot(const T* a, const T* b, std::int64_t cols, int group) {
  constexpr int N = cuda::kVectorOf<T>;
  float sum = 0;
  for (std::int64_t c = threadIdx.x % group * N; c < cols; c += group * N) {
    const auto left = cuda::load<kAccess, N>(a + c, cols - c);
    const auto right = cuda::load<kAccess, N>(b + c, cols - c);
#pragma unroll
    for (int j = 0; j < N; ++j) sum = fmaf(left.get(j), right.get(j), sum);
  }
  return cuda::group_reduce<cuda::Add>(sum, group);
}

template <Access kAccess, class T>
__global__ void __launch_bounds__(kThreads) forward_kernel(const ForwardArgs<T> a, int group) {
  constexpr int N = cuda::kVectorOf<T>;
  const int rows = kThreads / group;
  const std::int64_t start = std::int64_t{blockIdx.x} * rows, step = std::int64_t{gridDim.x} * rows;
  cuda::PairWalk at(start + threadIdx.x / group, step, a.heads);
  for (std::int64_t first = start; first < a.items; first += step, at.next()) {
    const std::int64_t item = first + threadIdx.x / group;
    const std::int64_t cols = item < a.items ? a.cols : 0;
    const T* const x = row_at(a.x, at.outer, at.inner);
    const float rstd = 1.f / sqrtf(row_dot<kAccess>(x, x, cols, group) + a.eps);
    if (threadIdx.x % group == 0 && cols > 0) a.rstd[item] = rstd;
    T* const y = row_at(a.y, at.outer, at.inner);
    for (std::int64_t c = threadIdx.x % group * N; c < cols; c += group * N) {
      const auto v = cuda::load<kAccess, N>(x + c, cols - c);  // this lane's own
      float scaled[N];
#pragma unroll
      for (int j = 0; j < N; ++j) scaled[j] = v.get(j) * rstd;
      cuda::store<kAccess, N>(y + c, cuda::Vec<T, N>::narrow(scaled), cols - c);
    }
  }
}

template <Access kAccess, class T>
__global__ void __launch_bounds__(kThreads) backward_kernel(const BackwardArgs<T> a, int group) {
  constexpr int N = cuda::kVectorOf<T>;
  const int rows = kThreads / group;
  const std::int64_t start = std::int64_t{blockIdx.x} * rows, step = std::int64_t{gridDim.x} * rows;
  cuda::PairWalk at(start + threadIdx.x / group, step, a.heads);
  for (std::int64_t first = start; first < a.items; first += step, at.next()) {
    const std::int64_t item = first + threadIdx.x / group;
    const std::int64_t cols = item < a.items ? a.cols : 0;
    const T* const dy = row_at(a.dy, at.outer, at.inner);
    const T* const y = row_at(a.y, at.outer, at.inner);
    const float along = row_dot<kAccess>(y, dy, cols, group);
    const float rstd = cols > 0 ? a.rstd[item] : 0.f;
    T* const dx = row_at(a.dx, at.outer, at.inner);
    for (std::int64_t c = threadIdx.x % group * N; c < cols; c += group * N) {
      const auto dv = cuda::load<kAccess, N>(dy + c, cols - c);
      const auto v = cuda::load<kAccess, N>(y + c, cols - c);
      float d[N];
#pragma unroll
      for (int j = 0; j < N; ++j) d[j] = rstd * fmaf(-v.get(j), along, dv.get(j));
      cuda::store<kAccess, N>(dx + c, cuda::Vec<T, N>::narrow(d), cols - c);
    }
  }
}

template <class T>
void forward(Context& ctx, const L2NormDesc& d, const L2NormForwardIn& in,
             const L2NormForwardOut& out) {
  constexpr int N = cuda::kVectorOf<T>;
  const ForwardArgs<T> args{.items = d.rows * d.heads,
                            .heads = d.heads,
                            .cols = d.cols,
                            .eps = static_cast<float>(d.eps),
                            .x = strided_rows<T>(in.x_NHD),
                            .y = strided_rows<T>(out.y_NHD),
                            .rstd = out.rstd_NH.data<float>()};
  const int group = cuda::lanes_of_row<N>(d.cols);
  const unsigned grid = cuda::grid_blocks(ctx, args.items, kThreads / group, 16);
  if (d.cols % N == 0 && cuda::vectors_fit<N>(args.x, d.rows, d.heads) &&
      cuda::vectors_fit<N>(args.y, d.rows, d.heads)) {
    forward_kernel<Access::kAligned><<<grid, kThreads, 0, ctx.stream>>>(args, group);
  } else {
    forward_kernel<Access::kScalar><<<grid, kThreads, 0, ctx.stream>>>(args, group);
  }
  K25_CUDA_CHECK_LAUNCH();
}

template <class T>
void backward(Context& ctx, const L2NormDesc& d, const L2NormBackwardIn& in,
              const L2NormBackwardOut& out) {
  constexpr int N = cuda::kVectorOf<T>;
  const BackwardArgs<T> args{.items = d.rows * d.heads,
                             .heads = d.heads,
                             .cols = d.cols,
                             .dy = strided_rows<T>(in.dy_NHD),
                             .y = strided_rows<T>(in.y_NHD),
                             .rstd = in.rstd_NH.data<float>(),
                             .dx = strided_rows<T>(out.dx_NHD)};
  const int group = cuda::lanes_of_row<N>(d.cols);
  const unsigned grid = cuda::grid_blocks(ctx, args.items, kThreads / group, 16);
  if (d.cols % N == 0 && cuda::vectors_fit<N>(args.dy, d.rows, d.heads) &&
      cuda::vectors_fit<N>(args.y, d.rows, d.heads) &&
      cuda::vectors_fit<N>(args.dx, d.rows, d.heads)) {
    backward_kernel<Access::kAligned><<<grid, kThreads, 0, ctx.stream>>>(args, group);
  } else {
    backward_kernel<Access::kScalar><<<grid, kThreads, 0, ctx.stream>>>(args, group);
  }
  K25_CUDA_CHECK_LAUNCH();
}

}  // namespace

void l2norm_forward_cuda(Context& ctx, const L2NormPlan& plan, const L2NormForwardIn& in,
                         const L2NormForwardOut& out) {
  if (plan.desc.dtype == DType::kBFloat16) return forward<BFloat16>(ctx, plan.desc, in, out);
  forward<float>(ctx, plan.desc, in, out);
}

void l2norm_backward_cuda(Context& ctx, const L2NormPlan& plan, const L2NormBackwardIn& in,
                          const L2NormBackwardOut& out) {
  if (plan.desc.dtype == DType::kBFloat16) return backward<BFloat16>(ctx, plan.desc, in, out);
  backward<float>(ctx, plan.desc, in, out);
}

}  // namespace k25::kernels
