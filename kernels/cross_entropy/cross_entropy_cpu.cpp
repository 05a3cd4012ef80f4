#include "kernels/cross_entropy/cross_entropy_cpu.h"

#include "kernels/core/vector_math.h"

namespace k25::kernels::K25_ISA {
namespace {

constexpr std::int64_t kBlock = 64;

/// The lowest index with row[i] == value; 0 when there is none (a row of NaN).
template <class A>
std::int64_t first_equal(const A* row, std::int64_t n, A value) {
  for (std::int64_t i = 0; i < n; i += kBlock) {
    const std::int64_t count = n - i < kBlock ? n - i : kBlock;
    // NOTE: whole blocks first, for a loop that is vectorised.
    int found = 0;
    for (std::int64_t j = 0; j < count; ++j) found |= row[i + j] == value ? 1 : 0;
    if (found == 0) continue;
    for (std::int64_t j = 0; j < count; ++j) {
      if (row[i + j] == value) return i + j;
    }
  }
  return 0;
}

/// sum_i exp(row[i] - shift), in the lane order of row_sum.
template <class A>
A sum_of_exp(const A* row, std::int64_t n, A shift) {
  alignas(64) A lanes[kReduceLanes] = {};
  std::int64_t i = 0;
  for (; i + kReduceLanes <= n; i += kReduceLanes) {
    for (std::int64_t lane = 0; lane < kReduceLanes; ++lane) {
      lanes[lane] += exp_bounded(row[i + lane] - shift);
    }
  }
  for (std::int64_t lane = 0; i < n; ++i, ++lane) lanes[lane] += exp_bounded(row[i] - shift);
  return row_sum(lanes, kReduceLanes);
}

template <class A>
void chunk_rows(const LogitTile<A>& tile, std::int64_t begin, std::int64_t end) {
  const bool first = tile.first_class == 0;
  for (std::int64_t n = begin; n < end; ++n) {
    const A* const row = tile.z + n * tile.cols;
    const A largest = row_max(row, tile.cols);
    const A before = first ? static_cast<A>(-__builtin_inf()) : tile.max[n];
    // NOTE: '>' keeps the lower class of equal ones in different chunks.
    const bool larger = largest > before;
    const A max = larger ? largest : before;
    if (tile.argmax != nullptr && (first || larger)) {
      tile.argmax[n] =
          static_cast<std::int32_t>(tile.first_class + first_equal(row, tile.cols, largest));
    }
    const A carried = first ? A(0) : tile.sum[n] * exp_bounded(before - max);
    tile.sum[n] = carried + sum_of_exp(row, tile.cols, max);
    tile.max[n] = max;
    const std::int64_t column = tile.label[n] - tile.first_class;
    if (column >= 0 && column < tile.cols) tile.target[n] = row[column];
  }
}

template <class A>
void finish_rows(const LogitTile<A>& tile, A* nll, A* lse, std::int64_t begin, std::int64_t end) {
  for (std::int64_t n = begin; n < end; ++n) {
    lse[n] = tile.max[n] + log_value(tile.sum[n]);
    nll[n] = tile.label[n] < 0 ? A(0) : lse[n] - tile.target[n];
  }
}

/// dz may be z: element i is read before it is written.
template <class T, class A>
void gradient_rows(const LogitTile<A>& tile, const A* lse, T* dz, std::int64_t begin,
                   std::int64_t end) {
  for (std::int64_t n = begin; n < end; ++n) {
    const A* const z = tile.z + n * tile.cols;
    T* const row = dz + n * tile.cols;
    if (tile.label[n] < 0) {
      for (std::int64_t i = 0; i < tile.cols; ++i) store_value(row + i, A(0));
      continue;
    }
    const A log_sum = lse[n];
    const std::int64_t column = tile.label[n] - tile.first_class;
    const bool here = column >= 0 && column < tile.cols;
    const A target = here ? z[column] : A(0);
#pragma GCC ivdep
    for (std::int64_t i = 0; i < tile.cols; ++i) store_value(row + i, exp_bounded(z[i] - log_sum));
    if (here) store_value(row + column, exp_bounded(target - log_sum) - A(1));
  }
}

}  // namespace

#define K25_CROSS_ENTROPY_ARITHMETIC(A)                                                \
  void softmax_chunk(const LogitTile<A>& tile, std::int64_t begin, std::int64_t end) { \
    chunk_rows(tile, begin, end);                                                      \
  }                                                                                    \
  void softmax_finish(const LogitTile<A>& tile, A* nll, A* lse, std::int64_t begin,    \
                      std::int64_t end) {                                              \
    finish_rows(tile, nll, lse, begin, end);                                           \
  }
K25_CROSS_ENTROPY_ARITHMETIC(float)
K25_CROSS_ENTROPY_ARITHMETIC(double)
#undef K25_CROSS_ENTROPY_ARITHMETIC

#define K25_CROSS_ENTROPY_STORAGE(T, A)                                                   \
  void logit_gradients(const LogitTile<A>& tile, const A* lse, T* dz, std::int64_t begin, \
                       std::int64_t end) {                                                \
    gradient_rows(tile, lse, dz, begin, end);                                             \
  }
K25_CROSS_ENTROPY_STORAGE(float, float)
K25_CROSS_ENTROPY_STORAGE(BFloat16, float)
K25_CROSS_ENTROPY_STORAGE(double, double)
#undef K25_CROSS_ENTROPY_STORAGE

void round_rows(const float* src, std::int64_t src_stride, BFloat16* dst, std::int64_t dst_stride,
                std::int64_t cols, std::int64_t begin, std::int64_t end) {
  for (std::int64_t n = begin; n < end; ++n) {
    for (std::int64_t i = 0; i < cols; ++i) {
      store_value(dst + n * dst_stride + i, src[n * src_stride + i]);
    }
  }
}

}  // namespace k25::kernels::K25_ISA
