#include "kernels/embedding/embedding_cpu.h"

#include "kernels/core/vector_math.h"

namespace k25::kernels::K25_ISA {
namespace {

template <class T, class Sum>
void add_row(const T* __restrict from, Sum* __restrict to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] += load_value(from + i);
}

template <class T, class Sum>
void add_rows(const EmbeddingBackwardArgs<T, Sum>& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t n = 0; n < a.tokens; ++n) {
    add_row(a.dout + n * a.dout_stride + begin, a.dtable + a.token[n] * a.dtable_stride + begin,
            end - begin);
  }
}

}  // namespace

void embedding_backward_cpu(const EmbeddingBackwardArgs<float, float>& args, std::int64_t begin,
                            std::int64_t end) {
  add_rows(args, begin, end);
}
void embedding_backward_cpu(const EmbeddingBackwardArgs<BFloat16, float>& args, std::int64_t begin,
                            std::int64_t end) {
  add_rows(args, begin, end);
}
void embedding_backward_cpu(const EmbeddingBackwardArgs<double, double>& args, std::int64_t begin,
                            std::int64_t end) {
  add_rows(args, begin, end);
}

}  // namespace k25::kernels::K25_ISA
