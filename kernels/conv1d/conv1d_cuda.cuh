#pragma once
// Private to conv1d's CUDA sources: a thread and its channels.

#include "kernels/conv1d/conv1d_cuda.h"
#include "kernels/core/cuda_check.h"
#include "kernels/core/cuda_rows.cuh"
#include "kernels/core/operand.h"
#include "kernels/sequences/sequence_operands.h"
#include "kernels/sequences/sequence_view_cuda.cuh"

namespace k25::kernels::conv1d_cuda {

using cuda::Access;
using cuda::row_at;
using cuda_sequences::TokenPlace;

inline constexpr int kThreads = 128;
inline constexpr int N = 4;  // channels of a thread
inline constexpr int kWidth = static_cast<int>(kConv1dWidth), kHistory = kWidth - 1;

template <class T>
struct Args {
  std::int64_t batch, tokens, channels, count;  ///< count: sequences
  std::uint32_t tiles_of_row, tiles;
  SequenceView sequences;
  StridedRows<const T> x, initial;
  const float* weight;
  StridedRows<T> y, final;          ///< forward
  StridedRows<const T> dy, dfinal;  ///< backward
  StridedRows<T> dx, dinitial;
  float* partials;  ///< [blocks of y, channels, 4]; null: no dweight
};

/// Four values for each channel: of the last four tokens, or of the four taps.
struct Taps {
  float of[kWidth][N];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (auto& row : of) {
#pragma unroll
      for (float& v : row) v = 0.f;
    }
  }
  __device__ __forceinline__ void shift() {
#pragma unroll
    for (int i = 0; i < kHistory; ++i) {
#pragma unroll
      for (int j = 0; j < N; ++j) of[i][j] = of[i + 1][j];
    }
#pragma unroll
    for (float& v : of[kHistory]) v = 0.f;
  }
};

template <Access kAccess, class T>
__device__ __forceinline__ void load_row(const T* p, std::int64_t count, float (&to)[N]) {
  cuda::load<kAccess, N>(p, count).widen(to);
}
template <Access kAccess, class T>
__device__ __forceinline__ void store_row(T* p, std::int64_t count, const float (&from)[N]) {
  cuda::store<kAccess, N>(p, cuda::Vec<T, N>::narrow(from), count);
}

/// Weights of the channels [c, c + N), of which `count` exist.
template <Access kAccess>
__device__ __forceinline__ void load_weight(const float* weight, std::int64_t c, std::int64_t count,
                                            Taps& w) {
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const auto v = cuda::load<kAccess, kWidth>(weight + (c + j) * kWidth, j < count ? kWidth : 0);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) w.of[i][j] = v.get(i);
  }
}

/// What token t finds before it in taps 0 to 2.
template <Access kAccess, class T>
__device__ __forceinline__ void load_history(const Args<T>& a, const TokenPlace& at, std::int64_t t,
                                             std::int64_t c, Taps& taps) {
  taps.clear();
#pragma unroll
  for (int i = 0; i < kHistory; ++i) {
    const std::int64_t from = t - kHistory + i;
    if (from >= at.begin) {
      load_row<kAccess>(row_at(a.x, at.b, from) + c, a.channels - c, taps.of[i]);
    } else if (at.in_first_document() && a.initial.data != nullptr) {
      load_row<kAccess>(row_at(a.initial, at.s, from - at.first + kHistory) + c, a.channels - c,
                        taps.of[i]);
    }
  }
}

__device__ __forceinline__ float convolve(const Taps& w, const Taps& x, int j) {
  return fmaf(w.of[3][j], x.of[3][j],
              fmaf(w.of[2][j], x.of[2][j], fmaf(w.of[1][j], x.of[1][j], w.of[0][j] * x.of[0][j])));
}

/// dz of a channel, from dy and z computed again.
__device__ __forceinline__ float gradient_of_z(float dy, float z) {
  const float s = 1.f / (1.f + expf(-z));
  return dy * s * fmaf(z, 1.f - s, 1.f);
}

template <class T, class In>
Args<T> common_args(const Conv1dDesc& d, const In& in) {
  const SequenceShape shape{d.batch, d.tokens, d.sequences};
  const std::int64_t tiles_of_row = conv1d_tiles_of_row(d);
  Args<T> a{};
  a.batch = d.batch;
  a.tokens = d.tokens;
  a.channels = d.channels;
  a.count = shape.count();
  K25_CHECK(d.batch * tiles_of_row <= UINT32_MAX, "conv1d: too many tokens for one call");
  a.tiles_of_row = static_cast<std::uint32_t>(tiles_of_row);
  a.tiles = static_cast<std::uint32_t>(d.batch * tiles_of_row);
  a.sequences = sequence_view(shape, in.borders);
  a.x = strided_rows<T>(in.x_BTD);
  a.initial = strided_rows<T>(in.initial_state_S3D);
  a.weight = in.weight_DW.template data<float>();
  return a;
}

template <class T>
bool all_vectors(const Args<T>& a) {
  const auto tokens = [&](const auto& x) { return cuda::vectors_fit<N>(x, a.batch, a.tokens); };
  const auto states = [&](const auto& x) { return cuda::vectors_fit<N>(x, a.count, kHistory); };
  return a.channels % N == 0 && cuda::all_aligned(cuda::kVectorBytes, a.weight) && tokens(a.x) &&
         tokens(a.y) && tokens(a.dy) && tokens(a.dx) && states(a.initial) && states(a.final) &&
         states(a.dfinal) && states(a.dinitial);
}

/// Blocks of channels x pieces of y, of which there are at most `most`.
inline dim3 grid_of(std::int64_t channels, std::int64_t pieces, std::int64_t most) {
  return dim3(static_cast<unsigned>(cuda::ceil_div(channels, N * kThreads)),
              static_cast<unsigned>(std::min(pieces, most)));
}

}  // namespace k25::kernels::conv1d_cuda
