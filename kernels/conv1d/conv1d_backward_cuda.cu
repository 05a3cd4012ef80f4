// A thread walks through a tile of tokens and the three after it with the last inputs and the
// unfinished gradients of its channels in registers. dweight of a block's tiles goes to the
// workspace. What reaches the states is little and has a kernel of its own.

#include "kernels/conv1d/conv1d_cuda.cuh"
#include "kernels/core/cuda_partials.cuh"

namespace k25::kernels {
namespace {

using namespace conv1d_cuda;  // NOLINT(google-build-using-namespace): private to these two sources

/// For the last four tokens: which row of dfinal each receives, or -1.
struct FinalRows {
  int of[kWidth];

  __device__ __forceinline__ void set_last(const TokenPlace& at, std::int64_t t) {
    const std::int64_t row = t - (at.last - kHistory);
    of[kHistory] = at.in_last_document() && row >= 0 ? static_cast<int>(row) : -1;
  }
  __device__ __forceinline__ void shift() {
#pragma unroll
    for (int i = 0; i < kHistory; ++i) of[i] = of[i + 1];
  }
};

template <Access kAccess, class T>
struct Walk {
  const Args<T>& a;
  std::int64_t b, c, left;  ///< row, first channel, channels from it
  std::int64_t s[kWidth];   ///< sequences of the last four tokens
  Taps gradients;
  FinalRows rows;

  /// dx of token t, which is number i of the last four.
  __device__ __forceinline__ void store(std::int64_t t, int i) {
    float out[N];
#pragma unroll
    for (int j = 0; j < N; ++j) out[j] = gradients.of[i][j];
    if (a.dfinal.data != nullptr && rows.of[i] >= 0) {
      float more[N];
      load_row<kAccess>(row_at(a.dfinal, s[i], rows.of[i]) + c, left, more);
#pragma unroll
      for (int j = 0; j < N; ++j) out[j] += more[j];
    }
    store_row<kAccess>(row_at(a.dx, b, t) + c, left, out);
  }
  __device__ __forceinline__ void shift() {
    gradients.shift();
    rows.shift();
#pragma unroll
    for (int i = 0; i < kHistory; ++i) s[i] = s[i + 1];
  }
};

/// dx of the tile [begin, end) of row b; adds to dweight.
template <Access kAccess, class T>
__device__ __forceinline__ void backward_tile(const Args<T>& a, const Taps& w, std::int64_t b,
                                              std::int64_t begin, std::int64_t c, Taps& dweight) {
  const std::int64_t left = a.channels - c;
  const std::int64_t end = min(a.tokens, begin + kConv1dTile);
  const std::int64_t stop = min(a.tokens, end + kHistory);
  Walk<kAccess, T> walk{a, b, c, left, {}, {}, {}};
  walk.gradients.clear();
  Taps taps;
  TokenPlace at{};
  for (std::int64_t t = begin; t < stop; ++t) {
    if (t == begin || t >= at.end) {
      at = cuda_sequences::place_of(a.sequences, a.count, b, t);
      load_history<kAccess>(a, at, t, c, taps);
    }
    load_row<kAccess>(row_at(a.x, b, t) + c, left, taps.of[kHistory]);
    float dy[N];
    load_row<kAccess>(row_at(a.dy, b, t) + c, left, dy);
    walk.s[kHistory] = at.s;
    walk.rows.set_last(at, t);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float dz = gradient_of_z(dy[j], convolve(w, taps, j));
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        // Not for another document's tokens, nor for the initial state.
        if (t - kHistory + i >= at.begin) {
          walk.gradients.of[i][j] = fmaf(w.of[i][j], dz, walk.gradients.of[i][j]);
        }
        if (t < end) dweight.of[i][j] = fmaf(dz, taps.of[i][j], dweight.of[i][j]);
      }
    }
    if (t - kHistory >= begin) walk.store(t - kHistory, 0);
    taps.shift();
    walk.shift();
  }
#pragma unroll
  for (int i = 0; i < kHistory; ++i) {  // at the end of a row
    const std::int64_t t = stop - kHistory + i;
    if (t >= begin && t < end) walk.store(t, i);
  }
}

template <Access kAccess, class T>
__global__ void __launch_bounds__(kThreads) backward_kernel(const Args<T> a) {
  const std::int64_t c = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * N;
  if (c >= a.channels) return;
  Taps w, total;
  load_weight<kAccess>(a.weight, c, a.channels - c, w);
  total.clear();
  for (std::uint32_t tile = blockIdx.y; tile < a.tiles; tile += gridDim.y) {
    Taps part;
    part.clear();
    backward_tile<kAccess>(a, w, tile / a.tiles_of_row, tile % a.tiles_of_row * kConv1dTile, c,
                           part);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
#pragma unroll
      for (int j = 0; j < N; ++j) total.of[i][j] += part.of[i][j];
    }
  }
  if (a.partials == nullptr) return;
  float* const partial = a.partials + (blockIdx.y * a.channels + c) * kWidth;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    if (c + j >= a.channels) break;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) partial[j * kWidth + i] = total.of[i][j];
  }
}

template <Access kAccess, class T>
__global__ void __launch_bounds__(kThreads) initial_state_kernel(const Args<T> a) {
  const std::int64_t c = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * N;
  if (c >= a.channels) return;
  const std::int64_t left = a.channels - c;
  Taps w;
  load_weight<kAccess>(a.weight, c, left, w);
  for (std::int64_t s = blockIdx.y; s < a.count; s += gridDim.y) {
    const SequenceSpan span = cuda_sequences::sequence_of(a.sequences, s);
    TokenPlace at{s, span.b, span.first, span.end, span.first, span.end};
    if (span.first < span.end) {
      at = cuda_sequences::place_of(a.sequences, a.count, span.b, span.first);
    }
    Taps gradients, taps;  // gradients 0 to 2: of the three before the sequence
    gradients.clear();
    load_history<kAccess>(a, at, at.first, c, taps);
#pragma unroll
    for (int n = 0; n < kHistory; ++n) {
      const std::int64_t t = at.first + n;
      if (t >= at.end) break;
      load_row<kAccess>(row_at(a.x, at.b, t) + c, left, taps.of[kHistory]);
      float dy[N];
      load_row<kAccess>(row_at(a.dy, at.b, t) + c, left, dy);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const float dz = gradient_of_z(dy[j], convolve(w, taps, j));
#pragma unroll
        for (int i = 0; i + n < kHistory; ++i) {
          gradients.of[i + n][j] = fmaf(w.of[i][j], dz, gradients.of[i + n][j]);
        }
      }
      taps.shift();
    }
    const std::int64_t length = at.last - at.first;
#pragma unroll
    for (int i = 0; i < kHistory; ++i) {
      if (a.dfinal.data != nullptr && at.in_last_document() && i >= length) {
        float more[N];
        load_row<kAccess>(row_at(a.dfinal, s, i - length) + c, left, more);
#pragma unroll
        for (int j = 0; j < N; ++j) gradients.of[i][j] += more[j];
      }
      store_row<kAccess>(row_at(a.dinitial, s, i) + c, left, gradients.of[i]);
    }
  }
}

template <Access kAccess, class T>
void launch(Context& ctx, const Args<T>& a, std::int64_t partials) {
  constexpr std::int64_t kMostY = 65535;
  if (a.tiles > 0) {
    backward_kernel<kAccess>
        <<<grid_of(a.channels, partials, partials), kThreads, 0, ctx.stream>>>(a);
    K25_CUDA_CHECK_LAUNCH();
  }
  if (a.dinitial.data == nullptr || a.count == 0) return;
  initial_state_kernel<kAccess>
      <<<grid_of(a.channels, a.count, kMostY), kThreads, 0, ctx.stream>>>(a);
  K25_CUDA_CHECK_LAUNCH();
}

template <class T>
void backward(Context& ctx, const Conv1dDesc& d, const Conv1dBackwardIn& in,
              const Conv1dBackwardOut& out, Workspace workspace) {
  Args<T> a = common_args<T>(d, in);
  a.dy = strided_rows<T>(in.dy_BTD);
  a.dfinal = strided_rows<T>(in.dfinal_state_S3D);
  a.dx = strided_rows<T>(out.dx_BTD);
  a.dinitial = strided_rows<T>(out.dinitial_state_S3D);
  if (out.dweight_DW) a.partials = static_cast<float*>(workspace.data);
  const std::int64_t partials = conv1d_partials(d);
  if (all_vectors(a)) {
    launch<Access::kAligned>(ctx, a, partials);
  } else {
    launch<Access::kScalar>(ctx, a, partials);
  }
  if (!out.dweight_DW || a.tiles == 0) return;
  cuda::add_partials(ctx, a.partials, partials, d.channels * kWidth, out.dweight_DW.data<float>());
}

}  // namespace

void conv1d_backward_cuda(Context& ctx, const Conv1dPlan& plan, const Conv1dBackwardIn& in,
                          const Conv1dBackwardOut& out, Workspace workspace) {
  if (plan.desc.dtype == DType::kBFloat16) {
    return backward<BFloat16>(ctx, plan.desc, in, out, workspace);
  }
  backward<float>(ctx, plan.desc, in, out, workspace);
}

}  // namespace k25::kernels
