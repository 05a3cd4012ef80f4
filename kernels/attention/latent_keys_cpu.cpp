#include "kernels/attention/latent_keys_cpu.h"

#include "kernels/core/vector_math.h"

namespace k25::kernels::K25_ISA {
namespace {

constexpr std::int64_t kLanes = 16;

template <class T>
void copy(const T* from, T* to, std::int64_t n) {
  __builtin_memcpy(to, from, static_cast<std::size_t>(n) * sizeof(T));
}

template <class T>
void forward_rows(const LatentKeysForwardArgs<T>& args, std::int64_t begin, std::int64_t end) {
  for (std::int64_t n = begin; n < end; ++n) {
    const T* const shared = args.shared + n * args.shared_stride;
    for (std::int64_t h = 0; h < args.heads; ++h) {
      T* const key = args.key.row(n, h);
      copy(args.own.row(n, h), key, args.own_dim);
      copy(shared, key + args.own_dim, args.shared_dim);
    }
  }
}

/// Columns [first, first + count) of one row of d_shared; the sums stay in registers.
template <class A, class T>
void sum_heads(const LatentKeysBackwardArgs<T>& args, std::int64_t n, std::int64_t first,
               std::int64_t count) {
  A sum[kLanes] = {};
  for (std::int64_t h = 0; h < args.heads; ++h) {
    const T* const d_key = args.d_key.row(n, h) + args.own_dim + first;
    for (std::int64_t i = 0; i < count; ++i) sum[i] += load_value(d_key + i);
  }
  T* const d_shared = args.d_shared + n * args.shared_stride + first;
  for (std::int64_t i = 0; i < count; ++i) store_value(d_shared + i, sum[i]);
}

template <class A, class T>
void backward_rows(const LatentKeysBackwardArgs<T>& args, std::int64_t begin, std::int64_t end) {
  const std::int64_t whole = args.shared_dim / kLanes * kLanes;
  for (std::int64_t n = begin; n < end; ++n) {
    for (std::int64_t h = 0; h < args.heads; ++h) {
      copy(args.d_key.row(n, h), args.d_own.row(n, h), args.own_dim);
    }
    for (std::int64_t first = 0; first < whole; first += kLanes) {
      sum_heads<A>(args, n, first, kLanes);
    }
    if (whole < args.shared_dim) sum_heads<A>(args, n, whole, args.shared_dim - whole);
  }
}

}  // namespace

#define K25_LATENT_KEYS_DEFINE(T, A)                                                       \
  void latent_keys_forward_cpu(const LatentKeysForwardArgs<T>& args, std::int64_t begin,   \
                               std::int64_t end) {                                         \
    forward_rows(args, begin, end);                                                        \
  }                                                                                        \
  void latent_keys_backward_cpu(const LatentKeysBackwardArgs<T>& args, std::int64_t begin, \
                                std::int64_t end) {                                        \
    backward_rows<A>(args, begin, end);                                                    \
  }
K25_LATENT_KEYS_DEFINE(float, float)
K25_LATENT_KEYS_DEFINE(BFloat16, float)
K25_LATENT_KEYS_DEFINE(double, double)
#undef K25_LATENT_KEYS_DEFINE

}  // namespace k25::kernels::K25_ISA
