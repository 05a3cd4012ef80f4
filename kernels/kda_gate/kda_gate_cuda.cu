// A block works on one tile of a head's columns and walks over rows, several at a time, a group of
// lanes to each. In backward a thread so keeps its channels, whose sums grow in registers.

#include "kernels/core/cuda_check.h"
#include "kernels/core/cuda_partials.cuh"
#include "kernels/core/cuda_rows.cuh"
#include "kernels/core/operand.h"
#include "kernels/kda_gate/kda_gate_cuda.h"

namespace k25::kernels {
namespace {

using cuda::Access;
using cuda::row_at;

constexpr int kThreads = 256;
constexpr int N = kKdaGateVector;
constexpr float kLargestALog = 80.f;  // exp of it is finite and meets no slope of 0 as infinity

template <class T>
struct Args {
  std::int64_t rows, heads, cols, tiles;
  float lower_bound;
  StridedRows<const T> f;
  const float* a_log;  ///< null: a = 1
  const float* dt_bias;
  StridedRows<float> g;         ///< forward
  StridedRows<const float> dg;  ///< backward
  StridedRows<T> df;
  float* bias_partials;   ///< [blocks, heads, cols]
  float* a_log_partials;  ///< [blocks, tiles, heads]
};

__device__ __forceinline__ float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }

__device__ __forceinline__ float softplus(float x) {
  // x < 0 is asked of x itself, so that NaN stays.
  return (x < 0.f ? 0.f : x) + log1pf(expf(-fabsf(x)));
}

__device__ __forceinline__ float rate_of(const float* a_log, std::int64_t m) {
  if (a_log == nullptr) return 1.f;
  const float a = a_log[m];
  return expf(a > kLargestALog ? kLargestALog : a);
}

struct Gradient {
  float df, da;
};

template <KdaGate kGate>
__device__ __forceinline__ Gradient gradient(float in, float rate, float lower_bound, float dg) {
  if constexpr (kGate == KdaGate::kLowerBound) {
    const float e = expf(-fabsf(rate * in));
    const float df = dg * lower_bound * (e / ((1.f + e) * (1.f + e))) * rate;
    return {df, df * in};
  } else {
    return {-rate * sigmoid(in) * dg, dg * (-rate * softplus(in))};
  }
}

/// What this thread works on. Blocks of x: pieces of the rows; y: heads; z: tiles.
struct Place {
  int group, lane;
  std::int64_t head, col, rows_of_block, step;

  template <class T>
  __device__ __forceinline__ Place(const Args<T>& a, int lanes)
      : group(static_cast<int>(threadIdx.x) / lanes),
        lane(static_cast<int>(threadIdx.x) % lanes),
        head(blockIdx.y),
        col((std::int64_t{blockIdx.z} * cuda::kWarp + lane) * N),
        rows_of_block(kThreads / lanes),
        step(gridDim.x * rows_of_block) {}
  __device__ __forceinline__ std::int64_t first() const {
    return blockIdx.x * rows_of_block + group;
  }
};

template <KdaGate kGate, Access kAccess, class T>
__global__ void __launch_bounds__(kThreads) forward_kernel(const Args<T> a, const int lanes) {
  Place at(a, lanes);
  if (at.col >= a.cols) return;
  const std::int64_t left = a.cols - at.col;
  for (; at.head < a.heads; at.head += gridDim.y) {
    const float rate = rate_of(a.a_log, at.head);
    const auto bias = cuda::load<kAccess, N>(a.dt_bias + at.head * a.cols + at.col, left);
    for (std::int64_t r = at.first(); r < a.rows; r += at.step) {
      const auto f = cuda::load<kAccess, N>(row_at(a.f, r, at.head) + at.col, left);
      float g[N];
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const float in = f.get(j) + bias.get(j);
        g[j] = kGate == KdaGate::kLowerBound ? a.lower_bound * sigmoid(rate * in)
                                             : -rate * softplus(in);
      }
      cuda::store<kAccess, N>(row_at(a.g, r, at.head) + at.col, cuda::Vec<float, N>::narrow(g),
                              left);
    }
  }
}

/// Sums of the groups of the block, in their order.
__device__ __forceinline__ void join_groups(const float (&dbias)[N], int lanes, std::int64_t count,
                                            float* partial) {
  __shared__ float shared[kThreads * N];
#pragma unroll
  for (int j = 0; j < N; ++j) shared[threadIdx.x * N + j] = dbias[j];
  __syncthreads();
  const int c = static_cast<int>(threadIdx.x);
  if (c < lanes * N && c < count) {
    float total = 0;
    for (int g = 0; g < kThreads / lanes; ++g) total += shared[g * lanes * N + c];
    partial[c] = total;
  }
  __syncthreads();
}

template <KdaGate kGate, Access kAccess, class T>
__global__ void __launch_bounds__(kThreads) backward_kernel(const Args<T> a, const int lanes) {
  __shared__ float warps[cuda::kMaxWarps];
  Place at(a, lanes);
  const std::int64_t left = a.cols - at.col;  // 0 or less: nothing to do but to join
  for (; at.head < a.heads; at.head += gridDim.y) {
    const float rate = rate_of(a.a_log, at.head);
    auto bias = cuda::Vec<float, N>::zero();
    if (left > 0) {
      bias = cuda::load<kAccess, N>(a.dt_bias + at.head * a.cols + at.col, left);
    }
    float dbias[N] = {}, da = 0;
    for (std::int64_t r = at.first(); r < a.rows && left > 0; r += at.step) {
      const auto f = cuda::load<kAccess, N>(row_at(a.f, r, at.head) + at.col, left);
      const auto dg = cuda::load<kAccess, N>(row_at(a.dg, r, at.head) + at.col, left);
      float df[N];
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const Gradient d = gradient<kGate>(f.get(j) + bias.get(j), rate, a.lower_bound, dg.get(j));
        df[j] = d.df;
        dbias[j] += d.df;
        if (j < left) da += d.da;
      }
      cuda::store<kAccess, N>(row_at(a.df, r, at.head) + at.col, cuda::Vec<T, N>::narrow(df), left);
    }
    const std::int64_t tile = std::int64_t{blockIdx.z} * cuda::kWarp * N;
    join_groups(dbias, lanes, a.cols - tile,
                a.bias_partials + (blockIdx.x * a.heads + at.head) * a.cols + tile);
    da = cuda::block_reduce<cuda::Add>(da, warps);
    if (threadIdx.x == 0) {
      a.a_log_partials[(blockIdx.x * a.tiles + blockIdx.z) * a.heads + at.head] = da;
    }
  }
}

template <class T, class In>
Args<T> common_args(const KdaGateDesc& d, const In& in) {
  return {.rows = d.rows,
          .heads = d.heads,
          .cols = d.cols,
          .tiles = kda_gate_partials(d).tiles,
          .lower_bound = static_cast<float>(d.lower_bound),
          .f = strided_rows<T>(in.f_NMK),
          .a_log = in.a_log_M ? in.a_log_M.template data<float>() : nullptr,
          .dt_bias = in.dt_bias_MK.template data<float>()};
}

template <class T>
bool all_vectors(const KdaGateDesc& d, const Args<T>& a) {
  const auto fits = [&](const auto& x) { return cuda::vectors_fit<N>(x, d.rows, d.heads); };
  return d.cols % N == 0 && cuda::all_aligned(cuda::kVectorBytes, a.dt_bias) && fits(a.f) &&
         fits(a.g) && fits(a.dg) && fits(a.df);
}

dim3 grid_of(const KdaGateDesc& d, std::int64_t blocks) {
  constexpr std::int64_t kMost = 65535;
  const std::int64_t tiles = kda_gate_partials(d).tiles;
  K25_CHECK(tiles <= kMost, "kda_gate: cols " + std::to_string(d.cols) + " is too many for a GPU");
  return dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(std::min(d.heads, kMost)),
              static_cast<unsigned>(tiles));
}

template <KdaGate kGate, class T>
void forward(Context& ctx, const KdaGateDesc& d, const Args<T>& args) {
  const int lanes = cuda::lanes_of_row<N>(d.cols);
  const std::int64_t heads = std::min<std::int64_t>(d.heads, 65535) * args.tiles;
  const int per_sm = static_cast<int>(std::max<std::int64_t>(1, 32 / heads));
  const dim3 grid = grid_of(d, cuda::grid_blocks(ctx, d.rows, 4 * kThreads / lanes, per_sm));
  if (all_vectors(d, args)) {
    forward_kernel<kGate, Access::kAligned><<<grid, kThreads, 0, ctx.stream>>>(args, lanes);
  } else {
    forward_kernel<kGate, Access::kScalar><<<grid, kThreads, 0, ctx.stream>>>(args, lanes);
  }
  K25_CUDA_CHECK_LAUNCH();
}

template <class T>
void forward(Context& ctx, const KdaGateDesc& d, const KdaGateForwardIn& in,
             const KdaGateForwardOut& out) {
  Args<T> args = common_args<T>(d, in);
  args.g = strided_rows<float>(out.g_NMK);
  if (d.gate == KdaGate::kLowerBound) return forward<KdaGate::kLowerBound>(ctx, d, args);
  forward<KdaGate::kSoftplus>(ctx, d, args);
}

template <KdaGate kGate, class T>
void backward(Context& ctx, const KdaGateDesc& d, const Args<T>& args) {
  const int lanes = cuda::lanes_of_row<N>(d.cols);
  const dim3 grid = grid_of(d, kda_gate_partials(d).count);
  if (all_vectors(d, args)) {
    backward_kernel<kGate, Access::kAligned><<<grid, kThreads, 0, ctx.stream>>>(args, lanes);
  } else {
    backward_kernel<kGate, Access::kScalar><<<grid, kThreads, 0, ctx.stream>>>(args, lanes);
  }
  K25_CUDA_CHECK_LAUNCH();
}

template <class T>
void backward(Context& ctx, const KdaGateDesc& d, const KdaGateBackwardIn& in,
              const KdaGateBackwardOut& out, Workspace workspace) {
  const KdaGatePartials partials = kda_gate_partials(d);
  Args<T> args = common_args<T>(d, in);
  args.dg = strided_rows<float>(in.dg_NMK);
  args.df = strided_rows<T>(out.df_NMK);
  args.bias_partials = static_cast<float*>(workspace.data);
  args.a_log_partials = args.bias_partials + partials.count * d.heads * d.cols;
  if (d.gate == KdaGate::kLowerBound) {
    backward<KdaGate::kLowerBound>(ctx, d, args);
  } else {
    backward<KdaGate::kSoftplus>(ctx, d, args);
  }
  if (out.ddt_bias_MK) {
    cuda::add_partials(ctx, args.bias_partials, partials.count, d.heads * d.cols,
                       out.ddt_bias_MK.data<float>());
  }
  if (out.da_log_M) {
    cuda::add_partials(ctx, args.a_log_partials, partials.count * partials.tiles, d.heads,
                       out.da_log_M.data<float>());
  }
}

}  // namespace

void kda_gate_forward_cuda(Context& ctx, const KdaGatePlan& plan, const KdaGateForwardIn& in,
                           const KdaGateForwardOut& out) {
  if (plan.desc.dtype == DType::kBFloat16) return forward<BFloat16>(ctx, plan.desc, in, out);
  forward<float>(ctx, plan.desc, in, out);
}

void kda_gate_backward_cuda(Context& ctx, const KdaGatePlan& plan, const KdaGateBackwardIn& in,
                            const KdaGateBackwardOut& out, Workspace workspace) {
  if (plan.desc.dtype == DType::kBFloat16) {
    return backward<BFloat16>(ctx, plan.desc, in, out, workspace);
  }
  backward<float>(ctx, plan.desc, in, out, workspace);
}

}  // namespace k25::kernels
