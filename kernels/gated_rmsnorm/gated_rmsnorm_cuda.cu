// A head is read by part of a warp, twice: the second time it comes from the cache. Lane g of G
// holds vectors g, g + G, ... dgain of a block grows in registers where a lane has one vector of a
// row, else in the workspace, with a warp to a block.

#include "kernels/core/cuda_check.h"
#include "kernels/core/cuda_partials.cuh"
#include "kernels/core/cuda_rows.cuh"
#include "kernels/core/operand.h"
#include "kernels/gated_rmsnorm/gated_rmsnorm_cuda.h"

namespace k25::kernels {
namespace {

using cuda::Access;
using cuda::row_at;

constexpr int kThreads = 256;

template <class T>
struct ForwardArgs {
  std::int64_t items, heads, cols;
  float eps;
  StridedRows<const T> x, gate;
  const float* gain;
  StridedRows<T> y;
  float* rstd;
};

template <class T>
struct BackwardArgs {
  std::int64_t items, heads, cols;
  StridedRows<const T> dy, x, gate;
  const float* gain;
  const float* rstd;
  StridedRows<T> dx, dgate;
  float* partials;  ///< [blocks, cols]; null: no dgain
};

enum class Gain : std::uint8_t {
  kRegisters,  ///< a row is at most one vector of each lane
  kWorkspace,  ///< any row; the block is one group
};

__device__ __forceinline__ float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }

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
    float squares = 0;
    for (std::int64_t c = threadIdx.x % group * N; c < cols; c += group * N) {
      const auto v = cuda::load<kAccess, N>(x + c, cols - c);
#pragma unroll
      for (int j = 0; j < N; ++j) squares = fmaf(v.get(j), v.get(j), squares);
    }
    squares = cuda::group_reduce<cuda::Add>(squares, group);
    const float rstd = 1.f / sqrtf(squares / static_cast<float>(a.cols) + a.eps);
    if (threadIdx.x % group == 0 && cols > 0) a.rstd[item] = rstd;
    const T* const gate = row_at(a.gate, at.outer, at.inner);
    T* const y = row_at(a.y, at.outer, at.inner);
    for (std::int64_t c = threadIdx.x % group * N; c < cols; c += group * N) {
      const auto v = cuda::load<kAccess, N>(x + c, cols - c);  // this lane's own
      const auto e = cuda::load<kAccess, N>(gate + c, cols - c);
      const auto gain = cuda::load<kAccess, N>(a.gain + c, cols - c);
      float out[N];
#pragma unroll
      for (int j = 0; j < N; ++j) out[j] = v.get(j) * rstd * gain.get(j) * sigmoid(e.get(j));
      cuda::store<kAccess, N>(y + c, cuda::Vec<T, N>::narrow(out), cols - c);
    }
  }
}

/// What one vector of a row contributes: to dgain, before gain; and the derivatives.
template <Access kAccess, class T>
struct Piece {
  static constexpr int N = cuda::kVectorOf<T>;
  cuda::Vec<T, N> dy, x, gate;
  cuda::Vec<float, N> gain;

  __device__ __forceinline__ Piece(const BackwardArgs<T>& a, const cuda::PairWalk& at,
                                   std::int64_t c)
      : dy(cuda::load<kAccess, N>(row_at(a.dy, at.outer, at.inner) + c, a.cols - c)),
        x(cuda::load<kAccess, N>(row_at(a.x, at.outer, at.inner) + c, a.cols - c)),
        gate(cuda::load<kAccess, N>(row_at(a.gate, at.outer, at.inner) + c, a.cols - c)),
        gain(cuda::load<kAccess, N>(a.gain + c, a.cols - c)) {}

  /// dy n s, of which gain times is z n.
  __device__ __forceinline__ float product(int j, float rstd) const {
    return dy.get(j) * (x.get(j) * rstd) * sigmoid(gate.get(j));
  }
  __device__ __forceinline__ void store(const BackwardArgs<T>& a, const cuda::PairWalk& at,
                                        std::int64_t c, float rstd, float mean) const {
    float dx[N], dgate[N];
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float n = x.get(j) * rstd, s = sigmoid(gate.get(j));
      const float z = dy.get(j) * gain.get(j) * s;
      dx[j] = rstd * fmaf(-n, mean, z);
      dgate[j] = z * n * (1.f - s);
    }
    using V = cuda::Vec<T, N>;
    cuda::store<kAccess, N>(row_at(a.dx, at.outer, at.inner) + c, V::narrow(dx), a.cols - c);
    cuda::store<kAccess, N>(row_at(a.dgate, at.outer, at.inner) + c, V::narrow(dgate), a.cols - c);
  }
};

/// dgain of the groups of this block, added in their order.
template <int N>
__device__ __forceinline__ void join_groups(const float (&dgain)[N], int group, std::int64_t cols,
                                            float* partial) {
  __shared__ float shared[kThreads * N];
#pragma unroll
  for (int j = 0; j < N; ++j) shared[threadIdx.x * N + j] = dgain[j];
  __syncthreads();
  const int width = group * N;
  for (int c = static_cast<int>(threadIdx.x); c < cols; c += kThreads) {
    float total = 0;
    for (int g = 0; g < kThreads / group; ++g) total += shared[g * width + c];
    partial[c] = total;
  }
}

template <Gain kGain, Access kAccess, class T>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(const BackwardArgs<T> a, const int group) {
  constexpr int N = cuda::kVectorOf<T>;
  const int rows = static_cast<int>(blockDim.x) / group;
  const std::int64_t start = std::int64_t{blockIdx.x} * rows, step = std::int64_t{gridDim.x} * rows;
  cuda::PairWalk at(start + threadIdx.x / group, step, a.heads);
  const std::int64_t lane = threadIdx.x % group * N;
  float* const partial = a.partials == nullptr ? nullptr : a.partials + blockIdx.x * a.cols;
  float dgain[N] = {};
  if constexpr (kGain == Gain::kWorkspace) {
    for (std::int64_t c = lane; partial != nullptr && c < a.cols; c += group * N) {
      for (int j = 0; j < N && c + j < a.cols; ++j) partial[c + j] = 0;
    }
  }
  for (std::int64_t first = start; first < a.items; first += step, at.next()) {
    const std::int64_t item = first + threadIdx.x / group;
    const std::int64_t cols = item < a.items ? a.cols : 0;
    const float rstd = cols > 0 ? a.rstd[item] : 0.f;
    float sum = 0;
    for (std::int64_t c = lane; c < cols; c += group * N) {
      const Piece<kAccess, T> piece(a, at, c);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const float p = piece.product(j, rstd);
        sum = fmaf(piece.gain.get(j), p, sum);
        if constexpr (kGain == Gain::kRegisters) {
          dgain[j] += p;
        } else if (partial != nullptr && c + j < cols) {
          partial[c + j] += p;
        }
      }
    }
    const float mean = cuda::group_reduce<cuda::Add>(sum, group) / static_cast<float>(a.cols);
    for (std::int64_t c = lane; c < cols; c += group * N) {
      Piece<kAccess, T>(a, at, c).store(a, at, c, rstd, mean);
    }
  }
  if constexpr (kGain == Gain::kRegisters) {
    if (partial != nullptr) join_groups<N>(dgain, group, a.cols, partial);
  }
}

template <class T>
void forward(Context& ctx, const GatedRmsNormDesc& d, const GatedRmsNormForwardIn& in,
             const GatedRmsNormForwardOut& out) {
  constexpr int N = cuda::kVectorOf<T>;
  const ForwardArgs<T> args{.items = d.rows * d.heads,
                            .heads = d.heads,
                            .cols = d.cols,
                            .eps = static_cast<float>(d.eps),
                            .x = strided_rows<T>(in.x_NHD),
                            .gate = strided_rows<T>(in.gate_NHD),
                            .gain = in.gain_D.data<float>(),
                            .y = strided_rows<T>(out.y_NHD),
                            .rstd = out.rstd_NH.data<float>()};
  const auto fits = [&](const auto& x) { return cuda::vectors_fit<N>(x, d.rows, d.heads); };
  const int group = cuda::lanes_of_row<N>(d.cols);
  const unsigned grid = cuda::grid_blocks(ctx, args.items, kThreads / group, 16);
  if (d.cols % N == 0 && cuda::all_aligned(cuda::kVectorBytes, args.gain) && fits(args.x) &&
      fits(args.gate) && fits(args.y)) {
    forward_kernel<Access::kAligned><<<grid, kThreads, 0, ctx.stream>>>(args, group);
  } else {
    forward_kernel<Access::kScalar><<<grid, kThreads, 0, ctx.stream>>>(args, group);
  }
  K25_CUDA_CHECK_LAUNCH();
}

template <Access kAccess, class T>
void launch_backward(Context& ctx, const GatedRmsNormDesc& d, const BackwardArgs<T>& args) {
  constexpr int N = cuda::kVectorOf<T>;
  const int group = cuda::lanes_of_row<N>(d.cols);
  const auto grid = static_cast<unsigned>(gated_rmsnorm_partials(d));
  if (d.cols <= cuda::kWarp * N) {
    backward_kernel<Gain::kRegisters, kAccess><<<grid, kThreads, 0, ctx.stream>>>(args, group);
  } else {
    backward_kernel<Gain::kWorkspace, kAccess><<<grid, cuda::kWarp, 0, ctx.stream>>>(args, group);
  }
  K25_CUDA_CHECK_LAUNCH();
}

template <class T>
void backward(Context& ctx, const GatedRmsNormDesc& d, const GatedRmsNormBackwardIn& in,
              const GatedRmsNormBackwardOut& out, Workspace workspace) {
  constexpr int N = cuda::kVectorOf<T>;
  const BackwardArgs<T> args{
      .items = d.rows * d.heads,
      .heads = d.heads,
      .cols = d.cols,
      .dy = strided_rows<T>(in.dy_NHD),
      .x = strided_rows<T>(in.x_NHD),
      .gate = strided_rows<T>(in.gate_NHD),
      .gain = in.gain_D.data<float>(),
      .rstd = in.rstd_NH.data<float>(),
      .dx = strided_rows<T>(out.dx_NHD),
      .dgate = strided_rows<T>(out.dgate_NHD),
      .partials = out.dgain_D ? static_cast<float*>(workspace.data) : nullptr,
  };
  const auto fits = [&](const auto& x) { return cuda::vectors_fit<N>(x, d.rows, d.heads); };
  if (d.cols % N == 0 && cuda::all_aligned(cuda::kVectorBytes, args.gain) && fits(args.dy) &&
      fits(args.x) && fits(args.gate) && fits(args.dx) && fits(args.dgate)) {
    launch_backward<Access::kAligned>(ctx, d, args);
  } else {
    launch_backward<Access::kScalar>(ctx, d, args);
  }
  if (!out.dgain_D) return;
  cuda::add_partials(ctx, args.partials, gated_rmsnorm_partials(d), d.cols,
                     out.dgain_D.data<float>());
}

}  // namespace

void gated_rmsnorm_forward_cuda(Context& ctx, const GatedRmsNormPlan& plan,
                                const GatedRmsNormForwardIn& in,
                                const GatedRmsNormForwardOut& out) {
  if (plan.desc.dtype == DType::kBFloat16) return forward<BFloat16>(ctx, plan.desc, in, out);
  forward<float>(ctx, plan.desc, in, out);
}

void gated_rmsnorm_backward_cuda(Context& ctx, const GatedRmsNormPlan& plan,
                                 const GatedRmsNormBackwardIn& in,
                                 const GatedRmsNormBackwardOut& out, Workspace workspace) {
  if (plan.desc.dtype == DType::kBFloat16) {
    return backward<BFloat16>(ctx, plan.desc, in, out, workspace);
  }
  backward<float>(ctx, plan.desc, in, out, workspace);
}

}  // namespace k25::kernels
