// Backward: a block walks back over the chunks of one sequence and key head; the value heads of its
// group follow each other, so that dq and dk are summed in a fixed order.

#include "kernels/core/cuda_check.h"
#include "kernels/kda/kda_chunk_backward_cuda.cuh"

namespace k25::kernels {
namespace {

using namespace kda_cuda;  // NOLINT(google-build-using-namespace): private to these sources

template <int K, int V>
struct Scratch {
  Bump bump;
  float *state, *dstate;  ///< dstate: of each head of the group
  Chunk<K, V> chunk;
  Gradients<K, V> grad;

  __device__ __forceinline__ Scratch(float* data, int group)
      : bump{data},
        state(bump.take(K * V)),
        dstate(bump.take(group * K * V)),
        chunk(Keeps::kBackward, bump),
        grad(bump) {}
};

/// The tokens [t, t + n) of a document that begins at `begin`, for all value heads of key head h.
template <class T, int K, int V>
__device__ __forceinline__ void backward_group(const KdaArgs<T, float>& x, const SequenceSpan& s,
                                               std::int64_t h, std::int64_t t, int n,
                                               std::int64_t begin, Scratch<K, V>& w,
                                               float* shared) {
  const int group = static_cast<int>(x.sizes.group);
  for_elements<K>(kRows, [&](int i, int k) { w.grad.dq[i * K + k] = w.grad.dk[i * K + k] = 0.f; });
#pragma unroll 1
  for (int i = 0; i < group; ++i) {
    const std::int64_t m = h * group + i;
    const float* state = w.state;
    if (t > begin) {
      state = x.kept + kept_offset(x.sizes, s.b, t, m);
    } else {
      load_state<K, V>(t == s.first ? x.initial : KdaStates<const float>{}, s.s, m, 0, w.state);
    }
    backward_chunk(x, Span{s.b, t, n, m, 0}, state, w.dstate + i * K * V, w.chunk, w.grad, shared);
  }
  T* const dq = head_row(x.dq, s.b, t, h);
  T* const dk = head_row(x.dk, s.b, t, h);
  for_elements<K>(n, [&](int i, int k) {
    store_float(dq + i * x.dq.token_stride + k, w.grad.dq[i * K + k] * x.scale);
    store_float(dk + i * x.dk.token_stride + k, w.grad.dk[i * K + k]);
  });
  __syncthreads();
}

template <class T, int K, int V>
__device__ __forceinline__ void backward_unit(const KdaArgs<T, float>& x, const SequenceSpan& s,
                                              std::int64_t h, Scratch<K, V>& w, float* shared) {
  const int group = static_cast<int>(x.sizes.group);
  for (int i = 0; i < group; ++i) {
    load_state<K, V>(x.dfinal, s.s, h * group + i, 0, w.dstate + i * K * V);
  }
  for (std::int64_t end = s.end; end > s.first;) {
    // The state that follows another document's last token is not what the next one begins with.
    for (int i = 0; i < group && end < s.end; ++i) {
      load_state<K, V>(KdaStates<const float>{}, 0, 0, 0, w.dstate + i * K * V);
    }
    const std::int64_t begin = document_begin(x.sequences, s, end);
    for (std::int64_t t = begin + (end - begin - 1) / kRows * kRows; t >= begin; t -= kRows) {
      const int n = static_cast<int>(min(std::int64_t{kRows}, end - t));
      backward_group(x, s, h, t, n, begin, w, shared);
    }
    end = begin;
  }
  if (x.dinitial.data == nullptr) return;
  for (int i = 0; i < group; ++i) {
    float* const to = state_at(x.dinitial, s.s, 0, h * group + i);
    for_elements<V>(K, [&](int k, int e) {
      to[k * x.dinitial.row_stride + e] = w.dstate[(i * K + k) * V + e];
    });
  }
}

template <int K, int V, class T>
__global__ void __launch_bounds__(kThreads, 1)
    backward_kernel(const KdaCudaCall<T> call, const std::int64_t block_floats) {
  __shared__ __align__(16) float shared[kSharedFloats];
  const KdaArgs<T, float>& x = call.args;
  Scratch<K, V> w(call.scratch + blockIdx.x * block_floats, static_cast<int>(x.sizes.group));
  const std::int64_t units = call.sequences * x.sizes.heads;
  for (std::int64_t n = blockIdx.x; n < units; n += gridDim.x) {
    backward_unit(x, cuda_sequences::sequence_of(x.sequences, n / x.sizes.heads), n % x.sizes.heads,
                  w, shared);
  }
}

template <int K, class T>
void launch(Context& ctx, const KdaCudaCall<T>& call, unsigned grid) {
  const KdaSizes& s = call.args.sizes;
  const std::int64_t floats = kda_backward_block_floats(s);
  if (s.value_dim == 64) {
    backward_kernel<K, 64><<<grid, kThreads, 0, ctx.stream>>>(call, floats);
  } else {
    backward_kernel<K, 128><<<grid, kThreads, 0, ctx.stream>>>(call, floats);
  }
  K25_CUDA_CHECK_LAUNCH();
}

template <class T>
void backward(Context& ctx, const KdaCudaCall<T>& call) {
  const KdaSizes& s = call.args.sizes;
  const auto grid = static_cast<unsigned>(kda_backward_blocks(s, call.sequences));
  if (grid == 0) return;
  if (s.key_dim == 64) return launch<64>(ctx, call, grid);
  launch<128>(ctx, call, grid);
}

}  // namespace

void kda_backward_cuda(Context& ctx, const KdaCudaCall<float>& call) { backward(ctx, call); }
void kda_backward_cuda(Context& ctx, const KdaCudaCall<BFloat16>& call) { backward(ctx, call); }

}  // namespace k25::kernels
