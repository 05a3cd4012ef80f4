// A thread walks through a tile of tokens with the last inputs of its channels in registers.

#include "kernels/conv1d/conv1d_cuda.cuh"

namespace k25::kernels {
namespace {

using namespace conv1d_cuda;  // NOLINT(google-build-using-namespace): private to these two sources

template <Access kAccess, class T>
__global__ void __launch_bounds__(kThreads) forward_kernel(const Args<T> a) {
  const std::int64_t c = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * N;
  if (c >= a.channels) return;
  Taps w, taps;
  load_weight<kAccess>(a.weight, c, a.channels - c, w);
  for (std::uint32_t tile = blockIdx.y; tile < a.tiles; tile += gridDim.y) {
    const std::int64_t b = tile / a.tiles_of_row;
    const std::int64_t begin = tile % a.tiles_of_row * kConv1dTile;
    const std::int64_t end = min(a.tokens, begin + kConv1dTile);
    TokenPlace at{};
    for (std::int64_t t = begin; t < end; ++t) {
      if (t == begin || t >= at.end) {
        at = cuda_sequences::place_of(a.sequences, a.count, b, t);
        load_history<kAccess>(a, at, t, c, taps);
      }
      load_row<kAccess>(row_at(a.x, b, t) + c, a.channels - c, taps.of[kHistory]);
      float y[N];
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const float z = convolve(w, taps, j);
        y[j] = z / (1.f + expf(-z));
      }
      store_row<kAccess>(row_at(a.y, b, t) + c, a.channels - c, y);
      taps.shift();
    }
  }
}

/// After forward_kernel: final may lie over initial. A thread reads all that it overwrites.
template <Access kAccess, class T>
__global__ void __launch_bounds__(kThreads) final_state_kernel(const Args<T> a) {
  const std::int64_t c = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * N;
  if (c >= a.channels) return;
  for (std::int64_t s = blockIdx.y; s < a.count; s += gridDim.y) {
    const SequenceSpan span = cuda_sequences::sequence_of(a.sequences, s);
    TokenPlace at{s, span.b, span.first, span.end, span.first, span.end};
    if (span.first < span.end) {
      at.begin = cuda_sequences::place_of(a.sequences, a.count, span.b, span.end - 1).begin;
    }
    Taps taps;
    load_history<kAccess>(a, at, span.end, c, taps);
#pragma unroll
    for (int i = 0; i < kHistory; ++i) {
      store_row<kAccess>(row_at(a.final, s, i) + c, a.channels - c, taps.of[i]);
    }
  }
}

template <Access kAccess, class T>
void launch(Context& ctx, const Args<T>& a) {
  constexpr std::int64_t kMostY = 65535;
  if (a.tiles > 0) {
    forward_kernel<kAccess><<<grid_of(a.channels, a.tiles, kMostY), kThreads, 0, ctx.stream>>>(a);
    K25_CUDA_CHECK_LAUNCH();
  }
  if (a.final.data == nullptr || a.count == 0) return;
  final_state_kernel<kAccess><<<grid_of(a.channels, a.count, kMostY), kThreads, 0, ctx.stream>>>(a);
  K25_CUDA_CHECK_LAUNCH();
}

template <class T>
void forward(Context& ctx, const Conv1dDesc& d, const Conv1dForwardIn& in,
             const Conv1dForwardOut& out) {
  Args<T> a = common_args<T>(d, in);
  a.y = strided_rows<T>(out.y_BTD);
  a.final = strided_rows<T>(out.final_state_S3D);
  if (all_vectors(a)) return launch<Access::kAligned>(ctx, a);
  launch<Access::kScalar>(ctx, a);
}

}  // namespace

void conv1d_forward_cuda(Context& ctx, const Conv1dPlan& plan, const Conv1dForwardIn& in,
                         const Conv1dForwardOut& out) {
  if (plan.desc.dtype == DType::kBFloat16) return forward<BFloat16>(ctx, plan.desc, in, out);
  forward<float>(ctx, plan.desc, in, out);
}

}  // namespace k25::kernels
