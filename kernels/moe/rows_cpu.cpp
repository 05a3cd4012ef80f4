#include "kernels/moe/rows_cpu.h"

#include "kernels/core/vector_math.h"

namespace k25::kernels::K25_ISA {
namespace {

/// Columns whose sums are kept in registers and the first cache.
constexpr std::int64_t kColumns = 256;

template <class T>
const T* row_of(const ConstRows& m, std::int64_t i) {
  return static_cast<const T*>(m.data) + i * m.stride;
}
template <class T>
T* row_of(const Rows& m, std::int64_t i) {
  return static_cast<T*>(m.data) + i * m.stride;
}

template <class A>
A weight_at(const MoeRowsArgs& a, std::int64_t n, std::int64_t k) {
  return a.weight.data == nullptr ? A(1) : row_of<A>(a.weight, n)[k];
}

template <class T, class A>
void scale_row(const T* __restrict from, A weight, T* __restrict to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) store_value(to + i, weight * load_value(from + i));
}

template <class T, class A>
void gather(const MoeRowsArgs& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t r = begin; r < end; ++r) {
    const std::int64_t n = a.choice[r] / a.top_k;
    const T* const from = row_of<T>(a.tokens_in, n);
    T* const to = row_of<T>(a.rows_out, r);
    if (a.weight.data == nullptr) {
      __builtin_memcpy(to, from, static_cast<unsigned long>(a.cols) * sizeof(T));
    } else {
      scale_row(from, weight_at<A>(a, n, a.choice[r] % a.top_k), to, a.cols);
    }
  }
}

template <class T, class A>
void weigh(const T* __restrict from, A weight, A* __restrict sum, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) sum[i] = weight * load_value(from + i);
}
template <class T, class A>
void add_weighed(const T* __restrict from, A weight, A* __restrict sum, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) sum[i] += weight * load_value(from + i);
}

template <class T, class A>
void sum_rows(const MoeRowsArgs& a, std::int64_t begin, std::int64_t end) {
  alignas(64) A sum[kColumns];
  for (std::int64_t n = begin; n < end; ++n) {
    const std::int32_t* const row = a.row + n * a.row_stride;
    T* const to = row_of<T>(a.tokens_out, n);
    for (std::int64_t c = 0; c < a.cols; c += kColumns) {
      const std::int64_t cols = a.cols - c < kColumns ? a.cols - c : kColumns;
      weigh(row_of<T>(a.rows_in, row[0]) + c, weight_at<A>(a, n, 0), sum, cols);
      for (std::int64_t k = 1; k < a.top_k; ++k) {
        add_weighed(row_of<T>(a.rows_in, row[k]) + c, weight_at<A>(a, n, k), sum, cols);
      }
      for (std::int64_t i = 0; i < cols; ++i) store_value(to + c + i, sum[i]);
    }
  }
}

/// <x, y> in the lanes of row_sum.
template <class A, class T>
A product(const T* x, const T* y, std::int64_t n) {
  alignas(64) A lanes[kReduceLanes] = {};
  std::int64_t i = 0;
  for (; i + kReduceLanes <= n; i += kReduceLanes) {
    for (std::int64_t lane = 0; lane < kReduceLanes; ++lane) {
      lanes[lane] += load_value(x + i + lane) * load_value(y + i + lane);
    }
  }
  for (std::int64_t lane = 0; i < n; ++i, ++lane) {
    lanes[lane] += load_value(x + i) * load_value(y + i);
  }
  return row_sum(lanes, kReduceLanes);
}

template <class T, class A>
void row_products(const MoeRowsArgs& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t n = begin; n < end; ++n) {
    const std::int32_t* const row = a.row + n * a.row_stride;
    for (std::int64_t k = 0; k < a.top_k; ++k) {
      row_of<A>(a.dweight, n)[k] =
          product<A>(row_of<T>(a.rows_in, row[k]), row_of<T>(a.tokens_in, n), a.cols);
    }
  }
}

}  // namespace

#define K25_MOE_ROWS_DEFINE(name, body)                                      \
  void name(const MoeRowsArgs& args, std::int64_t begin, std::int64_t end) { \
    switch (args.dtype) {                                                    \
      case DType::kFloat32:                                                  \
        return body<float, float>(args, begin, end);                         \
      case DType::kBFloat16:                                                 \
        return body<BFloat16, float>(args, begin, end);                      \
      default:                                                               \
        return body<double, double>(args, begin, end);                       \
    }                                                                        \
  }
K25_MOE_ROWS_DEFINE(moe_gather_rows_cpu, gather)
K25_MOE_ROWS_DEFINE(moe_sum_rows_cpu, sum_rows)
K25_MOE_ROWS_DEFINE(moe_row_products_cpu, row_products)
#undef K25_MOE_ROWS_DEFINE

}  // namespace k25::kernels::K25_ISA
