#pragma once
// The ISA kernels behind embedding.h.

#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/core/isa.h"

namespace k25::kernels {

/// Adds rows of dout to rows of dtable, tokens in order, in the columns [begin, end).
template <class T, class Sum>
struct EmbeddingBackwardArgs {
  const std::int32_t* token;
  std::int64_t tokens;
  const T* dout;
  std::int64_t dout_stride;
  Sum* dtable;
  std::int64_t dtable_stride;
};

K25_ISA_DECLARE(void embedding_backward_cpu(const EmbeddingBackwardArgs<float, float>& args,
                                            std::int64_t begin, std::int64_t end);
                void embedding_backward_cpu(const EmbeddingBackwardArgs<BFloat16, float>& args,
                                            std::int64_t begin, std::int64_t end);
                void embedding_backward_cpu(const EmbeddingBackwardArgs<double, double>& args,
                                            std::int64_t begin, std::int64_t end);)

}  // namespace k25::kernels
