#include "kernels/rope/rope_cpu.h"

#include "kernels/core/vector_math.h"

namespace k25::kernels::K25_ISA {
namespace {

template <class T, class A>
void rotate_rows(const RopeArgs<T, A>& args, std::int64_t begin, std::int64_t end) {
  const std::int64_t half = args.head_dim / 2;
  for (std::int64_t n = begin; n < end; ++n) {
    const A* const cosine = args.table + args.position[n] * args.table_stride;
    const A* const sine = cosine + half;
    for (std::int64_t h = 0; h < args.heads; ++h) {
      const T* const x = args.x + n * args.x_row_stride + h * args.x_head_stride;
      T* const y = args.y + n * args.y_row_stride + h * args.y_head_stride;
      // NOTE: x may be y; iteration i reads and writes elements i and i + half only.
#pragma GCC ivdep
      for (std::int64_t i = 0; i < half; ++i) {
        const A low = load_value(x + i), high = load_value(x + half + i);
        const A c = cosine[i], s = sine[i] * args.direction;
        store_value(y + i, low * c - high * s);
        store_value(y + half + i, high * c + low * s);
      }
    }
  }
}

}  // namespace

#define K25_ROPE_DEFINE(T, A)                                                       \
  void rope_cpu(const RopeArgs<T, A>& args, std::int64_t begin, std::int64_t end) { \
    rotate_rows(args, begin, end);                                                  \
  }
K25_ROPE_DEFINE(float, float)
K25_ROPE_DEFINE(BFloat16, float)
K25_ROPE_DEFINE(double, double)
#undef K25_ROPE_DEFINE

}  // namespace k25::kernels::K25_ISA
