// Forward: a block walks over the chunks of one sequence, value head and slice of value columns.

#include "kernels/core/cuda_check.h"
#include "kernels/kda/kda_walk_cuda.cuh"

namespace k25::kernels {
namespace {

using namespace kda_cuda;  // NOLINT(google-build-using-namespace): private to these sources

constexpr int kCols = kKdaSliceCols;
static_assert(kRows == kKdaRows && kSub == kKdaSubChunk && kCols == kRows);

/// A sequence, value head and slice.
struct Unit {
  SequenceSpan s;
  std::int64_t m;
  int col;
};

/// state [K, kCols] to the columns of the unit's slice.
template <int K>
__device__ __forceinline__ void store_state(const float* state, std::int64_t row_stride,
                                            float* to) {
  for_elements<kCols>(K, [&](int d, int e) { to[d * row_stride + e] = state[d * kCols + e]; });
}

template <int K, class T>
__device__ __forceinline__ void store_checkpoints(const KdaArgs<T, float>& x, const Unit& unit,
                                                  std::int64_t t, const float* state) {
  for (std::int64_t i = 0; i < x.checkpoints; ++i) {
    if (x.checkpoint_offset[unit.s.s * x.offset_stride + i] != t - unit.s.first) continue;
    store_state<K>(state, x.checkpoint.row_stride,
                   state_at(x.checkpoint, unit.s.s, i, unit.m) + unit.col);
  }
}

/// The chunk's outputs, from the state that it found. Ends with a barrier.
template <int K, class T>
__device__ __forceinline__ void store_outputs(const KdaArgs<T, float>& x, const Span& at,
                                              const float* state, const Chunk<K, kCols>& c,
                                              float* shared) {
  Tile tile;
  tile.clear();
  tile.add_product<Lies::kDeep, Lies::kWide>(
      K, [&](int i, int d) { return c.q_start(i, d); },
      [&](int d, int e) { return state[d * kCols + e]; }, shared);
  tile.add_product<Lies::kDeep, Lies::kWide, Terms::kUpTo>(
      kRows, [&](int i, int j) { return c.p[i * kRows + j]; },
      [&](int j, int e) { return c.r[j * kCols + e]; }, shared);
  T* const out = head_row(x.out, at.b, at.t, at.m) + at.col;
  tile.for_each([&](int i, int e, float sum) {
    if (i < at.n) store_float(out + i * x.out.token_stride + e, sum);
  });
}

template <int K, class T>
__device__ __forceinline__ void forward_unit(const KdaArgs<T, float>& x, const Unit& unit,
                                             float* state, Chunk<K, kCols>& c, float* shared) {
  const SequenceSpan& s = unit.s;
  load_state<K, kCols>(x.initial, s.s, unit.m, unit.col, state);
  for (std::int64_t t = s.first; t < s.end;) {
    if (t > s.first) load_state<K, kCols>(KdaStates<const float>{}, 0, 0, 0, state);
    const std::int64_t begin = t, end = document_end(x.sequences, s, t);
    for (; t < end; t += kRows) {
      if (x.kept != nullptr && t > begin) {
        store_state<K>(state, x.sizes.value_dim,
                       x.kept + kept_offset(x.sizes, s.b, t, unit.m) + unit.col);
      }
      store_checkpoints<K>(x, unit, t, state);
      const Span at{s.b, t, static_cast<int>(min(std::int64_t{kRows}, end - t)), unit.m, unit.col};
      solve_chunk(x, at, state, c, shared);
      if (x.out.data != nullptr) store_outputs<K>(x, at, state, c, shared);
      advance_state(c, state, shared);
    }
    t = end;
  }
  store_checkpoints<K>(x, unit, s.end, state);
  if (x.final.data != nullptr) {
    store_state<K>(state, x.final.row_stride, state_at(x.final, s.s, 0, unit.m) + unit.col);
  }
  __syncthreads();
}

template <int K, class T>
__global__ void __launch_bounds__(kThreads, 1)
    forward_kernel(const KdaCudaCall<T> call, const std::int64_t block_floats) {
  __shared__ __align__(16) float shared[kSharedFloats];
  const KdaArgs<T, float>& x = call.args;
  Bump bump{call.scratch + blockIdx.x * block_floats};
  float* const state = bump.take(K * kCols);
  Chunk<K, kCols> c(Keeps::kForward, bump);
  const std::int64_t slices = x.sizes.value_dim / kCols;
  const std::int64_t units = call.sequences * x.sizes.value_heads * slices;
  for (std::int64_t n = blockIdx.x; n < units; n += gridDim.x) {
    const std::int64_t head = n / slices;
    forward_unit<K>(x,
                    Unit{cuda_sequences::sequence_of(x.sequences, head / x.sizes.value_heads),
                         head % x.sizes.value_heads, static_cast<int>(n % slices) * kCols},
                    state, c, shared);
  }
}

template <class T>
void forward(Context& ctx, const KdaCudaCall<T>& call) {
  const KdaSizes& s = call.args.sizes;
  const auto grid = static_cast<unsigned>(kda_forward_blocks(s, call.sequences));
  if (grid == 0) return;
  const std::int64_t floats = kda_forward_block_floats(s);
  if (s.key_dim == 64) {
    forward_kernel<64><<<grid, kThreads, 0, ctx.stream>>>(call, floats);
  } else {
    forward_kernel<128><<<grid, kThreads, 0, ctx.stream>>>(call, floats);
  }
  K25_CUDA_CHECK_LAUNCH();
}

}  // namespace

void kda_forward_cuda(Context& ctx, const KdaCudaCall<float>& call) { forward(ctx, call); }
void kda_forward_cuda(Context& ctx, const KdaCudaCall<BFloat16>& call) { forward(ctx, call); }

}  // namespace k25::kernels
